"""What a Transformer remembers between decoding steps."""

from typing import NamedTuple

from keras import ops


class DecodingCache(NamedTuple):
    """All that a decoding step needs besides the ids it is given. Every shape is fixed.

    The hypotheses ("beams") of a sentence share one row of keys and values: step `t` writes its
    `beams` entries side by side at `t · beams`, and `lineage` says which entries each beam
    descends from. Reordering beams then moves a small table of booleans instead of the caches,
    and the encoder's keys and values are held once a sentence, not once a beam.

    Attributes:
        layers: A `KeyValue` a decoder block, with `max_length · beams` positions.
        memory: A `KeyValue` a decoder block over the source.
        memory_mask: Bool `(batch, 1, 1, source)`.
        lineage: Bool `(batch, beams, max_length · beams)`, True = the beam's own past.
        position: Integer scalar, the number of steps taken.
        attention: Float32 `(batch, beams, source)`, what the last step attended to in the source,
            or `()` where nobody asked.
    """

    layers: tuple
    memory: tuple
    memory_mask: object
    lineage: object
    position: object
    attention: object = ()

    def extended(self, capacity):
        """Makes room for more steps; what was written stays.

        Args:
            capacity: Steps that the new cache has room for.

        Returns:
            `DecodingCache`.
        """
        beams = self.lineage.shape[1]
        more = capacity * beams - ops.shape(self.lineage)[2]

        return self._replace(
            layers=tuple(each.grow(more) for each in self.layers),
            lineage=ops.pad(self.lineage, ((0, 0), (0, 0), (0, more))),
        )

    def reorder(self, parents):
        """Lets each hypothesis go on from another one of the same sentence.

        Args:
            parents: Integer `(batch, beams)`: the hypothesis that each one now continues.

        Returns:
            `DecodingCache`.
        """
        lineage = ops.take_along_axis(self.lineage, ops.expand_dims(parents, 2), axis=1)
        return self._replace(lineage=lineage)


def mean_of_heads(attention, heads=None):
    """From `(batch, heads, query, key)` to the mean over some heads, float32.

    Args:
        attention: Float `(batch, heads, query, key)`.
        heads: Tuple of integers; all heads by default.

    Returns:
        Float32 `(batch, query, key)`.
    """
    attention = ops.cast(attention, "float32")
    if heads is None:
        return ops.mean(attention, axis=1)
    return sum(attention[:, head] for head in heads) / len(heads)
