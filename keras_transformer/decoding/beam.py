"""Beam search, with finished hypotheses kept apart."""

from typing import Any, NamedTuple

from keras import KerasTensor, ops, tree

from keras_transformer.decoding.loop import DecodingState, pad_tokens
from keras_transformer.decoding.options import DecodingOptions
from keras_transformer.decoding.results import NEG_INF, Hypotheses, continuation_of, score_of
from keras_transformer.decoding.selection import largest_of_rows, log_sums_and_maxima, take_rows
from keras_transformer.ids import PAD_ID


class Finished(NamedTuple):
    ids: KerasTensor  # int32 [batch, beams, capacity]
    token_log_probabilities: KerasTensor  # float32 [batch, beams, capacity]
    scores: KerasTensor  # float32 [batch, beams], best first; NEG_INF = an empty place

    def best_with(self, others, rank, count):
        """The `count` highest by `rank`, `[batch, places]`, which counts through both lists."""
        pairs, chosen = zip(self, others, strict=True), ops.top_k(rank, count)[1]
        return Finished(*(take_rows(ops.concatenate(pair, axis=1), chosen) for pair in pairs))


class BeamState(NamedTuple):
    totals: KerasTensor  # float32 [batch, beams]: what unfinished hypotheses are ranked by
    finished: Finished
    progress: Any = ()  # of a `ConstrainedBeam`'s hypotheses, [batch, beams, …] each

    def extended(self, more):
        *by_token, scores = self.finished
        by_token = (pad_tokens(values, more) for values in by_token)
        return self._replace(finished=Finished(*by_token, scores))


class Extensions(NamedTuple):
    """Hypotheses with one more token, best first, `[batch, count]` each."""

    tokens: KerasTensor  # int32
    parents: KerasTensor  # int32: the hypothesis of the sentence that each one extends
    totals: KerasTensor  # float32: what they are ranked by; NEG_INF = there is none
    progress: Any = ()


