"""Keys and values of one attention layer, kept between decoding steps."""

from typing import NamedTuple

from keras import ops


class KeyValue(NamedTuple):
    """An immutable pair of projected keys and values.

    Attributes:
        key: Float `(batch, heads, positions, key_dim)`.
        value: Float `(batch, heads, positions, value_dim)`.
    """

    key: object
    value: object

    def write(self, entries, position):
        """A copy in which `entries` stand at `position` and after it.

        The shape never changes: a cache that grew by concatenation would make XLA compile
        a new program at each step.

        Args:
            entries: `KeyValue` of fewer positions.
            position: Integer scalar, the first position to overwrite.
        """
        return KeyValue(
            ops.slice_update(self.key, (0, 0, position, 0), entries.key),
            ops.slice_update(self.value, (0, 0, position, 0), entries.value),
        )
