"""Results of a search: hypotheses as arrays."""

from typing import NamedTuple

import numpy as np
from keras import KerasTensor, ops

from keras_transformer.layers import masks


class Hypotheses(NamedTuple):
    """Hypotheses of each sentence: best first, or samples in order.

    Attributes:
        ids: Int32 `(batch, n_best, max_length)`, without BOS, with EOS if it ends, then padding.
        log_probabilities: Float32 `(batch, n_best)`, the model's log-probabilities, summed over all
            tokens, in nats; constraints and temperature do not change them.
        scores: Float32 `(batch, n_best)`, scores of the `Ranking`, without forced tokens. In beam
            search they include a logit bias.
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
