"""Beam search with finished hypotheses kept apart."""

from typing import NamedTuple

from keras import ops

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.decoding.hypotheses import (
    IMPOSSIBLE,
    Hypotheses,
    forbid,
    length_penalty,
)


class _State(NamedTuple):
    position: object  # int32 scalar: tokens written so far
    newest: object  # int32 [batch, beams]
    alive_ids: object  # int32 [batch, beams, max_length]
    alive_log_probabilities: object  # float32 [batch, beams]
    finished: Hypotheses  # [batch, beams, …], best first; score IMPOSSIBLE = an empty place
    running: object  # bool [batch]
    cache: object


def beam_search(
    step,
    reorder,
    cache,
    length_limits,
    max_length,
    beam_size,
    alpha=0.6,
    n_best=1,
    forbidden_ids=(PAD_ID, BOS_ID),
    end_id=EOS_ID,
):
    """Keeps the `beam_size` most probable unfinished hypotheses of each sentence.

    A hypothesis that ends leaves the beam for a list of finished ones, where its score
    (log-probability over length penalty) is final. A sentence stops when no unfinished
    hypothesis can still enter the first `n_best` places of that list: log-probabilities only
    fall and no hypothesis grows past the sentence's limit, so an unfinished one scores at most
    its present log-probability over the penalty of the limit. A sentence that stopped is frozen.

    Args:
        step: `step(ids, cache) -> (logits, cache)`; ids int32 `(batch, beams)`, logits float32
            `(batch, beams, vocabulary)`.
        reorder: `reorder(cache, parents) -> cache`; parents int32 `(batch, beams)` says which
            hypothesis each one now continues.
        cache: What `step` needs for the first token of `beam_size` hypotheses.
        length_limits: Int32 `(batch,)`: tokens that each sentence may have, the end included.
        max_length: Tokens that the result has room for; no limit may be larger.
        beam_size: Hypotheses that stay alive.
        alpha: Exponent of the length penalty, 0 or more.
        n_best: Hypotheses to return, at most `beam_size`.
        forbidden_ids: Ids that are never chosen.
        end_id: Id that ends a hypothesis.

    Returns:
        `Hypotheses`. Where fewer than `n_best` ended within the limit, the best unfinished ones
        fill the last places.

    Reference: Wu et al. 2016, section 7 (arXiv:1609.08144).
    """
    batch = ops.shape(length_limits)[0]
    # What an unfinished hypothesis is divided by at best: see the stop rule above.
    limit_penalty = length_penalty(length_limits, alpha)

    def unfinished(*state):
        return ops.any(_State(*state).running)

    def advance(*state):
        state = _State(*state)
        logits, cache = step(state.newest, state.cache)
        tokens, parents, log_probabilities = _candidates(
            forbid(logits, forbidden_ids),
            ops.logsumexp(logits, axis=-1),
            state.alive_log_probabilities,
        )  # --> [batch, 2 * beams] each
        ended = tokens == end_id
        position = state.position + 1
        ids = _extend(state.alive_ids, parents, tokens, state.position)

        running = ops.expand_dims(state.running, 1)
        finished = _merge(
            state.finished,
            Hypotheses(
                ids,
                log_probabilities,
                ops.where(
                    ended & running & (log_probabilities > IMPOSSIBLE / 2),
                    log_probabilities / length_penalty(position, alpha),
                    IMPOSSIBLE,
                ),
            ),
        )
        alive, kept = ops.top_k(ops.where(ended, IMPOSSIBLE, log_probabilities), beam_size)
        alive = ops.where(running, alive, state.alive_log_probabilities)
        parents = ops.take_along_axis(parents, kept, axis=1)
        best_possible = ops.max(alive, axis=1) / limit_penalty
        can_win = best_possible > finished.scores[:, n_best - 1]
        return _State(
            position,
            ops.take_along_axis(tokens, kept, axis=1),
            ops.where(ops.expand_dims(running, 2), _take_rows(ids, kept), state.alive_ids),
            alive,
            finished,
            state.running & (position < length_limits) & can_win,
            reorder(cache, parents),
        )

    state = _start(batch, beam_size, max_length, length_limits, cache)
    state = _State(*ops.while_loop(unfinished, advance, tuple(state)))
    return _best(state, length_penalty(length_limits, alpha), n_best)


