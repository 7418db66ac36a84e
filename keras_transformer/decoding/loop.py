"""The one decoding loop: score what may follow, let a strategy choose, until all have ended.

A strategy (`Greedy`, `Sampling`, `Beam`) has

- `beams`: hypotheses that it goes on with at once for each sentence;
- `begin(batch, room)`: what it remembers besides the hypotheses themselves;
- `choose(state, logits, allowed, constraints)`: the next `Decoding`, and for each hypothesis the
  one of the same sentence that it continues (`None`: each continues itself);
- `hypotheses(state, constraints)`: the `Hypotheses` found so far;
- `grow(memory, grown)`, of the class: what it remembers with room for more tokens, where `grown`
  does that to an array `(batch, beams, room)`.

The model is a function `step(ids, cache) -> (logits, cache)`: ids int32 `(batch, beams)`, logits
float32 `(batch, beams, vocabulary)`. Anything that has one can be decoded.
"""

from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.config import BOS_ID, PAD_ID
from keras_transformer.decoding.constraints import constrain


class Decoding(NamedTuple):
    """A decoding under way. Every shape is fixed.

    Attributes:
        position: Int32 scalar, tokens written so far.
        newest: Int32 `(batch, beams)`, the last token of each hypothesis.
        ids: Int32 `(batch, beams, room)`, padded with 0.
        token_log_probabilities: Float32 `(batch, beams, room)`.
        running: Bool `(batch, beams)`: whether a hypothesis goes on.
        memory: What the strategy remembers.
        cache: What the model remembers.
    """

    position: object
    newest: object
    ids: object
    token_log_probabilities: object
    running: object
    memory: object
    cache: object


def start(strategy, cache, constraints, room):
    """The state before the first token.

    Args:
        strategy: `Greedy`, `Sampling` or `Beam`.
        cache: What `step` needs for the first token of `strategy.beams` hypotheses.
        constraints: `Constraints`.
        room: Tokens that a hypothesis has room for.

    Returns:
        `Decoding`.
    """
    batch, beams = ops.shape(constraints.max_lengths)[0], strategy.beams
    return Decoding(
        position=ops.zeros((), "int32"),
        newest=ops.full((batch, beams), BOS_ID, "int32"),
        ids=ops.full((batch, beams, room), PAD_ID, "int32"),
        token_log_probabilities=ops.zeros((batch, beams, room), "float32"),
        running=ops.broadcast_to(ops.expand_dims(constraints.max_lengths > 0, 1), (batch, beams)),
        memory=strategy.begin(batch, room),
        cache=cache,
    )


def advance(strategy, step, state, constraints, until, reorder=None, left=0):
    """Decodes until all hypotheses have ended or have `until` tokens.

    Args:
        strategy: As in `start`.
        step: `step(ids, cache) -> (logits, cache)`.
        state: `Decoding`.
        constraints: `Constraints`.
        until: Integer scalar, at most the state's room.
        reorder: `reorder(cache, parents) -> cache`, for a strategy whose hypotheses go on from
            one another; parents int32 `(batch, beams)`.
        left: Integer scalar: stops already when no more sentences than these go on.

    Returns:
        `Decoding`.
    """

    def unfinished(*state):
        state = Decoding(*state)
        running = ops.sum(ops.cast(ops.any(state.running, axis=1), "int32"))
        return ops.logical_and(running > left, state.position < until)

    def body(*before):
        state = Decoding(*before)
        logits, cache = step(state.newest, state.cache)
        allowed = constrain(logits, state.ids, state.position, constraints)
        state, parents = strategy.choose(state._replace(cache=cache), logits, allowed, constraints)
        if parents is not None:
            state = state._replace(cache=reorder(state.cache, parents))
        return keras.tree.map_structure(_of_the_shape_of, tuple(state), before)

    return Decoding(*ops.while_loop(unfinished, body, tuple(state)))


def _of_the_shape_of(values, before):
    """The same values; a size that was known before the loop's body is known after it."""
    if tuple(values.shape) == tuple(before.shape):
        return values
    return ops.reshape(values, ops.shape(before))


def decode(step, cache, strategy, constraints, max_length, reorder=None):
    """Decodes from the first token to the last.

    Args:
        step: `step(ids, cache) -> (logits, cache)`.
        cache: What `step` needs for the first token of `strategy.beams` hypotheses.
        strategy: `Greedy`, `Sampling` or `Beam`.
        constraints: `Constraints`. Each sentence has a limit of its own, so that its batch-mates
            cannot change its result.
        max_length: Tokens that the result has room for; no limit may be larger.
        reorder: As in `advance`; beam search needs it.

    Returns:
        `Hypotheses`.
    """
    state = start(strategy, cache, constraints, max_length)
    state = advance(strategy, step, state, constraints, max_length, reorder)
    return strategy.hypotheses(state, constraints)


def grow(strategy, state, room):
    """Makes room for more tokens in all but the model's cache.

    Args:
        strategy: The class of the strategy: `Greedy`, `Sampling` or `Beam`.
        state: `Decoding`.
        room: Tokens that a hypothesis has room for afterwards.

    Returns:
        `Decoding`.
    """
    more = room - ops.shape(state.ids)[2]

    def grown(values):
        return ops.pad(values, ((0, 0), (0, 0), (0, more)))

    return state._replace(
        ids=grown(state.ids),
        token_log_probabilities=grown(state.token_log_probabilities),
        memory=strategy.grow(state.memory, grown),
    )
