"""Lexically constrained decoding: beam search with phrases that translations must contain."""

from typing import NamedTuple

from keras import KerasTensor, ops

from keras_transformer.base.ids import PAD_ID
from keras_transformer.base.impossible import NEG_INF
from keras_transformer.decoding.beam import Beam, BeamState, Extensions
from keras_transformer.decoding.selection import largest_of_rows, take_rows
from keras_transformer.layers import masks


class ConstrainedBeam(Beam):
    """Beam search in which no hypothesis ends without all phrases of its sentence.

    The places of the beam are divided among hypotheses by their number of phrase tokens (dynamic
    beam allocation; see `Phrases`). An unfinished hypothesis that may score better keeps a sentence
    running, up to its limit. If no hypothesis ends in time, the results are the best hypotheses
    with the most phrase tokens, without an end. They have all phrases if the limit is large enough
    and no other constraint forbids it. A sentence without phrases is searched as by `Beam`.

    It needs `Constraints.phrases`, and has the arguments of `Beam`.
    """

    def start(self, constraints, capacity: int) -> BeamState:
        progress = Phrases(constraints.phrases).start(self.beams)
        return super().start(constraints, capacity)._replace(progress=progress)

    def extensions(self, allowed, offsets, beam: BeamState, constraints, maxima) -> Extensions:
        """Returns the first `2 · beam_size` extensions of each sentence, in `by_bank`'s order."""
        phrases, end_id = Phrases(constraints.phrases), constraints.end_id
        return phrases.extensions(allowed, offsets, beam.progress, 2 * self.beams, end_id)

    def returned(self, beam: BeamState, constraints):
        """Returns True for the unfinished hypotheses with the most phrase tokens."""
        is_live, phrases = super().returned(beam, constraints), Phrases(constraints.phrases)
        num_met = ops.where(is_live, phrases.met_tokens(beam.progress), -1)  # --> [batch, beams]
        has_ended = beam.finished.is_filled[:, :1]
        num_needed = ops.where(
            has_ended, phrases.num_tokens, ops.max(num_met, axis=1, keepdims=True)
        )
        return is_live & (num_met == num_needed)


class Progress(NamedTuple):
    """Progress of hypotheses through the phrases."""

    # bool [rows, count, phrases, length]: the hypothesis ends with the phrase's first k + 1 tokens
    matched: KerasTensor
    times: KerasTensor  # int32 [rows, count, phrases]: occurrences so far


