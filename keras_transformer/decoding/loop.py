"""The one decoding loop: score what may follow, let a strategy choose, until all have ended.

The model is a function `step(ids, cache) -> (logits, cache)`: ids int32 `(batch, beams)`, logits
float32 `(batch, beams, vocabulary)`. Anything that has one can be decoded.

A strategy (`Greedy`, `Sampling`, `Beam`) has

- `beams`: hypotheses that it extends at once for each sentence;
- `start(batch, capacity)`: its own state, `()` or a NamedTuple with a method `extended(more)` that
  makes room for more tokens;
- `choose(state, logits, allowed, constraints)`: the next `DecodingState`, and for each hypothesis
  the one of the same sentence that it continues (`None`: each continues itself);
- `hypotheses(state, constraints)`: the `Hypotheses` found so far.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import keras
from keras import ops

from keras_transformer.config import BOS_ID, PAD_ID
from keras_transformer.decoding.constraints import Constraints, constrain
from keras_transformer.decoding.hypotheses import Hypotheses

Step = Callable[[keras.KerasTensor, Any], tuple[keras.KerasTensor, Any]]
Reorder = Callable[[Any, keras.KerasTensor], Any]


class DecodingState(NamedTuple):
    """A search under way. Every shape is fixed."""

    position: keras.KerasTensor  # int32 []: tokens written so far
    newest: keras.KerasTensor  # int32 [batch, beams]: the last token of each hypothesis
    ids: keras.KerasTensor  # int32 [batch, beams, capacity], padded with 0
    token_log_probabilities: keras.KerasTensor  # float32 [batch, beams, capacity]
    running: keras.KerasTensor  # bool [batch, beams]: whether a hypothesis goes on
    strategy_state: Any
    cache: Any  # the model's

    def extended(self, more):
        """With zeros behind each hypothesis for `more` tokens; the model's cache stays."""
        return self._replace(
            ids=pad_tokens(self.ids, more),
            token_log_probabilities=pad_tokens(self.token_log_probabilities, more),
            strategy_state=self.strategy_state and self.strategy_state.extended(more),
        )


class Strategy(Protocol):
    """How the next token of each hypothesis is chosen; see above."""

    beams: int

    def start(self, batch, capacity: int) -> Any: ...

    def choose(
        self, state: DecodingState, logits, allowed, constraints: Constraints
    ) -> tuple[DecodingState, keras.KerasTensor | None]: ...

    def hypotheses(self, state: DecodingState, constraints: Constraints) -> Hypotheses: ...


def start(strategy: Strategy, cache, constraints: Constraints, capacity: int) -> DecodingState:
    """The state before the first token.

    Args:
        strategy: `Greedy`, `Sampling` or `Beam`.
        cache: What `step` needs for the first token of `strategy.beams` hypotheses.
        constraints: `Constraints`.
        capacity: Tokens that a hypothesis has room for.
    """
    batch, beams = ops.shape(constraints.max_lengths)[0], strategy.beams
    return DecodingState(
        position=ops.zeros((), "int32"),
        newest=ops.full((batch, beams), BOS_ID, "int32"),
        ids=ops.full((batch, beams, capacity), PAD_ID, "int32"),
        token_log_probabilities=ops.zeros((batch, beams, capacity), "float32"),
        running=ops.broadcast_to(ops.expand_dims(constraints.max_lengths > 0, 1), (batch, beams)),
        strategy_state=strategy.start(batch, capacity),
        cache=cache,
    )


def advance(
    strategy: Strategy,
    step: Step,
    state: DecodingState,
    constraints: Constraints,
    stop_at,
    reorder: Reorder | None = None,
) -> DecodingState:
    """Decodes until all hypotheses have ended or have `stop_at` tokens.

    Args:
        strategy: As in `start`.
        step: `step(ids, cache) -> (logits, cache)`.
        state: `DecodingState`.
        constraints: `Constraints`.
        stop_at: Integer scalar, at most the state's capacity.
        reorder: `reorder(cache, parents) -> cache`, for a strategy whose hypotheses go on from
            one another; parents int32 `(batch, beams)`.
    """

    def unfinished(*state):
        state = DecodingState(*state)
        return ops.logical_and(ops.any(state.running), state.position < stop_at)

    def body(*before):
        state = DecodingState(*before)
        logits, cache = step(state.newest, state.cache)
        # A cache that came through a compiled function's border may have lost the size of an axis.
        logits = ops.reshape(logits, (-1, strategy.beams, logits.shape[-1]))
        allowed = constrain(logits, state.ids, state.position, constraints)
        state, parents = strategy.choose(state._replace(cache=cache), logits, allowed, constraints)
        if parents is not None:
            state = state._replace(cache=reorder(state.cache, parents))
        return keras.tree.map_structure(_of_the_shape_of, tuple(state), before)

    return DecodingState(*ops.while_loop(unfinished, body, tuple(state)))


def decode(
    step: Step,
    cache,
    strategy: Strategy,
    constraints: Constraints,
    max_length: int,
    reorder: Reorder | None = None,
) -> Hypotheses:
    """Decodes from the first token to the last.

    Args:
        step: `step(ids, cache) -> (logits, cache)`.
        cache: What `step` needs for the first token of `strategy.beams` hypotheses.
        strategy: `Greedy`, `Sampling` or `Beam`.
        constraints: `Constraints`. Each sentence has a limit of its own, so that its batch-mates
            cannot change its result.
        max_length: Tokens that the result has room for; no limit may be larger.
        reorder: As in `advance`; beam search needs it.
    """
    state = start(strategy, cache, constraints, max_length)
    state = advance(strategy, step, state, constraints, max_length, reorder)
    return strategy.hypotheses(state, constraints)


def pad_tokens(values, more):
    """`(batch, beams, capacity)` with zeros for `more` tokens behind."""
    return ops.pad(values, ((0, 0), (0, 0), (0, more)))


def _of_the_shape_of(values, before):
    """The same values; a size that was known before the loop's body is known after it."""
    if tuple(values.shape) == tuple(before.shape):
        return values
    return ops.reshape(values, ops.shape(before))
