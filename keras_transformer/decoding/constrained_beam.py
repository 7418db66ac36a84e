"""Beam search for given phrases: lexically constrained decoding."""

from typing import NamedTuple

from keras import KerasTensor, ops

from keras_transformer.decoding.beam import Beam, BeamState, Extensions
from keras_transformer.decoding.results import NEG_INF
from keras_transformer.decoding.selection import largest_of_rows, take_rows
from keras_transformer.ids import PAD_ID
from keras_transformer.layers import masks


class ConstrainedBeam(Beam):
    """Beam search in which no hypothesis ends without all phrases of its sentence.

    The places of the beam are shared among hypotheses by the phrase tokens that they have (dynamic
    beam allocation; see `Phrases`). A hypothesis that may be better without the phrases keeps a
    sentence going, up to its limit. Where none ends in time, the result is the best one of those
    that have the most phrase tokens, without an end: all phrases, if the limit has room for them
    and no other constraint forbids them. A sentence without phrases is searched as by `Beam`.

    It needs `Constraints.phrases`. The arguments are those of `Beam`.
    """

    def start(self, constraints, capacity: int) -> BeamState:
        progress = Phrases(constraints.phrases).start(self.beams)
        return super().start(constraints, capacity)._replace(progress=progress)

    def extensions(self, allowed, offsets, beam: BeamState, constraints, maxima) -> Extensions:
        """The `2 · beam_size` first extensions of each sentence, in the order of `by_bank`."""
        phrases, end_id = Phrases(constraints.phrases), constraints.end_id
        found = phrases.extensions(allowed, offsets, beam.progress, 2 * self.beams, end_id)
        return Extensions(*found)

    def returned(self, beam: BeamState, constraints):
        """Of the unfinished hypotheses those that no other one has more phrase tokens than."""
        exist, phrases = super().returned(beam, constraints), Phrases(constraints.phrases)
        met = ops.where(exist, phrases.met_tokens(beam.progress), -1)  # --> [batch, beams]
        has_ended = beam.finished.scores[:, :1] > NEG_INF / 2
        needed = ops.where(has_ended, phrases.num_tokens, ops.max(met, axis=1, keepdims=True))
        return exist & (met == needed)


class Progress(NamedTuple):
    """Parts of the phrases that hypotheses have."""

    begun: KerasTensor  # bool [rows, count, phrases, length]: the last tokens are the first k + 1
    times: KerasTensor  # int32 [rows, count, phrases]: occurrences so far


