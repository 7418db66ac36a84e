"""Beam search, with a separate list of finished hypotheses."""

from typing import Any, NamedTuple

from keras import KerasTensor, ops, tree

from keras_transformer.base.ids import PAD_ID
from keras_transformer.base.impossible import NEG_INF
from keras_transformer.decoding.loop import DecodingState, pad_tokens
from keras_transformer.decoding.ranking import Ranking
from keras_transformer.decoding.results import Hypotheses, continuation_of
from keras_transformer.decoding.search_options import DecodingOptions
from keras_transformer.decoding.selection import largest_of_rows, log_sums_and_maxima, take_rows


class Finished(NamedTuple):
    ids: KerasTensor  # int32 [batch, beams, capacity]
    # float32 of the tokens, [batch, beams, capacity]; in LiteRT their sums, [batch, beams]
    log_probabilities: KerasTensor
    scores: KerasTensor  # float32 [batch, beams], best first; NEG_INF = an empty place

    @property
    def is_filled(self):
        return self.scores > NEG_INF / 2


class BeamState(NamedTuple):
    live_totals: KerasTensor  # float32 [batch, beams]: sums of the log-probabilities that rank
    finished: Finished
    progress: Any = ()  # of a `ConstrainedBeam`'s live hypotheses, tensors [batch, beams, …]

    def extended(self, num_tokens):
        ids, by_token, scores = self.finished
        padded = pad_tokens(ids, num_tokens), pad_tokens(by_token, num_tokens)
        return self._replace(finished=Finished(*padded, scores))


class Extensions(NamedTuple):
    """Live hypotheses with one more token, best first, tensors `[batch, count]`."""

    tokens: KerasTensor  # int32
    parents: KerasTensor  # int32: the extended hypotheses of the sentence
    totals: KerasTensor  # float32: sums that rank; NEG_INF = no extension
    progress: Any = ()
    token_log_probabilities: Any = ()  # float32, of the new tokens

    @property
    def is_filled(self):
        return self.totals > NEG_INF / 2

    def at(self, indices, take=take_rows):
        """Returns the extensions at int32 `[batch, chosen]`."""
        return tree.map_structure(lambda tensor: take(tensor, indices), self)

    def first(self, count):
        return tree.map_structure(lambda tensor: tensor[:, :count], self)


