"""Teacher forcing: the log-probabilities of given targets, and their alignment to the source."""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_transformer.cache import mean_of_heads
from keras_transformer.config import BOS_ID, EOS_ID
from keras_transformer.decoding.compiled import Compiled
from keras_transformer.inputs import bucket, in_batches, length_buckets, pad, row_count


def score_targets(model: keras.Model, source_ids, target_ids, layer=-1, heads=None):
    """Scores targets in one pass, without a search; of a language model whole texts.

    Args:
        model: A model of `keras_transformer.models`.
        source_ids: Int32 `(batch, source)`, padded with 0.
        target_ids: Int32 `(batch, target)`: no beginning-of-sentence id; EOS, then padding.
        layer: As `attention_layer` in `DecodingOptions`, like `heads`.

    Returns:
        Log-probabilities of the target's tokens, float32 `(batch, target)`, not masked; and the
        alignment, float32 `(batch, target, source)`, of a model without attention `None`.
    """
    batch = ops.shape(target_ids)[0]
    begin = ops.full((batch, 1), BOS_ID, "int32")
    read = ops.concatenate([begin, target_ids[:, :-1]], axis=1)  # --> [batch, target]
    logits, attention = model.call_with_attention(source_ids, read)
    chosen = ops.take_along_axis(logits, ops.expand_dims(target_ids, 2), axis=2)[..., 0]
    alignment = mean_of_heads(attention[layer], heads) if attention else None
    return chosen - ops.logsumexp(logits, axis=2), alignment


class TeacherForcedScorer:
    """`score_targets`, compiled, over any number of pairs; with or without the alignment."""

    def __init__(self, model, layer, heads, alignment: bool, max_lengths, with_xla: bool = True):
        def run(source_ids, target_ids):
            scored = score_targets(model, source_ids, target_ids, layer, heads)
            return scored if alignment else scored[:1]

        self._run = Compiled(model, run, with_xla=with_xla)
        self._buckets = [length_buckets(each) for each in max_lengths]  # of source and target
        self._continues_source = getattr(model, "continues_source", False)

    @property
    def compilations(self) -> int:
        """Programs that XLA has compiled for it."""
        return self._run.compilations

    def run(self, pairs: Sequence[tuple[list, list]], batch_size: int) -> list[tuple]:
        """Scores pairs of source and target ids, including EOS, in batches of similar length.

        For each pair: a list of log-probabilities, and the alignment `(target, source)` or `None`.
        A language model reads a source and its target as one text, and gives the target's.
        """
        starts = [0] * len(pairs)
        if self._continues_source:
            prompts = [[id for id in source if id != EOS_ID] for source, _ in pairs]
            starts = [len(prompt) for prompt in prompts]
            texts = zip(prompts, (target for _, target in pairs), strict=True)
            pairs = [([], prompt + list(target)) for prompt, target in texts]
        rows = row_count(min(len(pairs), batch_size))

        def score(places):
            sides = zip(*(pairs[place] for place in places), strict=True)
            padded = [
                pad(ids, rows, bucket(max(map(len, ids)), buckets))
                for ids, buckets in zip(sides, self._buckets, strict=True)
            ]
            by_token, *attention = (np.asarray(each) for each in self._run(*padded))
            for row, place in enumerate(places):
                source, target = map(len, pairs[place])
                aligned = attention[0][row, :target, :source].copy() if attention else None
                yield by_token[row, starts[place] : target].tolist(), aligned

        lengths = [(len(source), len(target)) for source, target in pairs]
        return in_batches(lengths, batch_size, [score])
