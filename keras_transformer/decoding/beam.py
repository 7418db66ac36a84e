"""Beam search with finished hypotheses kept apart, in one group or in several that differ."""

from typing import NamedTuple

from keras import KerasTensor, ops

from keras_transformer import masks
from keras_transformer.config import PAD_ID
from keras_transformer.decoding.hypotheses import (
    IMPOSSIBLE,
    Hypotheses,
    coverage_penalty,
    length_penalty,
)
from keras_transformer.decoding.loop import DecodingState, pad_tokens
from keras_transformer.selection import largest_of_rows, take_rows


class _Finished(NamedTuple):
    ids: KerasTensor  # int32 [batch, beams, capacity]
    token_log_probabilities: KerasTensor  # float32 [batch, beams, capacity]
    scores: KerasTensor  # float32 [batch, beams], best first; IMPOSSIBLE = an empty place


class _BeamState(NamedTuple):
    totals: KerasTensor  # float32 [batch, beams]: what alive hypotheses are ranked by
    finished: _Finished
    coverage: KerasTensor | tuple  # float32 [batch, beams, source], or ()

    def extended(self, more):
        ids, token_log_probabilities, scores = self.finished
        finished = pad_tokens(ids, more), pad_tokens(token_log_probabilities, more), scores
        return self._replace(finished=_Finished(*finished))


class _Extensions(NamedTuple):
    """Hypotheses with one token more, best first, `[rows, count]` each."""

    tokens: KerasTensor  # int32
    parents: KerasTensor  # int32: the hypothesis of the row that each one extends
    totals: KerasTensor  # float32: what they are ranked by; IMPOSSIBLE = there is none
    gained: KerasTensor  # float32: the token's log-probability

    @property
    def exist(self):
        return self.totals > IMPOSSIBLE / 2

    def unfinished(self, count, end_id):
        """The first `count` that do not end; a total of IMPOSSIBLE fills empty places."""
        going_on = ops.cast(self.exist & (self.tokens != end_id), "int32")
        order = ops.arange(going_on.shape[1], dtype="int32")
        rank = ops.cast(going_on * 4 * count - order, "float32")
        _, kept = ops.top_k(rank, count)
        found = _Extensions(*(take_rows(each, kept) for each in self))
        totals = ops.where(take_rows(going_on, kept) > 0, found.totals, IMPOSSIBLE)
        return found._replace(totals=totals)