class Phrases:
    """Follows phrases through hypotheses as automata, one token of all of them at a time.

    A phrase is met where its tokens stand in a row, anywhere, a forced beginning included: phrases
    may overlap, and one inside another is met with it. A phrase that is listed n times is met by n
    occurrences.

    Args:
        ids: Int32 `(rows, phrases, length)`, padded with 0; a phrase of padding is none.

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
        self._wanted = ops.where(self._lengths > 0, listed, 0)

    def start(self, hypotheses: int) -> Progress:
        """The `Progress` of hypotheses without a token."""
        rows, count, length = ops.shape(self._ids)
        shape = rows, hypotheses, count
        return Progress(ops.zeros((*shape, length), "bool"), ops.zeros(shape, "int32"))

    def extensions(self, allowed, offsets, progress, count: int, end_id: int) -> tuple:
        """The `count` first extensions of each row, in the order of `by_bank`.

        Candidates are the `count` best tokens of each hypothesis, the end only where all phrases
        are met, and the next token of each phrase. A bank holds as many met tokens.

        Args:
            allowed: Float32 `(rows, hypotheses, vocabulary)`, `NEG_INF` for what is forbidden;
                `allowed + offsets` is what extensions rank by.
            offsets: Float32 `(rows, hypotheses)`.

        Returns:
            Tokens, hypotheses that they extend, totals and `Progress`, `(rows, count, …)` each.
        """
        hypotheses, vocabulary = allowed.shape[1:]
        is_met = self.met_tokens(progress) == self.num_tokens  # --> [rows, hypotheses]
        ids = ops.arange(vocabulary, dtype="int32")
        allowed = ops.where(ops.expand_dims(is_met, 2) | (ids != end_id), allowed, NEG_INF)
        by_one = ops.reshape(allowed, (-1, 1, vocabulary))
        _, _, best = largest_of_rows(by_one, ops.zeros_like(by_one[..., 0]), count)
        best = ops.reshape(ops.cast(best, "int32"), (-1, hypotheses, best.shape[1]))
        wanted = self.next_tokens(progress)  # --> [rows, hypotheses, phrases]
        tokens = ops.concatenate([best, wanted], axis=2)
        # A token counts once: all but the first of equal ones do not exist.
        equal = ops.expand_dims(tokens, 3) == ops.expand_dims(tokens, 2)
        places = ops.arange(tokens.shape[2], dtype="int32")
        earlier = ops.expand_dims(places, 0) < ops.expand_dims(places, 1)
        is_new = ~ops.any(equal & earlier, axis=3) & (tokens != PAD_ID)
        totals = ops.take_along_axis(allowed, tokens, axis=2) + ops.expand_dims(offsets, 2)
        totals = ops.where(is_new, ops.maximum(totals, NEG_INF), NEG_INF)

        parents = ops.expand_dims(ops.arange(hypotheses, dtype="int32"), 1)
        extensions = (
            ops.reshape(array, (-1, hypotheses * tokens.shape[2]))
            for array in (tokens, ops.broadcast_to(parents, ops.shape(tokens)), totals)
        )
        tokens, parents, totals = extensions  # --> [rows, extensions]
        progress = Progress(*(take_rows(array, parents) for array in progress))
        progress = self.extended(progress, tokens)
        chosen = by_bank(totals, self.met_tokens(progress), min(count, totals.shape[1]))
        arrays = tokens, parents, totals, *progress
        tokens, parents, totals, *progress = (take_rows(array, chosen) for array in arrays)
        return tokens, parents, totals, Progress(*progress)

    def extended(self, progress: Progress, tokens: KerasTensor) -> Progress:
        """The `Progress` with one more token each, int32 `(rows, count)`."""
        begun, times = progress
        before = ops.concatenate([ops.ones_like(begun[..., :1]), begun[..., :-1]], axis=3)
        fits = ops.expand_dims(tokens, (2, 3)) == ops.expand_dims(self._ids, 1)
        begun = before & fits & ops.expand_dims(self._real, 1)
        ends = ops.any(begun & ops.expand_dims(self._last, 1), axis=3)
        return Progress(begun, times + ops.cast(ends, "int32"))

    def met_tokens(self, progress: Progress) -> KerasTensor:
        """Tokens of the met phrases and of the longest one under way, int32 `(rows, count)`.

        Equal to `num_tokens` where all are met, and below it elsewhere.
        """
        unmet, under_way = self._unmet(progress)
        lengths = ops.where(unmet, 0, ops.expand_dims(self._lengths, 1))
        return ops.sum(lengths, axis=2) + ops.max(ops.where(unmet, under_way, 0), axis=2)

    def next_tokens(self, progress: Progress) -> KerasTensor:
        """The next token of each phrase, int32 `(rows, count, phrases)`; PAD where it is met."""
        unmet, under_way = self._unmet(progress)
        places = ops.arange(ops.shape(self._ids)[2], dtype="int32")
        chosen = (places == ops.expand_dims(under_way, 3)) & ops.expand_dims(unmet, 3)
        return ops.sum(ops.where(chosen, ops.expand_dims(self._ids, 1), PAD_ID), axis=3)

    def _unmet(self, progress):
        """Phrases that are not met, and their tokens at the end; `(rows, count, phrases)` each."""
        begun = progress.begun & ~ops.expand_dims(self._last, 1)
        lengths = ops.arange(1, ops.shape(begun)[3] + 1, dtype="int32")
        under_way = ops.max(ops.where(begun, lengths, 0), axis=3)
        return progress.times < ops.expand_dims(self._wanted, 1), under_way


def by_bank(totals: KerasTensor, banks: KerasTensor, count: int) -> KerasTensor:
    """The first `count` extensions of each row, the banks taking turns: int32 `(rows, count)`.

    The best one of each bank, the highest bank first, then the second best ones, …: any number of
    them is shared equally among the banks that have as many, and a row with one bank is in the
    order of its totals. Those with a total of `NEG_INF` are last.

    Args:
        totals: Float32 `(rows, extensions)`.
        banks: Int32 `(rows, extensions)`.
    """
    places = ops.arange(totals.shape[1], dtype="int32")
    mine, other = ops.expand_dims(totals, 2), ops.expand_dims(totals, 1)
    ahead = ops.expand_dims(places, 0) < ops.expand_dims(places, 1)  # of equal ones the first
    ahead = (other > mine) | ((other == mine) & ahead)
    ahead = ahead & (ops.expand_dims(banks, 2) == ops.expand_dims(banks, 1))
    rank = ops.sum(ops.cast(ahead, "int32"), axis=2)  # --> [rows, extensions]
    turn = ops.cast(rank * (ops.max(banks) + 1) - banks, "float32")
    return ops.top_k(ops.where(totals > NEG_INF / 2, -turn, NEG_INF), count)[1]