class BeamRules:
    """Rules of a beam: which hypotheses end, stay live, stop a sentence and are returned.

    They know nothing of the loop around them, so that LiteRT's search follows them too.

    Args:
        beam_size: As in `DecodingOptions`, like `n_best` and `early_stopping`.
        ranking: `Ranking` of the hypotheses.
    """

    take = staticmethod(take_rows)

    def __init__(self, beam_size: int, ranking: Ranking, n_best: int, early_stopping: bool):
        self.beams, self.n_best, self.early_stopping = beam_size, n_best, early_stopping
        self.ranking = ranking

    def with_places(self, extensions: Extensions, finished: Finished) -> Extensions:
        """Removes the extensions for which the beam has no place; they are the best first."""
        num_finished = ops.sum(ops.cast(finished.is_filled, "int32"), axis=1, keepdims=True)
        num_places = self.ranking.num_places(self.beams, num_finished)
        has_place = ops.arange(extensions.totals.shape[1], dtype="int32") < num_places
        return extensions._replace(totals=ops.where(has_place, extensions.totals, NEG_INF))

    def end_scores(self, best: Extensions, running, lengths, end_id):
        """Returns the scores of extensions that end now, NEG_INF for the other ones."""
        ends_now = running & best.is_filled & (best.tokens == end_id)
        return ops.where(ends_now, self.ranking.score(best.totals, lengths), NEG_INF)

    def with_ended(self, finished: Finished, ended: Finished) -> Finished:
        """Returns the best finished hypotheses including new ones, `[batch, beams]`."""
        rank = ops.concatenate([finished.scores, ended.scores], axis=1)  # --> [batch, 2 * beams]
        return self._best(finished, ended, rank, self.beams)

    def _best(self, finished, others, rank, count):
        """Returns the `count` highest by `rank`, `[batch, candidates]`, over both lists."""
        pairs, indices = zip(finished, others, strict=True), ops.top_k(rank, count)[1]
        return Finished(*(self.take(ops.concatenate(pair, axis=1), indices) for pair in pairs))

    def continuing(self, extensions: Extensions, end_id) -> Extensions:
        """Returns the first extensions that do not end, which stay live, `[batch, beams]`."""
        is_live = ops.cast(extensions.is_filled & (extensions.tokens != end_id), "int32")
        order = is_live * (4 * self.beams) - ops.arange(is_live.shape[1], dtype="int32")
        indices = ops.top_k(ops.cast(order, "float32"), self.beams)[1]  # --> [batch, beams]
        live = extensions.at(indices, self.take)
        # A total of NEG_INF is an empty place.
        is_live = self.take(is_live, indices) > 0
        return live._replace(totals=ops.where(is_live, live.totals, NEG_INF))

    def can_win(self, best, finished: Finished, shortest, longest):
        """Returns whether a live hypothesis can still become a result, bool `[batch]`.

        Args:
            best: Highest total of the live hypotheses of each sentence.
            finished: The finished hypotheses.
            shortest: Number of tokens of a live hypothesis after the next step.
            longest: Maximum number of its tokens.
        """
        best_possible = self.ranking.best_possible(best, shortest, longest)
        best_possible = ops.where(best > NEG_INF / 2, best_possible, NEG_INF)  # --> [batch]
        can_win = best_possible > finished.scores[:, self.n_best - 1]
        if self.early_stopping:
            can_win = can_win & ~finished.is_filled[:, -1]  # A place for a finished one is empty.
        return can_win

    def results(self, finished: Finished, live: Finished, lengths, limits) -> Finished:
        """Returns the `n_best` results: finished hypotheses, then live ones, then empty places.

        `lengths` are of the live hypotheses, `[batch, beams]`, `limits` are their largest values.
        """
        scores, order = ops.top_k(live.scores, self.beams)  # --> [batch, beams]
        ids, log_probabilities = (self.take(values, order) for values in live[:2])
        live = Finished(ids, log_probabilities, scores)
        # Ranked between finished hypotheses and empty places, except where the limit is an end; of
        # equal values, `top_k` returns the first ones.
        ends = self.ranking.ends_at_limit & (self.take(lengths, order) >= limits)
        live_rank = ops.where(ends, live.scores, NEG_INF / 2)
        rank = ops.concatenate([finished.scores, live_rank], axis=1)  # --> [batch, 2 * beams]
        return self._best(finished, live, rank, self.n_best)


