"""Greedy search: the most probable token at each step."""

from typing import NamedTuple

from keras import ops

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.decoding.hypotheses import Hypotheses, forbid
from keras_transformer.selection import first_argmax


class _State(NamedTuple):
    position: object  # int32 scalar: tokens written so far
    newest: object  # int32 [batch, 1]
    ids: object  # int32 [batch, max_length]
    log_probabilities: object  # float32 [batch]
    running: object  # bool [batch]
    cache: object


def greedy_search(
    step, cache, length_limits, max_length, forbidden_ids=(PAD_ID, BOS_ID), end_id=EOS_ID
):
    """Extends each sentence by its most probable token until all have ended.

    Args:
        step: `step(ids, cache) -> (logits, cache)`; ids int32 `(batch, 1)`, logits float32
            `(batch, 1, vocabulary)`.
        cache: What `step` needs for the first token.
        length_limits: Int32 `(batch,)`: tokens that each sentence may have, the end included.
            A sentence's own limit, so that its batch-mates cannot change its result.
        max_length: Tokens that the result has room for; no limit may be larger.
        forbidden_ids: Ids that are never chosen.
        end_id: Id that ends a sentence; a negative one ends none.

    Returns:
        `Hypotheses` with one hypothesis a sentence; the scores are the log-probabilities.
    """
    batch = ops.shape(length_limits)[0]

    def unfinished(*state):
        return ops.any(_State(*state).running)

    def advance(*state):
        state = _State(*state)
        logits, cache = step(state.newest, state.cache)
        logits = logits[:, 0]  # --> [batch, vocabulary]
        chosen = first_argmax(forbid(logits, forbidden_ids))
        gained = _value_at(logits, chosen) - ops.logsumexp(logits, axis=-1)
        chosen = ops.where(state.running, chosen, PAD_ID)
        position = state.position + 1
        return _State(
            position,
            ops.expand_dims(chosen, 1),
            ops.slice_update(state.ids, (0, state.position), ops.expand_dims(chosen, 1)),
            state.log_probabilities + ops.where(state.running, gained, 0.0),
            state.running & (chosen != end_id) & (position < length_limits),
            cache,
        )

    state = _State(
        ops.zeros((), "int32"),
        ops.full((batch, 1), BOS_ID, "int32"),
        ops.full((batch, max_length), PAD_ID, "int32"),
        ops.zeros((batch,), "float32"),
        length_limits > 0,
        cache,
    )
    state = _State(*ops.while_loop(unfinished, advance, tuple(state)))
    log_probabilities = ops.expand_dims(state.log_probabilities, 1)
    return Hypotheses(ops.expand_dims(state.ids, 1), log_probabilities, log_probabilities)


def _value_at(logits, ids):
    return ops.take_along_axis(logits, ops.expand_dims(ids, -1), axis=-1)[..., 0]
