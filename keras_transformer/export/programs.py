"""What XLA compiles in an export: searches, and the model over given targets."""

import functools

from keras import ops

from keras_transformer import masks
from keras_transformer.decoding import length_penalty, search
from keras_transformer.decoding.scoring import score_targets


class Programs:
    """Compiled functions of a model, each traced when it is first used, for all shapes.

    Those that search take ids, int32 `(rows, source)`, and give ids, int32 `(rows, hypotheses,
    target)`, scores and log-probabilities, float32 `(rows, hypotheses)`.

    Args:
        engine: `ModelEngine`.
        beam_size: Hypotheses that stay alive; 1 is greedy search.
        length_penalty: Exponent of the GNMT length penalty.
    """

    def __init__(self, engine, beam_size, length_penalty):
        self._model, self._max_length = engine.model, engine.max_target_length
        self._beam_size, self._length_penalty = beam_size, length_penalty

    def _search(self, source_ids, **options):
        found = search(
            self._model,
            source_ids,
            length_penalty=self._length_penalty,
            max_length=self._max_length,
            **options,
        )
        return found.ids, found.scores, found.log_probabilities

    @functools.cached_property
    def beam(self):
        """Beam search; gives all hypotheses."""
        if self._beam_size == 1:
            return self.greedy
        beams = dict(beam_size=self._beam_size, n_best=self._beam_size)
        return _compiled(lambda ids: self._search(ids, **beams), ("int32", 2))

    @functools.cached_property
    def greedy(self):
        """Greedy search."""
        return _compiled(lambda ids: self._search(ids, beam_size=1), ("int32", 2))

    @functools.cached_property
    def sample(self):
        """Sampling; takes seed, temperature, top-k and top-p of each sentence, too."""

        def sample(ids, seed, temperature, top_k, top_p):
            own = dict(seeds=seed, temperature=temperature, top_k=top_k, top_p=top_p)
            return self._search(ids, sampling=True, **own)

        each = (("int32", 1), ("float32", 1), ("int32", 1), ("float32", 1))
        return _compiled(sample, ("int32", 2), *each)

    @functools.cached_property
    def score(self):
        """From source and target ids to log-probabilities and scores, float32 `(rows,)`."""

        def score(source_ids, target_ids):
            by_token, _ = score_targets(self._model, source_ids, target_ids)
            real = masks.padding_mask(target_ids)
            log_probability = ops.sum(ops.where(real, by_token, 0.0), axis=1)
            lengths = ops.sum(ops.cast(real, "int32"), axis=1)
            return log_probability, log_probability / length_penalty(lengths, self._length_penalty)

        return _compiled(score, ("int32", 2), ("int32", 2))

    @functools.cached_property
    def align(self):
        """From source and target ids to the alignment, float32 `(rows, target, source)`."""

        def align(source_ids, target_ids):
            _, alignment = score_targets(self._model, source_ids, target_ids)
            real = ops.expand_dims(masks.padding_mask(target_ids), 2)
            return ops.where(real, alignment, 0.0)

        return _compiled(align, ("int32", 2), ("int32", 2))


def _compiled(function, *inputs):
    import tensorflow as tf

    specs = [tf.TensorSpec((None,) * axes, dtype) for dtype, axes in inputs]
    return tf.function(function, specs, jit_compile=True, autograph=False)
