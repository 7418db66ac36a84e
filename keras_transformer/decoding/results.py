"""Results of a search: hypotheses as arrays, and their scores."""

from typing import NamedTuple

import numpy as np
from keras import KerasTensor, ops

from keras_transformer.decoding import options
from keras_transformer.layers import masks

# Below any log-probability that a search can reach, and finite: `-inf - -inf` would be NaN.
NEG_INF = -1e30


class Hypotheses(NamedTuple):
    """Hypotheses of each sentence: best first, or samples in order.

    Attributes:
        ids: Int32 `(batch, n_best, max_length)`, without BOS, with EOS if it ends, then padding.
        log_probabilities: Float32 `(batch, n_best)`, the model's log-probabilities, summed over all
            tokens, in nats; constraints and temperature do not change them.
        scores: Float32 `(batch, n_best)`, ranking score: log-probability / length penalty, without
            forced tokens. In beam search it includes a logit bias.
        token_log_probabilities: Float32 `(batch, n_best, max_length)`, 0 after the end.
        continuation_log_probabilities: Float32 `(batch, n_best)`, of the tokens that follow forced
            tokens: a target prefix, or a language model's prompt.
        continuation_lengths: Int32 `(batch, n_best)`, the number of these tokens.
    """

    ids: np.ndarray | KerasTensor
    log_probabilities: np.ndarray | KerasTensor
    scores: np.ndarray | KerasTensor
    token_log_probabilities: np.ndarray | KerasTensor
    continuation_log_probabilities: np.ndarray | KerasTensor
    continuation_lengths: np.ndarray | KerasTensor


def continuation_of(ids, token_log_probabilities, forced_lengths):
    """Returns log-probability and number of the tokens after forced ones, `(batch, hypotheses)`.

    Args:
        ids: Int32 `(batch, hypotheses, capacity)`, padded with 0.
        token_log_probabilities: Float32 of the same shape.
        forced_lengths: Int32 `(batch,)`, numbers of forced tokens.
    """
    indices = ops.arange(ops.shape(ids)[2], dtype="int32")
    follows = indices >= ops.expand_dims(forced_lengths, (1, 2))  # --> [batch, 1, capacity]
    log_probabilities = ops.sum(ops.where(follows, token_log_probabilities, 0.0), axis=2)
    lengths = ops.sum(ops.cast(follows & masks.padding_mask(ids), "int32"), axis=2)
    return log_probabilities, lengths


def length_penalty(length: int | np.ndarray | KerasTensor, exponent: float) -> KerasTensor:
    """Computes `options.length_penalty` in float32, of the shape of `length`."""
    return options.length_penalty(ops.cast(length, "float32"), exponent)


def score_of(
    totals: KerasTensor,
    lengths: KerasTensor,
    exponent: float,
    normalization: str = "gnmt",
    word_penalty: float | KerasTensor = 0.0,
) -> KerasTensor:
    """Computes scores of hypotheses, float32 in the shape that `totals` and `lengths` broadcast to.

    Args:
        totals: Float32, log-probabilities.
        lengths: Integers, numbers of tokens, including EOS.
        exponent: `length_penalty` of `DecodingOptions`.
        normalization: `length_normalization` of `DecodingOptions`.
        word_penalty: As in `DecodingOptions`.
    """
    lengths = ops.cast(lengths, "float32")
    if normalization != "gnmt":
        # A hypothesis without tokens has the score of its total.
        lengths = ops.maximum(lengths, 1.0)
    return options.hypothesis_score(totals, lengths, exponent, normalization, word_penalty)
