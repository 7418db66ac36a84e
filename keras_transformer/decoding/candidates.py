"""Searches among the candidates of each sentence, instead of the whole vocabulary.

Inside the search a token is its index in the list of a batch, the union of the sentences' lists.
An index behind the list is a token that is not a candidate: a model may read it, but no search
chooses it.

Logits of tokens that are not candidates of a sentence are `NEG_INF`: so a sentence has the same
translation in every batch, and log-probabilities are over its candidates.
"""

from typing import NamedTuple

import numpy as np
from keras import KerasTensor, ops

from keras_transformer.base.impossible import NEG_INF
from keras_transformer.decoding.results import Hypotheses


class Candidates(NamedTuple):
    """Candidates of the sentences of a batch.

    Attributes:
        ids: Int32 `(count,)`, the union of all sentences' candidates in rising order, padded with
            0. It begins with the ids of padding, BOS, EOS and `<unk>`, whose indices are their ids.
        mask: Bool `(batch, count)`: True for the candidates of a sentence.
    """

    ids: np.ndarray | KerasTensor
    mask: np.ndarray | KerasTensor

    def of_size(self, count: int) -> "Candidates":
        """Returns the candidates with a static size, which a traced function does not know."""
        return Candidates(ops.reshape(self.ids, (count,)), ops.reshape(self.mask, (-1, count)))

    def indices(self, ids: KerasTensor) -> KerasTensor:
        """Returns the indices of ids, integers of any shape; padding stays padding.

        The index of an id that is not a candidate is the list's size plus the id.
        """
        count = self.ids.shape[0]
        is_equal = ops.equal(ops.expand_dims(ids, -1), self.ids)
        indices = ops.min(ops.where(is_equal, ops.arange(count, dtype="int32"), count), axis=-1)
        return ops.where(indices < count, indices, count + ops.cast(ids, "int32"))

    def step(self, step):
        """Returns a step from indices to logits of the candidates.

        `step` takes ids and returns logits `(batch, beams, count)`.
        """

        def step_of_indices(indices, cache):
            logits, cache = step(self.at(indices), cache)
            logits = ops.cast(logits, "float32")
            return ops.where(ops.expand_dims(self.mask, 1), logits, NEG_INF), cache

        return step_of_indices

    def limited(self, step):
        """Returns a step from ids to logits of the candidates, of one that computes all logits."""

        def step_of_candidates(ids, cache):
            logits, cache = step(ids, cache)
            return ops.take(logits, self.ids, axis=-1), cache

        return step_of_candidates

    def at(self, indices: KerasTensor) -> KerasTensor:
        """Returns the ids at the indices of `indices`, of any shape."""
        count = self.ids.shape[0]
        listed = ops.take(self.ids, ops.minimum(indices, count - 1))
        return ops.where(indices < count, listed, indices - count)

    def bias(self, logit_bias: KerasTensor | None, forbidden_ids=()) -> KerasTensor | None:
        """Returns the bias of each candidate, float32 `(count,)`; None without a bias.

        `forbidden_ids` are banned, like those whose bias is below `NEG_INF / 2`.
        """
        if logit_bias is None and not forbidden_ids:
            return None
        bias = ops.zeros(self.ids.shape, "float32")
        if logit_bias is not None:
            bias = ops.take(ops.convert_to_tensor(logit_bias, "float32"), self.ids)
        for forbidden in forbidden_ids:
            bias = ops.where(self.ids == forbidden, NEG_INF, bias)
        return bias

    def hypotheses(self, hypotheses: Hypotheses) -> Hypotheses:
        """Returns hypotheses with ids instead of indices."""
        return hypotheses._replace(ids=self.at(hypotheses.ids))
