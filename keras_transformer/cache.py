"""Keys and values of one attention layer, kept between decoding steps."""

from typing import NamedTuple

import keras
from keras import ops


class KeyValue(NamedTuple):
    """An immutable pair of projected keys and values.

    Both lie as they are multiplied: `queries · key` gives scores, `weights · value` a mean. With
    keys as rows the few queries of a beam take XLA up to twice the time on a CPU.

    Attributes:
        key: Float `(batch, heads, key_dim, positions)`.
        value: Float `(batch, heads, positions, value_dim)`.
    """

    key: keras.KerasTensor
    value: keras.KerasTensor

    @classmethod
    def empty(
        cls,
        batch: int | keras.KerasTensor,
        heads: int,
        capacity: int,
        key_dim: int,
        value_dim: int,
        dtype: str,
    ) -> "KeyValue":
        """Zeros at `capacity` positions."""
        return cls(
            ops.zeros((batch, heads, key_dim, capacity), dtype),
            ops.zeros((batch, heads, capacity, value_dim), dtype),
        )

    def write(self, entries: "KeyValue", position: int | keras.KerasTensor) -> "KeyValue":
        """A copy in which `entries` stand at `position` and after it.

        The shape never changes: a cache that grew by concatenation would make XLA compile
        a new program at each step.
        """
        return KeyValue(
            ops.slice_update(self.key, (0, 0, 0, position), entries.key),
            ops.slice_update(self.value, (0, 0, position, 0), entries.value),
        )

    def extended(self, capacity: int) -> "KeyValue":
        """A copy with `capacity` positions, the new ones zeros behind the others."""
        more = capacity - ops.shape(self.value)[2]
        return KeyValue(
            ops.pad(self.key, ((0, 0), (0, 0), (0, 0), (0, more))),
            ops.pad(self.value, ((0, 0), (0, 0), (0, more), (0, 0))),
        )