def _start(batch, beam_size, max_length, length_limits, cache):
    empty = ops.full((batch, beam_size), IMPOSSIBLE, "float32")
    ids = ops.full((batch, beam_size, max_length), PAD_ID, "int32")
    # All hypotheses begin alike: only the first may be extended, or each would be found
    # `beam_size` times.
    first = ops.where(ops.arange(beam_size, dtype="int32") == 0, 0.0, IMPOSSIBLE)
    return _State(
        position=ops.zeros((), "int32"),
        newest=ops.full((batch, beam_size), BOS_ID, "int32"),
        alive_ids=ids,
        alive_log_probabilities=ops.broadcast_to(first, (batch, beam_size)),
        finished=Hypotheses(ids, empty, empty),
        running=length_limits > 0,
        cache=cache,
    )


def _candidates(logits, log_sums, alive_log_probabilities):
    """The `2 * beams` most probable extensions of all hypotheses of a sentence.

    Twice the beam, because at most one extension of each hypothesis ends it: `beams` of them
    stay alive whatever ends. Each hypothesis first names its own best, so that nothing of the
    size of the vocabulary is normalized, moved or sorted.
    """
    beams, vocabulary = logits.shape[1:]
    width = min(2 * beams, vocabulary)
    best, tokens = ops.top_k(logits, width)  # --> [batch, beams, width]
    gained = ops.where(best > IMPOSSIBLE / 2, best - ops.expand_dims(log_sums, 2), IMPOSSIBLE)
    total = ops.expand_dims(alive_log_probabilities, 2) + gained
    total = ops.maximum(total, IMPOSSIBLE)
    total = ops.reshape(total, (-1, beams * width))
    total, chosen = ops.top_k(total, min(2 * beams, beams * width))
    tokens = ops.take_along_axis(ops.reshape(tokens, (-1, beams * width)), chosen, axis=1)
    return ops.cast(tokens, "int32"), ops.cast(chosen // width, "int32"), total


def _extend(ids, parents, tokens, position):
    """`ids[parents]` with `tokens` written at `position`."""
    return ops.slice_update(_take_rows(ids, parents), (0, 0, position), ops.expand_dims(tokens, 2))


def _take_rows(values, rows):
    """`values[b, rows[b, i]]` of `(batch, count, length)`."""
    return ops.take_along_axis(values, ops.expand_dims(rows, 2), axis=1)


def _merge(finished, new):
    """The best of two lists of finished hypotheses, as many as the first one holds."""
    scores = ops.concatenate([finished.scores, new.scores], axis=1)
    _, chosen = ops.top_k(scores, finished.scores.shape[1])
    return _choose(finished, new, chosen)


def _best(state, limit_penalty, n_best):
    """The finished hypotheses, then the unfinished ones."""
    alive = state.alive_log_probabilities
    scores = ops.maximum(alive / ops.expand_dims(limit_penalty, 1), IMPOSSIBLE)
    # Between what ended and the empty places. The unfinished ones are in order already, and
    # `top_k` takes equal values from the left.
    behind = ops.full_like(scores, IMPOSSIBLE / 2)
    rank = ops.concatenate([state.finished.scores, behind], axis=1)
    _, chosen = ops.top_k(rank, n_best)
    # Where fewer hypotheses exist than beams, the others hold forbidden ids.
    exists = ops.expand_dims(alive > IMPOSSIBLE / 2, 2)
    unfinished = Hypotheses(ops.where(exists, state.alive_ids, PAD_ID), alive, scores)
    return _choose(state.finished, unfinished, chosen)


def _choose(first, second, chosen):
    """The `chosen` places of two lists of hypotheses, counted through both."""
    ids, log_probabilities, scores = (
        ops.concatenate(pair, axis=1) for pair in zip(first, second, strict=True)
    )
    return Hypotheses(
        _take_rows(ids, chosen),
        ops.take_along_axis(log_probabilities, chosen, axis=1),
        ops.take_along_axis(scores, chosen, axis=1),
    )
