"""The model over given targets: log-probabilities of their tokens, and the alignment."""

import numpy as np
from keras import ops

from keras_transformer.config import BOS_ID
from keras_transformer.decoding.compiled import Compiled
from keras_transformer.decoding.shapes import bucket, length_buckets, pad, row_count
from keras_transformer.models.decoding_cache import mean_of_heads


def forced_targets(model, source_ids, target_ids, layer=-1, heads=None):
    """Scores targets in one pass, without a search.

    Args:
        model: `Transformer`.
        source_ids: Int32 `(batch, source)`, padded with 0.
        target_ids: Int32 `(batch, target)`: no beginning-of-sentence id; the end, then padding.
        layer: The decoder block that the alignment is taken from.
        heads: A tuple of the heads whose mean it is; all by default.

    Returns:
        Log-probabilities of the target's tokens, float32 `(batch, target)`, not masked; and the
        alignment, float32 `(batch, target, source)`.
    """
    batch = ops.shape(target_ids)[0]
    begin = ops.full((batch, 1), BOS_ID, "int32")
    read = ops.concatenate([begin, target_ids[:, :-1]], axis=1)
    logits, attention = model.call_with_attention(source_ids, read)
    chosen = ops.take_along_axis(logits, ops.expand_dims(target_ids, 2), axis=2)[..., 0]
    return chosen - ops.logsumexp(logits, axis=2), mean_of_heads(attention[layer], heads)


class ForcedTargets:
    """`forced_targets`, compiled, over any number of pairs.

    Args:
        model: `Transformer`.
        layer: As in `forced_targets`.
        heads: As in `forced_targets`.
        alignment: Whether alignments are wanted.
        max_source_length: Longest source, tokens.
        max_target_length: Longest target, tokens.
        with_xla: As for `Compiled`.
    """

    def __init__(
        self,
        model,
        layer,
        heads,
        alignment,
        max_source_length,
        max_target_length,
        with_xla=True,
    ):
        def run(source_ids, target_ids):
            scored = forced_targets(model, source_ids, target_ids, layer, heads)
            return scored if alignment else scored[:1]

        self._run = Compiled(model, run, with_xla=with_xla)
        self._buckets = length_buckets(max_source_length), length_buckets(max_target_length)

    @property
    def compilations(self):
        """Programs that XLA has compiled for it."""
        return self._run.compilations

    def run(self, pairs, batch_size):
        """Scores pairs in batches of similar length.

        Args:
            pairs: A list of (source ids, target ids), lists of integers; no beginning of the
                sentence, but its end.
            batch_size: Most pairs in one call.

        Returns:
            For each pair, in order: a list of log-probabilities, and the alignment, a float32
            array `(target, source)`, or `None`.
        """
        results = [([], None)] * len(pairs)
        order = sorted(range(len(pairs)), key=lambda i: tuple(map(len, pairs[i])), reverse=True)
        rows = row_count(min(max(len(pairs), 1), batch_size))
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            sides = zip(*(pairs[place] for place in places), strict=True)
            padded = [
                pad(ids, rows, bucket(max(map(len, ids)), buckets))
                for ids, buckets in zip(sides, self._buckets, strict=True)
            ]
            by_token, *attention = (np.asarray(each) for each in self._run(*padded))
            for row, place in enumerate(places):
                source, target = map(len, pairs[place])
                aligned = attention[0][row, :target, :source].copy() if attention else None
                results[place] = (by_token[row, :target].tolist(), aligned)
        return results
