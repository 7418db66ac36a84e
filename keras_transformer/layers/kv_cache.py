"""The cache of a decoder: what its mixers keep between steps, and which entries a step sees."""

from typing import Any, NamedTuple

import keras
from keras import ops


class KeyValue(NamedTuple):
    """An immutable pair of projected keys and values.

    Axes are in the order of the products: `queries · key` gives scores, `weights · value` a mean.
    With keys as rows, XLA on a CPU needs up to twice the time for the few queries of a beam.

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
        num_entries: int,
        key_dim: int,
        value_dim: int,
        dtype: str,
    ) -> "KeyValue":
        """Makes zeros at `num_entries` positions."""
        return cls(
            ops.zeros((batch, heads, key_dim, num_entries), dtype),
            ops.zeros((batch, heads, num_entries, value_dim), dtype),
        )

    def write(self, entries: "KeyValue", position: int | keras.KerasTensor) -> "KeyValue":
        """Returns a copy with `entries` at `position` and after it.

        The shape never changes: a cache that grew by concatenation would make XLA compile
        a new program at each step.
        """
        return KeyValue(
            ops.slice_update(self.key, (0, 0, 0, position), entries.key),
            ops.slice_update(self.value, (0, 0, position, 0), entries.value),
        )

    def extended(self, num_entries: int) -> "KeyValue":
        """Returns a copy with `num_entries` positions; those after the old ones are zero."""
        num_new = num_entries - ops.shape(self.value)[2]
        return KeyValue(
            ops.pad(self.key, ((0, 0), (0, 0), (0, 0), (0, num_new))),
            ops.pad(self.value, ((0, 0), (0, 0), (0, num_new), (0, 0))),
        )

    def reorder(self, parents: keras.KerasTensor) -> "KeyValue":
        """Returns itself: hypotheses share one row, and `DecodingCache.lineage` is reordered."""
        return self


def of_parents(state: keras.KerasTensor, parents: keras.KerasTensor) -> keras.KerasTensor:
    """Lets each hypothesis continue another hypothesis of the same sentence.

    Args:
        state: `(batch, beams, …)`.
        parents: Integer `(batch, beams)`, the hypothesis that each one continues.
    """
    axes = tuple(range(2, len(state.shape)))
    return ops.take_along_axis(state, ops.expand_dims(parents, axes), axis=1)


class Past(NamedTuple):
    """The entries that the new positions of a step see, an argument of a mixer's `step`.

    Attributes:
        slot: Integer scalar: where new entries are written.
        mask: Bool `(batch, 1, new, entries)`, the entries that each new position sees.
        positions: Integer `(new,)` and `(entries,)`, the position of each entry in its sentence;
            by default the entries are one sentence, in order.
    """

    slot: int | keras.KerasTensor
    mask: keras.KerasTensor
    positions: tuple[keras.KerasTensor, keras.KerasTensor] | None = None


class DecodingCache(NamedTuple):
    """Everything that a decoding step reads in addition to its ids. Every shape is fixed.

    The hypotheses ("beams") of a sentence share one row of keys and values. Step `t` writes its
    `beams` entries next to each other at `t · beams`, and `lineage` says which entries belong to
    the past of each beam. Reordering beams then moves a small table of booleans instead of the
    caches. The encoder's keys and values are held once per sentence, not once per beam.

    Attributes:
        layers: For each decoder block the state of its mixer, such as a `KeyValue` with
            `capacity · beams` positions. A state has `extended(num_entries)` and
            `reorder(parents)`.
        cross_key_values: For each decoder block a `KeyValue` over the source.
        cross_mask: Bool `(batch, 1, 1, source)`.
        lineage: Bool `(batch, beams, capacity · beams)`, True = the beam's own past.
        position: Integer scalar, the number of steps taken.
    """

    layers: tuple[Any, ...]
    cross_key_values: tuple[KeyValue, ...]
    cross_mask: keras.KerasTensor
    lineage: keras.KerasTensor
    position: keras.KerasTensor

    @property
    def num_beams(self) -> int:
        """Number of hypotheses per sentence."""
        return self.lineage.shape[1]

    def begin_step(self) -> tuple[Past, keras.KerasTensor]:
        """Returns the entries that the next step sees, and its `lineage` with its own entries."""
        beams, slot = self.num_beams, self.position * self.num_beams
        shape = ops.shape(self.lineage)[0], beams, beams
        diagonal = ops.broadcast_to(ops.eye(beams, dtype="bool"), shape)
        lineage = ops.slice_update(self.lineage, (0, 0, slot), diagonal)
        # All entries of a step have its number as their position.
        positions = (
            ops.repeat(ops.expand_dims(self.position, 0), beams),
            ops.arange(ops.shape(lineage)[2]) // beams,
        )
        return Past(slot, ops.expand_dims(lineage, 1), positions), lineage

    def extended(self, capacity: int) -> "DecodingCache":
        """Returns a copy with capacity for `capacity` steps."""
        num_entries = capacity * self.num_beams
        num_new = num_entries - ops.shape(self.lineage)[2]
        return self._replace(
            layers=tuple(layer.extended(num_entries) for layer in self.layers),
            lineage=ops.pad(self.lineage, ((0, 0), (0, 0), (0, num_new))),
        )

    def reorder(self, parents: keras.KerasTensor) -> "DecodingCache":
        """Lets each hypothesis continue another hypothesis of the same sentence.

        `parents`, integer `(batch, beams)`: the hypothesis that each one continues.
        """
        return self._replace(
            layers=tuple(layer.reorder(parents) for layer in self.layers),
            lineage=of_parents(self.lineage, parents),
        )