class Beam(BeamRules):
    """Keeps the `beam_size` most probable unfinished hypotheses of each sentence, which are live.

    Of the extensions of all live hypotheses, the best `beam_size` count. Extensions that end move
    to a list of finished hypotheses, where their scores are final: they rank by the log-probability
    and the length without forced tokens. The next best extensions that do not end take their
    places, unless the ranking lets the beam shrink.

    With `early_stopping`, a sentence stops when `beam_size` hypotheses have ended. Otherwise it
    stops when no live hypothesis can still enter the first `n_best` places of the list. A stopped
    sentence does not change any more.

    A logit bias counts in the ranking, but not in the returned log-probabilities.

    Args:
        beam_size: As in `DecodingOptions`, like `n_best` and `early_stopping`.
        ranking: `Ranking` of the hypotheses; by default as in `DecodingOptions`.

    Reference: Wu et al. 2016, section 7 (arXiv:1609.08144).
    """

    def __init__(
        self,
        beam_size: int,
        ranking: Ranking | None = None,
        n_best: int = DecodingOptions.n_best,
        early_stopping: bool = DecodingOptions.early_stopping,
    ):
        super().__init__(beam_size, ranking or DecodingOptions().ranking, n_best, early_stopping)

    def start(self, constraints, capacity: int) -> BeamState:
        shape = (ops.shape(constraints.max_lengths)[0], self.beams)
        empty = Finished(
            ops.full((*shape, capacity), PAD_ID, "int32"),
            ops.zeros((*shape, capacity), "float32"),
            ops.full(shape, NEG_INF, "float32"),
        )
        # All hypotheses begin alike: only the first may be extended, or the search would find each
        # extension `beam_size` times.
        first = ops.arange(self.beams, dtype="int32") == 0
        return BeamState(ops.broadcast_to(ops.where(first, 0.0, NEG_INF), shape), empty)

    def choose(self, state: DecodingState, logits, allowed, constraints):
        # --> [batch, beams]
        log_sums, maxima = log_sums_and_maxima(logits, allowed, constraints.changed_ids)
        # --> [batch, 2 * beams]
        extensions = self._extend(state, logits, allowed, constraints, log_sums, maxima)
        # --> [batch]: of what follows forced tokens
        lengths = ops.maximum(state.position + 1 - constraints.forced_lengths, 0)
        finished = self._finish(state, extensions, lengths, constraints.end_id)
        return self._select(state, extensions, finished, lengths, log_sums, constraints)

    def _extend(self, state, logits, allowed, constraints, log_sums, maxima) -> Extensions:
        """Returns the best extensions of each sentence that have a place, `[batch, 2 * beams]`."""
        beam = state.strategy_state
        offsets = beam.live_totals - log_sums
        best = self.extensions(allowed, offsets, beam, constraints, maxima)
        best = self.with_places(best, beam.finished)
        # Forced tokens add nothing to the total: it ranks only the continuation.
        is_forced = ops.expand_dims(state.position < constraints.forced_lengths, 1) & best.is_filled
        by_token = _value_at(logits, best.parents, best.tokens) - take_rows(log_sums, best.parents)
        return best._replace(
            totals=ops.where(is_forced, 0.0, best.totals),
            token_log_probabilities=ops.where(best.is_filled, by_token, 0.0),
        )

    def extensions(self, allowed, offsets, beam: BeamState, constraints, maxima) -> Extensions:
        """Returns the `2 · beam_size` best extensions of each sentence, by `allowed + offsets`.

        That is the largest number of places; see `Ranking.num_places`.
        """
        totals, parents, tokens = largest_of_rows(allowed, offsets, 2 * self.beams, maxima)
        parents, tokens = ops.cast(parents, "int32"), ops.cast(tokens, "int32")
        return Extensions(tokens, parents, ops.maximum(totals, NEG_INF))

    def _finish(self, state, extensions, lengths, end_id) -> Finished:
        """Returns the finished hypotheses including new ones, `[batch, beams]`."""
        # An end counts if it is among the best `beam_size`.
        best = extensions.first(self.beams)  # --> [batch, beams]
        lengths, running = ops.expand_dims(lengths, 1), state.running[:, :1]
        by_token = state.token_log_probabilities
        ended = Finished(
            _append(state.ids, best.parents, best.tokens, state.position),
            _append(by_token, best.parents, best.token_log_probabilities, state.position),
            self.end_scores(best, running, lengths, end_id),
        )
        return self.with_ended(state.strategy_state.finished, ended)

    def _select(self, state, extensions, finished, lengths, log_sums, constraints):
        """Returns the state of the next live hypotheses, and their parents, `[batch, beams]`."""
        beam, position = state.strategy_state, state.position
        next_live = self.continuing(extensions, constraints.end_id)  # --> [batch, beams]
        # If no extension is allowed, the live hypotheses stay, without an end.
        has_extension = ops.any(extensions.is_filled, axis=1, keepdims=True)
        has_extension = state.running[:, :1] & has_extension  # --> [batch, 1]

        def moved(values, old_values):
            shape = (-1, *[1] * (len(old_values.shape) - 1))
            return ops.where(ops.reshape(has_extension, shape), values, old_values)

        live_totals = moved(next_live.totals, beam.live_totals)  # --> [batch, beams]
        # NaN in the logits of a live hypothesis ends its sentence, with the score NaN.
        is_nan = ops.isnan(log_sums) & (beam.live_totals > NEG_INF / 2) & state.running
        is_nan = ops.any(is_nan, axis=1, keepdims=True)  # --> [batch, 1]
        live_totals = ops.where(is_nan, float("nan"), live_totals)
        is_running = self._is_running(position, live_totals, finished, lengths, constraints)
        is_running = has_extension & ops.expand_dims(is_running, 1)  # --> [batch, 1]
        # --> [batch, beams, capacity]
        ids = _append(state.ids, next_live.parents, next_live.tokens, position)
        by_token, new = state.token_log_probabilities, next_live.token_log_probabilities
        next_by_token = _append(by_token, next_live.parents, new, position)
        progress = tree.map_structure(moved, next_live.progress, beam.progress)
        next_state = DecodingState(
            position + 1,
            next_live.tokens,
            moved(ids, state.ids),
            moved(next_by_token, by_token),
            ops.broadcast_to(is_running, ops.shape(live_totals)),
            BeamState(live_totals, finished, progress),
            state.cache,
        )
        return next_state, next_live.parents

    def _is_running(self, position, live_totals, finished, lengths, constraints):
        """Returns whether a next step can change the results of a sentence, bool `[batch]`."""
        best = ops.max(live_totals, axis=1)  # --> [batch]
        longest = ops.maximum(constraints.max_lengths - constraints.forced_lengths, lengths)
        if constraints.logit_bias is not None:
            # A bias above 0 may raise the total at each further token.
            gain = ops.maximum(ops.max(constraints.logit_bias), 0.0)
            best = best + gain * ops.cast(longest - lengths, "float32")
        can_win = self.can_win(best, finished, lengths + 1, longest)
        return (position + 1 < constraints.max_lengths) & can_win

    def returned(self, beam: BeamState, constraints):
        """Returns which live hypotheses are results if too few end, bool `[batch, beams]`."""
        # If fewer hypotheses exist than beams, the other beams hold forbidden ids.
        return beam.live_totals > NEG_INF / 2

    def hypotheses(self, state: DecodingState, constraints) -> Hypotheses:
        """Returns the finished hypotheses, then the live ones."""
        beam, by_token = state.strategy_state, state.token_log_probabilities
        # Lengths are below the limit where no extension was allowed.
        forced = constraints.forced_lengths
        _, lengths = continuation_of(state.ids, by_token, forced)  # --> [batch, beams]
        live_scores = self.ranking.score(beam.live_totals, lengths)
        live_scores = ops.where(self.returned(beam, constraints), live_scores, NEG_INF)
        live = Finished(state.ids, by_token, live_scores)
        limits = ops.expand_dims(constraints.max_lengths - forced, 1)
        best = self.results(beam.finished, live, lengths, limits)  # --> [batch, n_best]
        is_filled = ops.expand_dims(best.is_filled, 2)  # --> [batch, n_best, 1]
        ids = ops.where(is_filled, best.ids, PAD_ID)
        by_token = ops.where(is_filled, best.log_probabilities, 0.0)
        following = continuation_of(ids, by_token, forced)
        scores = ops.where(ops.isnan(beam.live_totals[:, :1]), float("nan"), best.scores)
        return Hypotheses(ids, ops.sum(by_token, axis=2), scores, by_token, *following)


def _value_at(values, rows, indices):
    """Returns `values[b, rows[b, i], indices[b, i]]` of `(batch, count, length)`."""
    batch, count, length = ops.shape(values)
    flat = ops.reshape(values, (batch, count * length, 1))
    return take_rows(flat, rows * length + indices)[..., 0]


def _append(values, parents, new, position):
    """Returns `values[parents]` with `new` written at `position`."""
    return ops.slice_update(take_rows(values, parents), (0, 0, position), ops.expand_dims(new, 2))
