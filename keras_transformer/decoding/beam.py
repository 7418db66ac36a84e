"""Beam search with finished hypotheses kept apart, in one group or in several that differ.

A group of a sentence is a row of the search: rows = batch · groups, beams = groups · width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from keras import KerasTensor, ops, tree

from keras_transformer.config import PAD_ID
from keras_transformer.decoding.loop import DecodingState, pad_tokens
from keras_transformer.decoding.phrases import Phrases, Progress
from keras_transformer.decoding.results import NEG_INF, Hypotheses, continuation_of
from keras_transformer.decoding.results import coverage_penalty as coverage_penalty_of
from keras_transformer.decoding.results import length_penalty as length_penalty_of
from keras_transformer.options import DecodingOptions
from keras_transformer.selection import largest_of_rows, take_rows


class _Finished(NamedTuple):
    ids: KerasTensor  # int32 [rows, width, capacity]
    token_log_probabilities: KerasTensor  # float32 [rows, width, capacity]
    scores: KerasTensor  # float32 [rows, width], best first; NEG_INF = an empty place

    def picked(self, others, chosen):
        """The `chosen` places of two lists of hypotheses, counted through both."""
        pairs = zip(self, others, strict=True)
        return _Finished(*(take_rows(ops.concatenate(pair, axis=1), chosen) for pair in pairs))


class _BeamState(NamedTuple):
    totals: KerasTensor  # float32 [rows, width]: what alive hypotheses are ranked by
    finished: _Finished
    coverage: KerasTensor | tuple[()]  # float32 [rows, width, source], or ()
    progress: Progress | tuple[()]  # through the phrases, or ()

    def extended(self, more):
        *by_token, scores = self.finished
        by_token = (pad_tokens(each, more) for each in by_token)
        return self._replace(finished=_Finished(*by_token, scores))


class _Extensions(NamedTuple):
    """Hypotheses with one token more, best first, `[rows, count]` each."""

    tokens: KerasTensor  # int32
    parents: KerasTensor  # int32: the hypothesis of the row that each one extends
    totals: KerasTensor  # float32: what they are ranked by; NEG_INF = there is none
    progress: Progress | tuple[()] = ()  # through the phrases

    @property
    def exist(self):
        return self.totals > NEG_INF / 2

    def unfinished(self, count, end_id):
        """The places of the first `count` that do not end, and their totals."""
        going_on = ops.cast(self.exist & (self.tokens != end_id), "int32")
        order = ops.arange(going_on.shape[1], dtype="int32")
        _, kept = ops.top_k(ops.cast(going_on * 4 * count - order, "float32"), count)
        totals = ops.where(take_rows(going_on, kept) > 0, take_rows(self.totals, kept), NEG_INF)
        return kept, totals  # --> [rows, count] each; a total of NEG_INF is an empty place


class Beam:
    """Keeps the `beam_size` most probable unfinished hypotheses of each sentence.

    Of the extensions of all hypotheses, the best `beam_size` count. Those that end leave the beam
    for a list of finished hypotheses, where their score (log-probability over length penalty, both
    of what follows the forced tokens, and the coverage penalty) is final, and the next best ones
    that do not end take their places. A sentence stops when no unfinished hypothesis can still
    enter the first `n_best` places of that list: log-probabilities only fall, no hypothesis grows
    past the sentence's limit, and the coverage penalty is never above 0, so an unfinished one
    scores at most its present log-probability over the penalty of the limit. A sentence that
    stopped is frozen.

    A logit bias takes part in the ranking and not in the log-probabilities that are returned.

    With `Constraints.phrases` the places of the beam are shared among hypotheses by the phrase
    tokens that they have (dynamic beam allocation; see `phrases.Phrases`), and none ends without
    all phrases. One that may be better without them keeps a sentence going, up to its limit. Where
    none ends in time, the result is the best one of those that have the most phrase tokens, without
    an end: all phrases, if the limit has room for them and no other constraint forbids them.

    Args:
        beam_size: As in `DecodingOptions`, like `n_best` and the penalties (or traced scalars).
        attention: From the model's cache to the last step's attention to the source, float32
            `(batch, beams, source)`; without it there is no coverage penalty.
        source_mask: Bool `(batch, source)`, for the coverage penalty.
        num_groups: Groups of `beam_size / num_groups` hypotheses. A group takes
            `diversity_penalty` off the log-probability of a token for each hypothesis of an
            earlier group that just chose it; that decides what is kept, and is in no score. A
            hypothesis that ends in an earlier group, too, enters no later group's list.

    References: Wu et al. 2016, section 7 (arXiv:1609.08144), the penalties and the search;
    Vijayakumar et al. 2016 (arXiv:1610.02424), the groups.
    """

    def __init__(
        self,
        beam_size: int,
        length_penalty: float | KerasTensor = DecodingOptions.length_penalty,
        n_best: int = DecodingOptions.n_best,
        coverage_penalty: float | KerasTensor = DecodingOptions.coverage_penalty,
        attention: Callable[[Any], KerasTensor] | None = None,
        source_mask: KerasTensor | None = None,
        num_groups: int = DecodingOptions.num_groups,
        diversity_penalty: float | KerasTensor = DecodingOptions.diversity_penalty,
    ):
        self.beams, self.n_best = beam_size, n_best
        self.num_groups, self.width = num_groups, beam_size // num_groups
        self.length_penalty, self.coverage_penalty = length_penalty, coverage_penalty
        self.attention, self.source_mask = attention, source_mask
        self.diversity_penalty = diversity_penalty

    def start(self, constraints, capacity: int) -> _BeamState:
        shape = (ops.shape(constraints.max_lengths)[0], self.width)
        empty = _Finished(
            ops.full((*shape, capacity), PAD_ID, "int32"),
            ops.zeros((*shape, capacity), "float32"),
            ops.full(shape, NEG_INF, "float32"),
        )
        # All hypotheses of a group begin alike: only its first may be extended, or each would
        # be found `width` times.
        first = ops.arange(self.width, dtype="int32") == 0
        totals = ops.broadcast_to(ops.where(first, 0.0, NEG_INF), shape)
        coverage = () if self.attention is None else (*shape, ops.shape(self.source_mask)[1])
        coverage = coverage and ops.zeros(coverage, "float32")
        phrases = constraints.phrases
        progress = () if phrases is None else Phrases(phrases).start(self.width)
        return _BeamState(totals, empty, coverage, progress)

    def choose(self, state: DecodingState, logits, allowed, constraints):
        end_id, forced = constraints.end_id, constraints.forced_lengths  # --> [rows]
        running, beam = state.running[:, :1], state.strategy_state  # --> [rows, 1]
        log_sums = ops.logsumexp(logits, axis=-1)  # --> [rows, width]
        best = self._extensions(allowed, beam, log_sums, running, constraints)
        # Forced tokens add nothing to the total: it ranks the continuation alone.
        free = ops.expand_dims(state.position >= forced, 1) | ~best.exist
        best = best._replace(totals=ops.where(free, best.totals, 0.0))
        tokens, parents, *_ = best  # --> [rows, 2 * width]
        gained = _value_at(logits, parents, tokens) - take_rows(log_sums, parents)
        gained = ops.where(best.exist, gained, 0.0)  # --> [rows, 2 * width]
        coverage = beam.coverage
        if self.attention is not None:  # --> [rows, width, source]
            coverage = coverage + self._of_groups(self.attention(state.cache))
        position = state.position + 1
        lengths = ops.maximum(position - forced, 0)  # --> [rows]: of what follows
        finished = self._finished(state, best, gained, coverage, end_id, lengths)

        kept, totals = best.unfinished(self.width, end_id)  # --> [rows, width]
        tokens, parents, gained = (take_rows(each, kept) for each in (tokens, parents, gained))
        # Where nothing at all is allowed, what is alive stays, without an end.
        moves = running & ops.any(best.exist, axis=1, keepdims=True)  # --> [rows, 1]
        totals = ops.where(moves, totals, beam.totals)
        worst_wanted = self._worst_wanted(finished.scores)  # --> [rows]
        longest = ops.maximum(constraints.max_lengths - forced, lengths)
        can_win = self._best_possible(totals, lengths, longest, constraints) > worst_wanted
        can_win = moves[:, 0] & can_win  # --> [rows]
        if self.num_groups > 1:
            # The later groups avoid what a group chooses: it goes on as long as they do.
            in_any = ops.any(ops.reshape(can_win, (-1, self.num_groups)), axis=1)  # --> [batch]
            can_win = ops.repeat(in_any, self.num_groups)
        going_on = (position < constraints.max_lengths) & can_win
        running = moves & ops.expand_dims(going_on, 1)  # --> [rows, 1]

        def moved(after, old):
            return ops.where(ops.reshape(moves, (-1, *[1] * (len(old.shape) - 1))), after, old)

        def extended(values, new):  # --> [rows, width, capacity]
            return moved(_extend(values, parents, new, state.position), values)

        if self.attention is not None:
            coverage = moved(take_rows(coverage, parents), beam.coverage)
        progress = tree.map_structure(
            lambda after, old: moved(take_rows(after, kept), old), best.progress, beam.progress
        )
        after = DecodingState(
            position,
            tokens,
            extended(state.ids, tokens),
            extended(state.token_log_probabilities, gained),
            ops.broadcast_to(running, ops.shape(totals)),
            _BeamState(totals, finished, coverage, progress),
            state.cache,
        )
        first = ops.arange(self.beams, dtype="int32") // self.width * self.width  # of its group
        return after, self._of_sentences(parents) + first  # --> [batch, beams]

    def _extensions(self, allowed, beam, log_sums, running, constraints):
        """The `2 · width` best extensions of each row, with phrases the first ones by banks.

        Twice the width, because at most one extension of each hypothesis ends it: `width` of
        them stay alive whatever ends.
        """
        offsets, end_id = beam.totals - log_sums, constraints.end_id
        if constraints.phrases is not None:
            phrases, count = Phrases(constraints.phrases), 2 * self.width
            best = phrases.extensions(allowed, offsets, beam.progress, count, end_id)
            return _Extensions(*best)
        if self.num_groups == 1:
            return _best_of(allowed, allowed, offsets, 2 * self.width)
        vocabulary, by_group = allowed.shape[2], (-1, self.num_groups, self.width)
        allowed = ops.reshape(allowed, (*by_group, vocabulary))
        offsets, running = ops.reshape(offsets, by_group), ops.reshape(running, by_group[:2])
        found, times = [], 0.0
        for group in range(self.num_groups):
            values = allowed[:, group]  # --> [batch, width, vocabulary]
            penalized = values - self.diversity_penalty * times
            best = _best_of(penalized, values, offsets[:, group], 2 * self.width)
            found.append(best)  # --> [batch, 2 * width] each
            # The group goes on with the first of its best that do not end.
            exists = running[:, group : group + 1] & best.exist
            goes_on = ops.cast(exists & (best.tokens != end_id), "int32")
            goes_on = goes_on * ops.cast(ops.cumsum(goes_on, axis=1) <= self.width, "int32")
            counted = ops.one_hot(ops.where(goes_on > 0, best.tokens, -1), vocabulary)
            times = times + ops.sum(counted, axis=1, keepdims=True)  # --> [batch, 1, vocabulary]
        found = zip(*(each[:3] for each in found), strict=True)
        stacked = (ops.stack(each, axis=1) for each in found)
        return _Extensions(*(ops.reshape(each, (-1, 2 * self.width)) for each in stacked))

    def _finished(self, before, best, gained, coverage, end_id, lengths):
        """The finished hypotheses with those that end now, `_Finished` of `[rows, width]`."""
        # An end counts if it is among the best `width`.
        tokens, parents, totals = (each[:, : self.width] for each in best[:3])
        ended = before.running[:, :1] & (totals > NEG_INF / 2) & (tokens == end_id)
        scores = totals / ops.expand_dims(length_penalty_of(lengths, self.length_penalty), 1)
        if self.attention is not None:
            scores = scores + take_rows(self._coverage_scores(coverage), parents)
        place, gained = before.position, gained[:, : self.width]
        ids = _extend(before.ids, parents, tokens, place)
        if self.num_groups > 1:
            ended = ended & ~self._repeats(ids, ended)
        new = _Finished(
            ids,
            _extend(before.token_log_probabilities, parents, gained, place),
            ops.where(ended, scores, NEG_INF),
        )
        finished = before.strategy_state.finished
        both = ops.concatenate([finished.scores, new.scores], axis=1)  # --> [rows, 2 * width]
        return finished.picked(new, ops.top_k(both, self.width)[1])

    def _repeats(self, ids, exist):
        """The hypotheses that an earlier one of the sentence equals, bool like `exist`.

        Within a group all differ, and what is equal ends at the same step. `(rows, width, …)`.
        """
        ids, exist = self._of_sentences(ids), self._of_sentences(exist)  # --> [batch, beams, ...]
        equal = ops.all(ops.expand_dims(ids, 2) == ops.expand_dims(ids, 1), axis=3)
        order = ops.arange(self.beams, dtype="int32")
        earlier = ops.expand_dims(order, 0) < ops.expand_dims(order, 1)  # --> [beams, beams]
        return self._of_groups(ops.any(equal & ops.expand_dims(exist, 1) & earlier, axis=2))

    def _worst_wanted(self, scores):
        """The score that a hypothesis must exceed to be among the `n_best`, float32 `[rows]`."""
        if self.num_groups == 1:
            return scores[:, self.n_best - 1]
        best = ops.top_k(self._of_sentences(scores), self.n_best)[0]
        return ops.repeat(best[:, -1], self.num_groups)

    def _best_possible(self, totals, lengths, longest, constraints):
        """The best score that an unfinished hypothesis can still get, float32 `[rows]`."""
        best = ops.max(totals, axis=1)
        exists = best > NEG_INF / 2
        at_limit = length_penalty_of(longest, self.length_penalty)
        if constraints.logit_bias is not None:
            # A bias above 0 may lift each token that is still to come, and a score above 0 is
            # best with the smallest penalty.
            gain = ops.maximum(ops.max(constraints.logit_bias), 0.0)
            best = best + gain * ops.cast(longest - lengths, "float32")
            now = length_penalty_of(lengths + 1, self.length_penalty)
            at_limit = ops.where(best > 0, now, at_limit)
        return ops.where(exists, best / at_limit, NEG_INF)

    def hypotheses(self, state: DecodingState, constraints) -> Hypotheses:
        """The finished hypotheses, then the unfinished ones."""
        beam, by_token = state.strategy_state, state.token_log_probabilities
        # Less than the limit where nothing could follow.
        forced = constraints.of_groups(self.num_groups).forced_lengths  # --> [rows]
        _, lengths = continuation_of(state.ids, by_token, forced)
        scores = beam.totals / length_penalty_of(lengths, self.length_penalty)  # --> [rows, width]
        if self.attention is not None:
            scores = scores + self._coverage_scores(beam.coverage)
        # Where fewer hypotheses exist than beams, the others hold forbidden ids.
        exists = beam.totals > NEG_INF / 2
        if constraints.phrases is not None:
            exists = exists & self._have_most_phrases(beam, exists, constraints)
        if self.num_groups > 1:
            exists = exists & ~self._repeats(state.ids, exists)
        scores = self._of_sentences(ops.where(exists, scores, NEG_INF))  # --> [batch, beams]
        ids, by_token = self._of_sentences(state.ids), self._of_sentences(by_token)
        finished = _Finished(*map(self._of_sentences, beam.finished))
        scores, order = ops.top_k(scores, self.beams)
        exists = ops.expand_dims(scores > NEG_INF / 2, 2)  # --> [batch, beams, 1]
        unfinished = _Finished(
            ops.where(exists, take_rows(ids, order), PAD_ID),
            ops.where(exists, take_rows(by_token, order), 0.0),
            scores,
        )
        # Between what ended and the empty places; `top_k` takes equal values from the left.
        behind = ops.full_like(scores, NEG_INF / 2)
        rank = ops.concatenate([finished.scores, behind], axis=1)  # --> [batch, 2 * beams]
        best = finished.picked(unfinished, ops.top_k(rank, self.n_best)[1])
        ids, by_token, scores = best
        log_probabilities = ops.sum(by_token, axis=2)  # --> [batch, n_best]
        following = continuation_of(ids, by_token, constraints.forced_lengths)
        return Hypotheses(ids, log_probabilities, scores, by_token, *following)

    def _have_most_phrases(self, beam, exist, constraints):
        """Unfinished hypotheses that no other one has more met tokens than, `[rows, width]`."""
        phrases = Phrases(constraints.phrases)
        met = ops.where(exist, phrases.met_tokens(beam.progress), -1)
        most = ops.max(met, axis=1, keepdims=True)
        has_ended = beam.finished.scores[:, :1] > NEG_INF / 2
        return met == ops.where(has_ended, phrases.num_tokens, most)

    def _coverage_scores(self, coverage):
        mask = ops.repeat(self.source_mask, self.num_groups, axis=0)  # --> [rows, source]
        return self.coverage_penalty * coverage_penalty_of(coverage, ops.expand_dims(mask, 1))

    def _of_sentences(self, values):  # [rows, width, …] -> [batch, beams, …]
        return ops.reshape(values, (-1, self.beams, *ops.shape(values)[2:]))

    def _of_groups(self, values):  # [batch, beams, …] -> [rows, width, …]
        return ops.reshape(values, (-1, self.width, *ops.shape(values)[2:]))


def _best_of(ranked, values, offsets, count):
    """The `count` best `_Extensions` by `ranked + offsets`, with totals of `values + offsets`."""
    sums, parents, tokens = largest_of_rows(ranked, offsets, count)
    parents, tokens = ops.cast(parents, "int32"), ops.cast(tokens, "int32")
    if ranked is not values:
        sums = _value_at(values, parents, tokens) + take_rows(offsets, parents)
    return _Extensions(tokens, parents, ops.maximum(sums, NEG_INF))


def _value_at(values, rows, places):
    """`values[b, rows[b, i], places[b, i]]` of `(batch, count, length)`."""
    batch, count, length = ops.shape(values)
    flat = ops.reshape(values, (batch, count * length, 1))
    return take_rows(flat, rows * length + places)[..., 0]


def _extend(values, parents, new, position):
    """`values[parents]` with `new` written at `position`."""
    return ops.slice_update(take_rows(values, parents), (0, 0, position), ops.expand_dims(new, 2))