class Beam:
    """Keeps the `beam_size` most probable unfinished hypotheses of each sentence.

    Of the extensions of all hypotheses, the best `beam_size` count. Those that end leave the beam
    for a list of finished hypotheses, where their score (log-probability over length penalty, both
    of what follows the forced tokens) is final, and the next best ones that do not end take their
    places. A sentence stops when `beam_size` hypotheses have ended, with `early_stopping`, or when
    no unfinished one can still enter the first `n_best` places of that list: log-probabilities only
    fall, and no hypothesis grows past the sentence's limit, so an unfinished one scores at most its
    present log-probability over the penalty of the limit. A sentence that stopped is frozen.

    With Marian's normalization a hypothesis that ends frees no place: the beam shrinks by it, and a
    sentence stops when all places have ended. At the limit of its length unfinished hypotheses are
    ranked with the finished ones.

    A logit bias takes part in the ranking and not in the log-probabilities that are returned.

    Args:
        beam_size: As in `DecodingOptions`, like the others; both penalties may be traced scalars.
        normalization: `length_normalization` of `DecodingOptions`.

    Reference: Wu et al. 2016, section 7 (arXiv:1609.08144).
    """

    def __init__(
        self,
        beam_size: int,
        length_penalty: float | KerasTensor = DecodingOptions.length_penalty,
        n_best: int = DecodingOptions.n_best,
        early_stopping: bool = DecodingOptions.early_stopping,
        normalization: str = "gnmt",
        word_penalty: float | KerasTensor = 0.0,
    ):
        self.beams, self.n_best, self.early_stopping = beam_size, n_best, early_stopping
        self.ranking = length_penalty, normalization, word_penalty
        self.shrinks = normalization == "marian"

    def start(self, constraints, capacity: int) -> BeamState:
        shape = (ops.shape(constraints.max_lengths)[0], self.beams)
        empty = Finished(
            ops.full((*shape, capacity), PAD_ID, "int32"),
            ops.zeros((*shape, capacity), "float32"),
            ops.full(shape, NEG_INF, "float32"),
        )
        # All hypotheses begin alike: only the first may be extended, or each would be found
        # `beam_size` times.
        first = ops.arange(self.beams, dtype="int32") == 0
        return BeamState(ops.broadcast_to(ops.where(first, 0.0, NEG_INF), shape), empty)

    def choose(self, state: DecodingState, logits, allowed, constraints):
        end_id, forced = constraints.end_id, constraints.forced_lengths  # forced: [batch]
        running, beam = state.running[:, :1], state.strategy_state  # running: [batch, 1]
        changed = constraints.changed_ids
        log_sums, maxima = log_sums_and_maxima(logits, allowed, changed)  # --> [batch, beams]
        best = self.extensions(allowed, beam.totals - log_sums, beam, constraints, maxima)
        if self.shrinks:
            ended = ops.sum(ops.cast(beam.finished.scores > NEG_INF / 2, "int32"), 1, keepdims=True)
            has_place = ops.arange(2 * self.beams, dtype="int32") < self.beams - ended
            best = best._replace(totals=ops.where(has_place, best.totals, NEG_INF))
        exist = best.totals > NEG_INF / 2
        # Forced tokens add nothing to the total: it ranks only the continuation.
        free = ops.expand_dims(state.position >= forced, 1) | ~exist
        best = best._replace(totals=ops.where(free, best.totals, 0.0))
        tokens, parents, *_ = best  # --> [batch, 2 * beams]
        gained = _value_at(logits, parents, tokens) - take_rows(log_sums, parents)
        gained = ops.where(exist, gained, 0.0)  # --> [batch, 2 * beams]
        position = state.position + 1
        lengths = ops.maximum(position - forced, 0)  # --> [batch]: of what follows
        finished = self._finished(state, best, gained, end_id, lengths)

        # The first `beam_size` that do not end go on. A total of NEG_INF is an empty place.
        alive = ops.cast(exist & (best.tokens != end_id), "int32")
        rank = alive * 4 * self.beams - ops.arange(alive.shape[1], dtype="int32")
        best_places = ops.top_k(ops.cast(rank, "float32"), self.beams)[1]  # --> [batch, beams]
        totals = ops.where(
            take_rows(alive, best_places) > 0, take_rows(best.totals, best_places), NEG_INF
        )
        # Where nothing at all is allowed, what is alive stays, without an end.
        moves = running & ops.any(exist, axis=1, keepdims=True)  # --> [batch, 1]
        totals = ops.where(moves, totals, beam.totals)
        longest = ops.maximum(constraints.max_lengths - forced, lengths)
        can_win = self._best_possible(totals, lengths, longest, constraints)  # --> [batch]
        can_win = can_win > finished.scores[:, self.n_best - 1]
        if self.early_stopping:  # The last place of those that ended is empty.
            can_win = can_win & (finished.scores[:, -1] < NEG_INF / 2)
        going_on = (position < constraints.max_lengths) & can_win
        running = moves & ops.expand_dims(going_on, 1)  # --> [batch, 1]
        newest, parents, gained = (
            take_rows(array, best_places) for array in (tokens, parents, gained)
        )

        def moved(after, old):
            return ops.where(ops.reshape(moves, (-1, *[1] * (len(old.shape) - 1))), after, old)

        by_token = _extend(state.token_log_probabilities, parents, gained, state.position)
        progress = tree.map_structure(lambda each: take_rows(each, best_places), best.progress)
        after = DecodingState(
            position,
            newest,
            moved(_extend(state.ids, parents, newest, state.position), state.ids),
            moved(by_token, state.token_log_probabilities),
            ops.broadcast_to(running, ops.shape(totals)),
            BeamState(totals, finished, tree.map_structure(moved, progress, beam.progress)),
            state.cache,
        )
        return after, parents

    def extensions(self, allowed, offsets, beam: BeamState, constraints, maxima) -> Extensions:
        """The `2 · beam_size` best extensions of each sentence, by `allowed + offsets`.

        Twice the beam size, because at most one extension of each hypothesis ends it: `beam_size`
        of them stay alive whatever ends.
        """
        totals, parents, tokens = largest_of_rows(allowed, offsets, 2 * self.beams, maxima)
        parents, tokens = ops.cast(parents, "int32"), ops.cast(tokens, "int32")
        return Extensions(tokens, parents, ops.maximum(totals, NEG_INF))

    def _finished(self, before, best, gained, end_id, lengths):
        """The finished hypotheses with those that end now, `Finished` of `[batch, beams]`."""
        # An end counts if it is among the best `beam_size`.
        tokens, parents, totals = (array[:, : self.beams] for array in best[:3])
        ended = before.running[:, :1] & (totals > NEG_INF / 2) & (tokens == end_id)
        scores = score_of(totals, ops.expand_dims(lengths, 1), *self.ranking)
        place, gained = before.position, gained[:, : self.beams]
        new = Finished(
            _extend(before.ids, parents, tokens, place),
            _extend(before.token_log_probabilities, parents, gained, place),
            ops.where(ended, scores, NEG_INF),
        )
        finished = before.strategy_state.finished
        both = ops.concatenate([finished.scores, new.scores], axis=1)  # --> [batch, 2 * beams]
        return finished.best_with(new, both, self.beams)

    def _best_possible(self, totals, lengths, longest, constraints):
        """The best score that an unfinished hypothesis can still get, float32 `[batch]`."""
        best = ops.max(totals, axis=1)
        exists = best > NEG_INF / 2
        if constraints.logit_bias is not None:
            # A bias above 0 may lift each token that is still to come.
            gain = ops.maximum(ops.max(constraints.logit_bias), 0.0)
            best = best + gain * ops.cast(longest - lengths, "float32")
        # A score above 0 is best with the smallest penalty, which is that of the next token.
        exponent, normalization, word_penalty = self.ranking
        at_end = [score_of(best, n, exponent, normalization) for n in (lengths + 1, longest)]
        possible = ops.maximum(*at_end)
        if self.shrinks:
            # The price of all words is a monotonous function of their number, too.
            prices = [score_of(0.0, n, *self.ranking) for n in (lengths + 1, longest)]
            possible = possible + ops.maximum(*prices)
        return ops.where(exists, possible, NEG_INF)

    def returned(self, beam: BeamState, constraints):
        """The unfinished hypotheses that are a result where too few end, bool `[batch, beams]`."""
        # Where fewer hypotheses exist than beams, the others hold forbidden ids.
        return beam.totals > NEG_INF / 2

    def hypotheses(self, state: DecodingState, constraints) -> Hypotheses:
        """The finished hypotheses, then the unfinished ones."""
        beam, by_token = state.strategy_state, state.token_log_probabilities
        # Less than the limit where nothing could follow.
        _, lengths = continuation_of(state.ids, by_token, constraints.forced_lengths)
        scores = score_of(beam.totals, lengths, *self.ranking)
        scores = ops.where(self.returned(beam, constraints), scores, NEG_INF)
        scores, order = ops.top_k(scores, self.beams)  # --> [batch, beams]
        unfinished = Finished(take_rows(state.ids, order), take_rows(by_token, order), scores)
        # Between what ended and the empty places; `top_k` takes equal values from the left.
        behind = ops.full_like(scores, NEG_INF / 2)
        if self.shrinks:
            limits = ops.expand_dims(constraints.max_lengths - constraints.forced_lengths, 1)
            behind = ops.where(take_rows(lengths, order) >= limits, scores, behind)
        rank = ops.concatenate([beam.finished.scores, behind], axis=1)
        ids, by_token, scores = beam.finished.best_with(unfinished, rank, self.n_best)
        exists = ops.expand_dims(scores > NEG_INF / 2, 2)  # --> [batch, n_best, 1]
        ids, by_token = ops.where(exists, ids, PAD_ID), ops.where(exists, by_token, 0.0)
        following = continuation_of(ids, by_token, constraints.forced_lengths)
        return Hypotheses(ids, ops.sum(by_token, axis=2), scores, by_token, *following)


def _value_at(values, rows, places):
    """`values[b, rows[b, i], places[b, i]]` of `(batch, count, length)`."""
    batch, count, length = ops.shape(values)
    flat = ops.reshape(values, (batch, count * length, 1))
    return take_rows(flat, rows * length + places)[..., 0]


def _extend(values, parents, new, position):
    """`values[parents]` with `new` written at `position`."""
    return ops.slice_update(take_rows(values, parents), (0, 0, position), ops.expand_dims(new, 2))
