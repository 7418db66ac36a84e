"""Beam search, with a separate list of finished hypotheses."""

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

    def best_with(self, additional, rank, count):
        """Returns the `count` highest by `rank`, `[batch, candidates]`, over both lists."""
        pairs, indices = zip(self, additional, strict=True), ops.top_k(rank, count)[1]
        return Finished(*(take_rows(ops.concatenate(pair, axis=1), indices) for pair in pairs))


class BeamState(NamedTuple):
    totals: KerasTensor  # float32 [batch, beams]: ranking score of unfinished hypotheses
    finished: Finished
    progress: Any = ()  # of a `ConstrainedBeam`'s hypotheses, tensors [batch, beams, …]

    def extended(self, num_tokens):
        *by_token, scores = self.finished
        by_token = (pad_tokens(values, num_tokens) for values in by_token)
        return self._replace(finished=Finished(*by_token, scores))


class Extensions(NamedTuple):
    """Hypotheses with one more token, best first, tensors `[batch, count]`."""

    tokens: KerasTensor  # int32
    parents: KerasTensor  # int32: the extended hypotheses of the sentence
    totals: KerasTensor  # float32: ranking score; NEG_INF = no extension
    progress: Any = ()


class Beam:
    """Keeps the `beam_size` most probable unfinished hypotheses of each sentence.

    Of the extensions of all hypotheses, the best `beam_size` count. Extensions that end move to a
    list of finished hypotheses, where their scores are final: log-probability over length penalty,
    both without forced tokens. The next best extensions that do not end take their places.

    With `early_stopping`, a sentence stops when `beam_size` hypotheses have ended. Otherwise it
    stops when no unfinished hypothesis can still enter the first `n_best` places of the list.
    Log-probabilities only fall, and lengths stay within the sentence's limit. So an unfinished
    hypothesis scores at most its log-probability over the penalty of the limit. A stopped sentence
    does not change any more.

    With Marian's normalization a hypothesis that ends does not free its place: the beam shrinks,
    and a sentence stops when all places have ended. At the limit of its length, unfinished
    hypotheses are ranked together with the finished ones.

    A logit bias counts in the ranking, but not in the returned log-probabilities.

    Args:
        beam_size: As in `DecodingOptions`, like the other arguments; both penalties may be traced
            scalars.
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
        # All hypotheses begin alike: only the first may be extended, or the search would find each
        # extension `beam_size` times.
        first = ops.arange(self.beams, dtype="int32") == 0
        return BeamState(ops.broadcast_to(ops.where(first, 0.0, NEG_INF), shape), empty)

    def choose(self, state: DecodingState, logits, allowed, constraints):
        end_id, forced = constraints.end_id, constraints.forced_lengths  # forced: [batch]
        running, beam = state.running[:, :1], state.strategy_state  # running: [batch, 1]
        changed = constraints.changed_ids
        log_sums, maxima = log_sums_and_maxima(logits, allowed, changed)  # --> [batch, beams]
        best = self.extensions(allowed, beam.totals - log_sums, beam, constraints, maxima)
        if self.shrinks:
            num_finished = ops.sum(
                ops.cast(beam.finished.scores > NEG_INF / 2, "int32"), 1, keepdims=True
            )
            has_index = ops.arange(2 * self.beams, dtype="int32") < self.beams - num_finished
            best = best._replace(totals=ops.where(has_index, best.totals, NEG_INF))
        exists = best.totals > NEG_INF / 2
        # Forced tokens add nothing to the total: it ranks only the continuation.
        is_free = ops.expand_dims(state.position >= forced, 1) | ~exists
        best = best._replace(totals=ops.where(is_free, best.totals, 0.0))
        tokens, parents, *_ = best  # --> [batch, 2 * beams]
        token_log_probabilities = _value_at(logits, parents, tokens) - take_rows(log_sums, parents)
        token_log_probabilities = ops.where(
            exists, token_log_probabilities, 0.0
        )  # --> [batch, 2 * beams]
        position = state.position + 1
        lengths = ops.maximum(position - forced, 0)  # --> [batch]: of what follows
        finished = self._finished(state, best, token_log_probabilities, end_id, lengths)

        # The first `beam_size` extensions that do not end continue. A total of NEG_INF is an empty
        # place.
        is_running = ops.cast(exists & (best.tokens != end_id), "int32")
        rank = is_running * 4 * self.beams - ops.arange(is_running.shape[1], dtype="int32")
        best_indices = ops.top_k(ops.cast(rank, "float32"), self.beams)[1]  # --> [batch, beams]
        totals = ops.where(
            take_rows(is_running, best_indices) > 0, take_rows(best.totals, best_indices), NEG_INF
        )
        # If no extension is allowed, the running hypotheses stay, without an end.
        has_extension = running & ops.any(exists, axis=1, keepdims=True)  # --> [batch, 1]
        totals = ops.where(has_extension, totals, beam.totals)
        longest = ops.maximum(constraints.max_lengths - forced, lengths)
        can_win = self._best_possible(totals, lengths, longest, constraints)  # --> [batch]
        can_win = can_win > finished.scores[:, self.n_best - 1]
        if self.early_stopping:  # Not all places of finished hypotheses are taken.
            can_win = can_win & (finished.scores[:, -1] < NEG_INF / 2)
        is_running_sentence = (position < constraints.max_lengths) & can_win
        running = has_extension & ops.expand_dims(is_running_sentence, 1)  # --> [batch, 1]
        newest, parents, token_log_probabilities = (
            take_rows(array, best_indices) for array in (tokens, parents, token_log_probabilities)
        )

        def moved(after, old):
            return ops.where(
                ops.reshape(has_extension, (-1, *[1] * (len(old.shape) - 1))), after, old
            )

        by_token = _extend(
            state.token_log_probabilities, parents, token_log_probabilities, state.position
        )
        progress = tree.map_structure(lambda tensor: take_rows(tensor, best_indices), best.progress)
        next_state = DecodingState(
            position,
            newest,
            moved(_extend(state.ids, parents, newest, state.position), state.ids),
            moved(by_token, state.token_log_probabilities),
            ops.broadcast_to(running, ops.shape(totals)),
            BeamState(totals, finished, tree.map_structure(moved, progress, beam.progress)),
            state.cache,
        )
        return next_state, parents

    def extensions(self, allowed, offsets, beam: BeamState, constraints, maxima) -> Extensions:
        """Returns the `2 · beam_size` best extensions of each sentence, by `allowed + offsets`.

        Twice the beam size, because at most one extension of each hypothesis ends it. So at least
        `beam_size` extensions do not end.
        """
        totals, parents, tokens = largest_of_rows(allowed, offsets, 2 * self.beams, maxima)
        parents, tokens = ops.cast(parents, "int32"), ops.cast(tokens, "int32")
        return Extensions(tokens, parents, ops.maximum(totals, NEG_INF))

    def _finished(self, state, best, token_log_probabilities, end_id, lengths):
        """Returns the finished hypotheses including new ones, `Finished` of `[batch, beams]`."""
        # An end counts if it is among the best `beam_size`.
        tokens, parents, totals = (array[:, : self.beams] for array in best[:3])
        ends_now = state.running[:, :1] & (totals > NEG_INF / 2) & (tokens == end_id)
        scores = score_of(totals, ops.expand_dims(lengths, 1), *self.ranking)
        index, token_log_probabilities = state.position, token_log_probabilities[:, : self.beams]
        new = Finished(
            _extend(state.ids, parents, tokens, index),
            _extend(state.token_log_probabilities, parents, token_log_probabilities, index),
            ops.where(ends_now, scores, NEG_INF),
        )
        finished = state.strategy_state.finished
        all_scores = ops.concatenate(
            [finished.scores, new.scores], axis=1
        )  # --> [batch, 2 * beams]
        return finished.best_with(new, all_scores, self.beams)

    def _best_possible(self, totals, lengths, longest, constraints):
        """Returns the best score that an unfinished hypothesis can still get, float32 `[batch]`."""
        best = ops.max(totals, axis=1)
        exists = best > NEG_INF / 2
        if constraints.logit_bias is not None:
            # A bias above 0 may raise the total at each further token.
            gain = ops.maximum(ops.max(constraints.logit_bias), 0.0)
            best = best + gain * ops.cast(longest - lengths, "float32")
        # A score above 0 is best with the smallest penalty, at the next token.
        exponent, normalization, word_penalty = self.ranking
        at_end = [score_of(best, n, exponent, normalization) for n in (lengths + 1, longest)]
        best_scores = ops.maximum(*at_end)
        if self.shrinks:
            # The price of all words is also a monotonous function of their number.
            prices = [score_of(0.0, n, *self.ranking) for n in (lengths + 1, longest)]
            best_scores = best_scores + ops.maximum(*prices)
        return ops.where(exists, best_scores, NEG_INF)

    def returned(self, beam: BeamState, constraints):
        """Returns which unfinished hypotheses are results if too few end, bool `[batch, beams]`."""
        # If fewer hypotheses exist than beams, the other beams hold forbidden ids.
        return beam.totals > NEG_INF / 2

    def hypotheses(self, state: DecodingState, constraints) -> Hypotheses:
        """Returns the finished hypotheses, then the unfinished ones."""
        beam, by_token = state.strategy_state, state.token_log_probabilities
        # Lengths are below the limit where no extension was allowed.
        _, lengths = continuation_of(state.ids, by_token, constraints.forced_lengths)
        scores = score_of(beam.totals, lengths, *self.ranking)
        scores = ops.where(self.returned(beam, constraints), scores, NEG_INF)
        scores, order = ops.top_k(scores, self.beams)  # --> [batch, beams]
        unfinished = Finished(take_rows(state.ids, order), take_rows(by_token, order), scores)
        # Ranked between finished hypotheses and empty places; of equal values, `top_k` returns the
        # first ones.
        unfinished_rank = ops.full_like(scores, NEG_INF / 2)
        if self.shrinks:
            limits = ops.expand_dims(constraints.max_lengths - constraints.forced_lengths, 1)
            unfinished_rank = ops.where(
                take_rows(lengths, order) >= limits, scores, unfinished_rank
            )
        rank = ops.concatenate([beam.finished.scores, unfinished_rank], axis=1)
        ids, by_token, scores = beam.finished.best_with(unfinished, rank, self.n_best)
        exists = ops.expand_dims(scores > NEG_INF / 2, 2)  # --> [batch, n_best, 1]
        ids, by_token = ops.where(exists, ids, PAD_ID), ops.where(exists, by_token, 0.0)
        following = continuation_of(ids, by_token, constraints.forced_lengths)
        return Hypotheses(ids, ops.sum(by_token, axis=2), scores, by_token, *following)


def _value_at(values, rows, indices):
    """Returns `values[b, rows[b, i], indices[b, i]]` of `(batch, count, length)`."""
    batch, count, length = ops.shape(values)
    flat = ops.reshape(values, (batch, count * length, 1))
    return take_rows(flat, rows * length + indices)[..., 0]


def _extend(values, parents, new, position):
    """Returns `values[parents]` with `new` written at `position`."""
    return ops.slice_update(take_rows(values, parents), (0, 0, position), ops.expand_dims(new, 2))