class Phrases:
    """Follows phrases through hypotheses as automata, one token at a time for all hypotheses.

    A phrase is met if its tokens occur in a row anywhere, also in a target prefix. Phrases may
    overlap, and a phrase inside another phrase is met with it. A phrase that is listed n times must
    occur n times.

    Args:
        ids: Int32 `(rows, phrases, length)`, padded with 0; a phrase of only padding is ignored.

    References: Post and Vilar 2018 (arXiv:1804.06609) for the banks; Hu et al. 2019 (N19-1090) for
    the search of many sentences at once; Baeza-Yates and Gonnet 1992 for the automata.
    """

    def __init__(self, ids: KerasTensor):
        self._ids, self._real = ids, masks.padding_mask(ids)
        self._lengths = ops.sum(ops.cast(self._real, "int32"), axis=2)  # --> [rows, phrases]
        _, count, length = ops.shape(ids)
        self._last = ops.arange(length, dtype="int32") == ops.expand_dims(self._lengths - 1, 2)
        self.num_tokens = ops.sum(self._lengths, axis=1, keepdims=True)  # --> [rows, 1]
        equal = ops.all(ops.expand_dims(ids, 2) == ops.expand_dims(ids, 1), axis=3)
        order = ops.arange(count, dtype="int32")
        listed = equal & (ops.expand_dims(order, 0) <= ops.expand_dims(order, 1))
        listed = ops.sum(ops.cast(listed, "int32"), axis=2)  # --> [rows, phrases]: so far
        self._required_times = ops.where(self._lengths > 0, listed, 0)

    def start(self, hypotheses: int) -> Progress:
        """Makes the `Progress` of hypotheses without tokens."""
        rows, count, length = ops.shape(self._ids)
        shape = rows, hypotheses, count
        return Progress(ops.zeros((*shape, length), "bool"), ops.zeros(shape, "int32"))

    def extensions(self, allowed, offsets, progress, count: int, end_id: int) -> Extensions:
        """Returns the first `count` extensions of each row, in the order of `by_bank`.

        Candidates are the `count` best tokens of each hypothesis, and the next token of each
        phrase; the end only if all phrases are met. A bank is the number of met tokens.

        Args:
            allowed: Float32 `(rows, hypotheses, vocabulary)`, `NEG_INF` for forbidden tokens;
                extensions rank by `allowed + offsets`.
            offsets: Float32 `(rows, hypotheses)`.
            progress: `Progress` of the hypotheses.
            count: Number of extensions.
            end_id: Id that ends a hypothesis.

        Returns:
            `Extensions`, tensors `(rows, count, …)`.
        """
        hypotheses, vocabulary = allowed.shape[1:]
        is_met = self.met_tokens(progress) == self.num_tokens  # --> [rows, hypotheses]
        ids = ops.arange(vocabulary, dtype="int32")
        allowed = ops.where(ops.expand_dims(is_met, 2) | (ids != end_id), allowed, NEG_INF)
        by_one = ops.reshape(allowed, (-1, 1, vocabulary))
        _, _, best = largest_of_rows(by_one, ops.zeros_like(by_one[..., 0]), count)
        best = ops.reshape(ops.cast(best, "int32"), (-1, hypotheses, best.shape[1]))
        next_tokens = self.next_tokens(progress)  # --> [rows, hypotheses, phrases]
        tokens = ops.concatenate([best, next_tokens], axis=2)
        # A token counts once: only the first of equal tokens exists.
        equal = ops.expand_dims(tokens, 3) == ops.expand_dims(tokens, 2)
        indices = ops.arange(tokens.shape[2], dtype="int32")
        earlier = ops.expand_dims(indices, 0) < ops.expand_dims(indices, 1)
        is_new = ~ops.any(equal & earlier, axis=3) & (tokens != PAD_ID)
        totals = ops.take_along_axis(allowed, tokens, axis=2) + ops.expand_dims(offsets, 2)
        totals = ops.where(is_new, ops.maximum(totals, NEG_INF), NEG_INF)

        parents = ops.expand_dims(ops.arange(hypotheses, dtype="int32"), 1)
        tokens, parents, totals = (
            ops.reshape(array, (-1, hypotheses * tokens.shape[2]))
            for array in (tokens, ops.broadcast_to(parents, ops.shape(tokens)), totals)
        )  # --> [rows, extensions]
        progress = Progress(*(take_rows(array, parents) for array in progress))
        progress = self.extended(progress, tokens)
        order = by_bank(totals, self.met_tokens(progress), min(count, totals.shape[1]))
        return Extensions(tokens, parents, totals, progress).at(order)

    def extended(self, progress: Progress, tokens: KerasTensor) -> Progress:
        """Returns the `Progress` after one more token per hypothesis, int32 `(rows, count)`."""
        matched, times = progress
        matched_before = ops.concatenate(
            [ops.ones_like(matched[..., :1]), matched[..., :-1]], axis=3
        )
        fits = ops.expand_dims(tokens, (2, 3)) == ops.expand_dims(self._ids, 1)
        matched = matched_before & fits & ops.expand_dims(self._real, 1)
        ends = ops.any(matched & ops.expand_dims(self._last, 1), axis=3)
        return Progress(matched, times + ops.cast(ends, "int32"))

    def met_tokens(self, progress: Progress) -> KerasTensor:
        """Counts tokens of met phrases and of the longest partial match, int32 `(rows, count)`.

        The count is `num_tokens` if all phrases are met, and less otherwise.
        """
        unmet, under_way = self._unmet(progress)
        lengths = ops.where(unmet, 0, ops.expand_dims(self._lengths, 1))
        return ops.sum(lengths, axis=2) + ops.max(ops.where(unmet, under_way, 0), axis=2)

    def next_tokens(self, progress: Progress) -> KerasTensor:
        """Returns the next token of each phrase, int32 `(rows, count, phrases)`; PAD if met."""
        unmet, under_way = self._unmet(progress)
        indices = ops.arange(ops.shape(self._ids)[2], dtype="int32")
        is_next = (indices == ops.expand_dims(under_way, 3)) & ops.expand_dims(unmet, 3)
        return ops.sum(ops.where(is_next, ops.expand_dims(self._ids, 1), PAD_ID), axis=3)

    def _unmet(self, progress):
        """Returns which phrases are not met, and their matched tokens, `(rows, count, phrases)`."""
        unfinished = progress.matched & ~ops.expand_dims(self._last, 1)
        lengths = ops.arange(1, ops.shape(unfinished)[3] + 1, dtype="int32")
        under_way = ops.max(ops.where(unfinished, lengths, 0), axis=3)
        return progress.times < ops.expand_dims(self._required_times, 1), under_way


def by_bank(totals: KerasTensor, banks: KerasTensor, count: int) -> KerasTensor:
    """Returns the first `count` extensions of each row, banks interleaved: int32 `(rows, count)`.

    The order is: the best extension of each bank, highest bank first, then the second best of each
    bank, …. So banks with enough extensions get equal numbers of places. A row with one bank is in
    the order of its totals. Extensions with a total of `NEG_INF` are last.

    Args:
        totals: Float32 `(rows, extensions)`.
        banks: Int32 `(rows, extensions)`.
    """
    indices = ops.arange(totals.shape[1], dtype="int32")
    own_totals, other_totals = ops.expand_dims(totals, 2), ops.expand_dims(totals, 1)
    is_ahead = ops.expand_dims(indices, 0) < ops.expand_dims(indices, 1)  # of equal ones the first
    is_ahead = (other_totals > own_totals) | ((other_totals == own_totals) & is_ahead)
    is_ahead = is_ahead & (ops.expand_dims(banks, 2) == ops.expand_dims(banks, 1))
    rank = ops.sum(ops.cast(is_ahead, "int32"), axis=2)  # --> [rows, extensions]
    order = ops.cast(rank * (ops.max(banks) + 1) - banks, "float32")
    return ops.top_k(ops.where(totals > NEG_INF / 2, -order, NEG_INF), count)[1]