class Beam:
    """Keeps the `beam_size` most probable unfinished hypotheses of each sentence.

    Of the extensions of all hypotheses, the best `beam_size` count. Those that end leave the beam
    for a list of finished hypotheses, where their score (log-probability over length penalty, and
    the coverage penalty) is final, and the next best ones that do not end take their places. A
    sentence stops when no unfinished hypothesis can still enter the first `n_best` places of that
    list: log-probabilities only fall, no hypothesis grows past the sentence's limit, and the
    coverage penalty is never above 0, so an unfinished one scores at most its present
    log-probability over the penalty of the limit. A sentence that stopped is frozen.

    A logit bias takes part in the ranking (each token's is added to its log-probability) and
    not in the log-probabilities that are returned.

    Args:
        beam_size: Hypotheses that stay alive.
        length_penalty: Exponent of the length penalty, 0 or more; may be a traced scalar.
        n_best: Hypotheses to return, at most `beam_size`.
        coverage_penalty: Weight of the coverage penalty, 0 or more; may be a traced scalar.
        attention: From the model's cache to the last step's attention to the source, float32
            `(batch, beams, source)`; without it there is no coverage penalty.
        source_mask: Bool `(batch, source)`, for the coverage penalty.
        num_groups: Groups of `beam_size / num_groups` hypotheses. A group takes
            `diversity_penalty` off the log-probability of a token for each hypothesis of an
            earlier group that just chose it; that decides what is kept, and is in no score.
        diversity_penalty: See `num_groups`; may be a traced scalar.

    References: Wu et al. 2016, section 7 (arXiv:1609.08144), the penalties and the search;
    Vijayakumar et al. 2016 (arXiv:1610.02424), the groups.
    """

    def __init__(
        self,
        beam_size,
        length_penalty=0.6,
        n_best=1,
        coverage_penalty=0.0,
        attention=None,
        source_mask=None,
        num_groups=1,
        diversity_penalty=0.5,
    ):
        self.beams = beam_size
        self.width = beam_size // num_groups
        self.num_groups = num_groups
        self.length_penalty = length_penalty
        self.n_best = n_best
        self.coverage_penalty = coverage_penalty
        self.attention = attention
        self.source_mask = source_mask
        self.diversity_penalty = diversity_penalty

    def start(self, batch, capacity):
        shape = (batch, self.beams)
        empty = _Finished(
            ops.full((*shape, capacity), PAD_ID, "int32"),
            ops.zeros((*shape, capacity), "float32"),
            ops.full(shape, IMPOSSIBLE, "float32"),
        )
        # All hypotheses of a group begin alike: only its first may be extended, or each would
        # be found `width` times.
        first = ops.arange(self.beams, dtype="int32") % self.width == 0
        totals = ops.broadcast_to(ops.where(first, 0.0, IMPOSSIBLE), shape)
        coverage = ()
        if self.attention is not None:
            coverage = ops.zeros((*shape, ops.shape(self.source_mask)[1]), "float32")
        return _BeamState(totals, empty, coverage)

    def choose(self, state, logits, allowed, constraints):
        # From here to the end of the function, the groups of a sentence are rows of their own.
        rows, whole, before = self._rows, self._whole, state.strategy_state
        running = rows(state.running)[:, :1]  # --> [rows, 1]
        limits = ops.repeat(constraints.max_lengths, self.num_groups)  # --> [rows]
        log_sums = rows(ops.logsumexp(logits, axis=-1))  # --> [rows, width]
        tokens, parents, totals = self._extensions(
            rows(allowed), rows(before.totals), log_sums, running, constraints.end_id
        )  # --> [rows, 2 * width]
        gained = _value_at(rows(logits), parents, tokens) - take_rows(log_sums, parents)
        gained = ops.where(totals > IMPOSSIBLE / 2, gained, 0.0)
        best = _Extensions(tokens, parents, totals, gained)  # --> [rows, 2 * width] each
        coverage = ()
        if self.attention is not None:
            coverage = rows(before.coverage + self.attention(state.cache))
        finished = self._finished(state, best, coverage, running, constraints.end_id)

        kept = best.unfinished(self.width, constraints.end_id)  # --> [rows, width] each
        # Where nothing at all is allowed, what is alive stays, without an end.
        moves = running & ops.any(best.exist, axis=1, keepdims=True)  # --> [rows, 1]
        alive = ops.where(moves, kept.totals, rows(before.totals))
        position = state.position + 1
        can_win = (
            self._best_possible(alive, position, limits, constraints)
            > (finished.scores[:, min(self.n_best, self.width) - 1])
        )
        can_win = self._in_any_group(moves[:, 0] & can_win)  # --> [rows]
        running = moves & ops.expand_dims((position < limits) & can_win, 1)

        def moved(after, old):
            return whole(ops.where(ops.expand_dims(moves, 2), after, old))

        def extended(values, new):
            return moved(_extend(rows(values), kept.parents, new, state.position), rows(values))

        if self.attention is not None:
            coverage = moved(take_rows(coverage, kept.parents), rows(before.coverage))
        finished = _Finished(*(whole(each) for each in finished))
        state = DecodingState(
            position,
            whole(kept.tokens),
            extended(state.ids, kept.tokens),
            extended(state.token_log_probabilities, kept.gained),
            whole(ops.broadcast_to(running, ops.shape(alive))),
            _BeamState(whole(alive), finished, coverage),
            state.cache,
        )
        return state, self._parents_in_sentence(kept.parents)

    def _finished(self, state, best, coverage, running, end_id):
        """The finished hypotheses with those that end now, `_Finished` of `[rows, width]`."""
        rows = self._rows
        # An end counts if it is among the best `width`.
        tokens, parents, totals, gained = (each[:, : self.width] for each in best)
        ended = running & (totals > IMPOSSIBLE / 2) & (tokens == end_id)
        scores = totals / length_penalty(state.position + 1, self.length_penalty)
        if self.attention is not None:
            scores = scores + take_rows(self._coverage_scores(coverage), parents)
        new = _Finished(
            _extend(rows(state.ids), parents, tokens, state.position),
            _extend(rows(state.token_log_probabilities), parents, gained, state.position),
            ops.where(ended, scores, IMPOSSIBLE),
        )
        before = state.strategy_state.finished
        return _merge(_Finished(*(rows(each) for each in before)), new)

    def _in_any_group(self, can_win):
        # The later groups avoid what a group chooses: it goes on as long as they do.
        if self.num_groups == 1:
            return can_win
        can_win = ops.any(ops.reshape(can_win, (-1, self.num_groups)), axis=1)
        return ops.repeat(can_win, self.num_groups)

    def hypotheses(self, state, constraints):
        """The finished hypotheses, then the unfinished ones."""
        beam = state.strategy_state
        # Less than the limit where nothing could follow.
        lengths = ops.sum(ops.cast(masks.padding_mask(state.ids), "int32"), axis=2)
        scores = beam.totals / length_penalty(lengths, self.length_penalty)
        if self.attention is not None:
            scores = scores + self._coverage_scores(beam.coverage)
        # Where fewer hypotheses exist than beams, the others hold forbidden ids.
        scores = ops.where(beam.totals > IMPOSSIBLE / 2, scores, IMPOSSIBLE)
        scores, order = ops.top_k(scores, self.beams)
        exists = ops.expand_dims(scores > IMPOSSIBLE / 2, 2)
        unfinished = _Finished(
            ops.where(exists, take_rows(state.ids, order), PAD_ID),
            ops.where(exists, take_rows(state.token_log_probabilities, order), 0.0),
            scores,
        )
        # Between what ended and the empty places; `top_k` takes equal values from the left.
        behind = ops.full_like(scores, IMPOSSIBLE / 2)
        rank = ops.concatenate([beam.finished.scores, behind], axis=1)
        _, chosen = ops.top_k(rank, self.n_best)
        best = _pick(beam.finished, unfinished, chosen)
        return Hypotheses(
            best.ids,
            ops.sum(best.token_log_probabilities, axis=2),
            best.scores,
            best.token_log_probabilities,
        )

    def _extensions(self, allowed, totals, log_sums, running, end_id):
        """The `2 · width` best extensions of each group, best first.

        Twice the width, because at most one extension of each hypothesis ends it: `width` of
        them stay alive whatever ends.
        """
        offsets = totals - log_sums
        if self.num_groups == 1:
            sums, parents, tokens = largest_of_rows(allowed, offsets, 2 * self.width)
            return _as_ids(tokens), _as_ids(parents), ops.maximum(sums, IMPOSSIBLE)
        vocabulary = allowed.shape[2]
        by_group = (-1, self.num_groups, self.width)
        allowed = ops.reshape(allowed, (*by_group, vocabulary))
        offsets, running = ops.reshape(offsets, by_group), ops.reshape(running, by_group[:2])
        chosen, times = [], 0.0
        for group in range(self.num_groups):
            values, offset = allowed[:, group], offsets[:, group]
            penalized = values - self.diversity_penalty * times
            _, parents, tokens = largest_of_rows(penalized, offset, 2 * self.width)
            parents, tokens = _as_ids(parents), _as_ids(tokens)
            sums = _value_at(values, parents, tokens) + take_rows(offset, parents)
            chosen.append((tokens, parents, ops.maximum(sums, IMPOSSIBLE)))
            # What the group goes on with: of its best, the first that do not end.
            exists = running[:, group : group + 1] & (sums > IMPOSSIBLE / 2)
            goes_on = ops.cast(exists & (tokens != end_id), "int32")
            goes_on = goes_on * ops.cast(ops.cumsum(goes_on, axis=1) <= self.width, "int32")
            counted = ops.one_hot(ops.where(goes_on > 0, tokens, -1), vocabulary)
            times = times + ops.sum(counted, axis=1, keepdims=True)
        return tuple(
            self._rows(ops.concatenate(each, axis=1), 2) for each in zip(*chosen, strict=True)
        )

    def _best_possible(self, totals, position, limits, constraints):
        """What the best unfinished hypothesis can score at most, float32 `(rows,)`."""
        best = ops.max(totals, axis=1)
        exists = best > IMPOSSIBLE / 2
        at_limit = length_penalty(limits, self.length_penalty)
        if constraints.logit_bias is not None:
            # A bias above 0 may lift each token that is still to come, and a score above 0 is
            # best with the smallest penalty.
            gain = ops.maximum(ops.max(constraints.logit_bias), 0.0)
            left = ops.cast(limits - position, "float32")
            best = best + gain * left
            at_limit = ops.where(
                best > 0, length_penalty(position + 1, self.length_penalty), at_limit
            )
        return ops.where(exists, best / at_limit, IMPOSSIBLE)

    def _coverage_scores(self, coverage):
        mask = ops.expand_dims(self.source_mask, 1)
        if self.num_groups > 1 and len(coverage.shape) == 3:
            repeats = ops.shape(coverage)[0] // ops.shape(mask)[0]
            mask = ops.repeat(mask, repeats, axis=0)
        return self.coverage_penalty * coverage_penalty(coverage, mask)

    def _rows(self, values, times=1):
        """From `(batch, beams, …)` to `(batch · groups, width, …)`."""
        if self.num_groups == 1:
            return values
        return ops.reshape(values, (-1, times * self.width, *ops.shape(values)[2:]))

    def _whole(self, values):
        """From `(batch · groups, width, …)` to `(batch, beams, …)`."""
        if self.num_groups == 1:
            return values
        return ops.reshape(values, (-1, self.beams, *ops.shape(values)[2:]))

    def _parents_in_sentence(self, parents):
        first = ops.arange(self.beams, dtype="int32") // self.width * self.width
        return self._whole(parents) + first


def _as_ids(values):
    return ops.cast(values, "int32")


def _value_at(values, rows, places):
    """`values[b, rows[b, i], places[b, i]]` of `(batch, count, length)`."""
    batch, count, length = ops.shape(values)
    flat = ops.reshape(values, (batch, count * length, 1))
    return take_rows(flat, rows * length + places)[..., 0]


def _extend(values, parents, new, position):
    """`values[parents]` with `new` written at `position`."""
    return ops.slice_update(take_rows(values, parents), (0, 0, position), ops.expand_dims(new, 2))


def _merge(finished, new):
    """The best of two lists of finished hypotheses, as many as the first one holds."""
    scores = ops.concatenate([finished.scores, new.scores], axis=1)
    _, chosen = ops.top_k(scores, finished.scores.shape[1])
    return _pick(finished, new, chosen)


def _pick(first, second, chosen):
    """The `chosen` places of two lists of hypotheses, counted through both."""
    pairs = zip(first, second, strict=True)
    return _Finished(*(take_rows(ops.concatenate(pair, axis=1), chosen) for pair in pairs))
