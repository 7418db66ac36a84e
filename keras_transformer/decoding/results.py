"""Results of a search: hypotheses as arrays, and the penalties in their scores."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from keras import KerasTensor, ops

from keras_transformer.translation import Translation, translation_of

# Below any log-probability that a search can reach, and finite: `-inf - -inf` would be NaN.
IMPOSSIBLE = -1e30


class Hypotheses(NamedTuple):
    """The hypotheses of each sentence: best first, of samples in the order of drawing.

    Attributes:
        ids: Int32 `(batch, n_best, max_length)`: no BOS; EOS where there is one, then padding.
        log_probabilities: Float32 `(batch, n_best)`, the model's own, summed over all tokens, in
            nats: neither constraints nor a temperature change them.
        scores: Float32 `(batch, n_best)`, what the strategy ranks by: the log-probability over
            the length penalty, with what else the strategy adds.
        token_log_probabilities: Float32 `(batch, n_best, max_length)`, 0 after the end.
    """

    ids: np.ndarray | KerasTensor
    log_probabilities: np.ndarray | KerasTensor
    scores: np.ndarray | KerasTensor
    token_log_probabilities: np.ndarray | KerasTensor


def length_penalty(length: int | np.ndarray | KerasTensor, exponent: float) -> KerasTensor:
    """`((5 + length) / 6)^exponent`: what the log-probability of that many tokens is divided by.

    Tokens include EOS; larger exponents favour longer hypotheses. Float32, the shape of `length`.
    Reference: Wu et al. 2016, equation 14 (arXiv:1609.08144).
    """
    return ops.power((5.0 + ops.cast(length, "float32")) / 6.0, exponent)


def coverage_penalty(coverage: np.ndarray | KerasTensor, source_mask: np.ndarray | KerasTensor):
    """`Σ log(min(coverage, 1))` over the source: 0 where all was attended to, else below.

    From float32 `(…, source)`, the attention to each source token summed over the target, and a
    bool mask that broadcasts to it, True = a real token, to float32 `(…)`.
    Reference: Wu et al. 2016, equation 14 (arXiv:1609.08144).
    """
    # What was never attended to would give -inf, whatever the weight.
    terms = ops.log(ops.clip(coverage, 1e-6, 1.0))
    return ops.sum(ops.where(source_mask, terms, 0.0), axis=-1)


def best_translation(hypotheses: Hypotheses, source: Sequence[int], tokenizers) -> Translation:
    """The best of one sentence's `Hypotheses`, arrays without the batch's axis, with the others."""
    _, _, scores, by_token = hypotheses
    # Without the padding behind.
    ids = [row[: np.max(np.flatnonzero(row), initial=-1) + 1].tolist() for row in hypotheses.ids]
    texts = tokenizers[1].detokenize(ids)
    best, *others = (
        translation_of(text, float(score), each[: len(row)].tolist(), row, source, tokenizers)
        for text, score, each, row in zip(texts, scores, by_token, ids, strict=True)
    )
    # Where fewer hypotheses exist than were asked for, the last places are empty.
    others = [each for each in others if each.score > IMPOSSIBLE / 2]
    return dataclasses.replace(best, alternatives=tuple(others))
