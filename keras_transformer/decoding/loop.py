"""Decoding loop: scores next tokens and lets a strategy choose, until all hypotheses have ended.

The model is a function `step(ids, cache) -> (logits, cache)`: ids int32 `(batch, beams)`, logits
float `(batch, beams, vocabulary)`. Any model with such a function can be decoded.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import keras
from keras import KerasTensor, ops

from keras_transformer.base.ids import BOS_ID, PAD_ID
from keras_transformer.decoding.constraints import Constraints, constrain
from keras_transformer.decoding.results import Hypotheses

Step = Callable[[KerasTensor, Any], tuple[KerasTensor, Any]]
Reorder = Callable[[Any, KerasTensor], Any]
StepBody = Callable[..., tuple]


class DecodingState(NamedTuple):
    """State of a search. Every shape is fixed."""

    position: KerasTensor  # int32 []: number of tokens written so far
    newest: KerasTensor  # int32 [batch, beams]: the last token of each hypothesis
    ids: KerasTensor  # int32 [batch, beams, capacity], padded with 0
    token_log_probabilities: KerasTensor  # float32 [batch, beams, capacity]
    running: KerasTensor  # bool [batch, beams]: whether a hypothesis continues
    strategy_state: Any
    cache: Any  # the model's

    def extended(self, num_tokens: int) -> "DecodingState":
        """Returns the state with capacity for more tokens; the model's cache stays."""
        return self._replace(
            ids=pad_tokens(self.ids, num_tokens),
            token_log_probabilities=pad_tokens(self.token_log_probabilities, num_tokens),
            strategy_state=self.strategy_state and self.strategy_state.extended(num_tokens),
        )


class Strategy(Protocol):
    """Chooses the next token of each hypothesis: `Greedy`, `Sampling`, `Beam`, `ConstrainedBeam`.

    It extends `beams` hypotheses per sentence at once. `start` returns the strategy's own state,
    `()` or a NamedTuple with `extended(num_tokens)` for more capacity. `choose` takes logits before
    and after the constraints, `(batch, beams, vocabulary)`. It returns the next state, and for each
    hypothesis the hypothesis of the same sentence that it continues, `(batch, beams)`; `None` if
    each continues itself.
    """

    beams: int

    def start(self, constraints: Constraints, capacity: int) -> Any: ...

    def choose(self, state, logits, allowed, constraints) -> tuple[DecodingState, Any]: ...

    def hypotheses(self, state: DecodingState, constraints: Constraints) -> Hypotheses: ...


def start(strategy: Strategy, cache: Any, constraints: Constraints, capacity: int) -> DecodingState:
    """Makes the state before the first token.

    Args:
        strategy: Chooses the next tokens of the hypotheses, such as `Beam`.
        cache: Cache of `step` for the first token of `strategy.beams` hypotheses.
        constraints: Each sentence has its own limit, so that other sentences in the batch cannot
            change its result.
        capacity: Capacity of the state in tokens; `DecodingState.extended` increases it.
    """
    limits, beams = constraints.max_lengths, strategy.beams  # limits: [batch]
    batch = ops.shape(limits)[0]
    return DecodingState(
        position=ops.zeros((), "int32"),
        newest=ops.full((batch, beams), BOS_ID, "int32"),
        ids=ops.full((batch, beams, capacity), PAD_ID, "int32"),
        token_log_probabilities=ops.zeros((batch, beams, capacity), "float32"),
        running=ops.broadcast_to(ops.expand_dims(limits > 0, 1), (batch, beams)),
        strategy_state=strategy.start(constraints, capacity),
        cache=cache,
    )


def after_forced(state: DecodingState, step: Step, forced_ids: KerasTensor) -> DecodingState:
    """Returns the state whose first step reads `forced_ids`, int32 `(batch,)`, after BOS.

    The cache holds BOS. The forced token is in no hypothesis, so that no score, length or
    constraint counts it.
    """
    _, cache = step(state.newest, state.cache)  # newest: [batch, beams]
    cache = keras.tree.map_structure(_of_the_shape_of, cache, state.cache)
    forced_ids = ops.broadcast_to(ops.expand_dims(forced_ids, 1), ops.shape(state.newest))
    return state._replace(newest=forced_ids, cache=cache)


def make_step_body(
    strategy: Strategy, step: Step, constraints: Constraints, reorder: Reorder | None = None
) -> StepBody:
    """Makes the loop's body, a function from the fields of a `DecodingState` to the next fields.

    Beam search needs `reorder(cache, parents) -> cache`, because its hypotheses continue one
    another; parents int32 `(batch, beams)`.
    """

    def body(*fields):
        state = DecodingState(*fields)
        logits, cache = step(state.newest, state.cache)
        logits = _float32_logits(logits, state.newest)  # --> [batch, beams, vocabulary]
        # --> [batch, beams, vocabulary]
        allowed = constrain(logits, state.ids, state.position, constraints)
        # parents: [batch, beams]
        state, parents = strategy.choose(state._replace(cache=cache), logits, allowed, constraints)
        if parents is not None:
            state = state._replace(cache=reorder(state.cache, parents))
        return tuple(state)

    return body


def _float32_logits(logits, ids):
    """Returns the logits of `step` in float32; checks their axes."""
    axes = zip(logits.shape, (*ids.shape, logits.shape[-1]), strict=False)
    if len(logits.shape) != 3 or any(None not in sizes and len({*sizes}) > 1 for sizes in axes):
        expected = f"(batch={ids.shape[0]}, beams={ids.shape[1]}, vocabulary)"
        rule = f"`step` must return logits of the shape {expected}."
        raise ValueError(f"{rule} Received: {tuple(logits.shape)}.")
    if ids.shape[1] is not None:  # A model may have lost the static size of the axis.
        logits = ops.reshape(logits, (-1, ids.shape[1], logits.shape[-1]))
    return ops.cast(logits, "float32")


def advance(
    step_body: StepBody,
    state: DecodingState,
    stop_at: int | KerasTensor,
    num_unfinished: KerasTensor | None = None,
) -> DecodingState:
    """Decodes until all hypotheses have ended or have `stop_at` tokens, at most the capacity.

    With `num_unfinished`, int32 `()`, it stops as soon as at most this number of sentences is left.
    """

    def unfinished(*fields):
        state = DecodingState(*fields)
        is_left = ops.any(state.running, axis=1)  # --> [batch]
        if num_unfinished is None:
            goes_on = ops.any(is_left)
        else:
            goes_on = ops.sum(ops.cast(is_left, "int32")) > num_unfinished
        return ops.logical_and(goes_on, state.position < stop_at)

    def body(*fields):
        return keras.tree.map_structure(_of_the_shape_of, step_body(*fields), fields)

    return DecodingState(*ops.while_loop(unfinished, body, tuple(state)))


def decode(
    step: Step,
    cache: Any,
    strategy: Strategy,
    constraints: Constraints,
    max_length: int,
    reorder: Reorder | None = None,
) -> Hypotheses:
    """Decodes from the first token to the last.

    Args:
        step: The model.
        cache: Cache of `step` for the first token of `strategy.beams` hypotheses.
        strategy: Chooses the next tokens of the hypotheses, such as `Beam`.
        constraints: Each sentence has its own limit, so that other sentences in the batch cannot
            change its result.
        max_length: Capacity of the result in tokens; no limit may be larger.
        reorder: `reorder(cache, parents) -> cache` for beam search, whose hypotheses continue one
            another; parents int32 `(batch, beams)`.

    Example:

    >>> from keras_transformer.decoding import Beam, Constraints, GNMTRanking
    >>> logits = keras.ops.log([0.0, 0.0, 1 / 3, 0.0, 2 / 3])  # 2 ends a sentence.
    >>> step = lambda ids, cache: (keras.ops.broadcast_to(logits, (*ids.shape, 5)), cache)

    >>> beam, limits = Beam(2, GNMTRanking(0.0)), Constraints(keras.ops.array([3]))
    >>> found = decode(step, (), beam, limits, max_length=3, reorder=lambda cache, _: cache)

    >>> [int(id) for id in found.ids[0, 0]]
    [2, 0, 0]
    """
    state = start(strategy, cache, constraints, max_length)
    state = advance(make_step_body(strategy, step, constraints, reorder), state, max_length)
    return strategy.hypotheses(state, constraints)


def of_sentences(structure: Any, indices: KerasTensor) -> Any:
    """Selects sentences by their indices, int32 `(count,)`.

    The first axis of a tensor is the batch; scalars and `None` stay as they are.
    """

    def taken(tensor):
        has_batch = tensor is not None and len(tensor.shape) > 0
        return ops.take(tensor, indices, axis=0) if has_batch else tensor

    return keras.tree.map_structure(taken, structure)


def pad_tokens(values, num_tokens: int):
    """Pads with zeros at the end to `[batch, beams, capacity + num_tokens]`."""
    return ops.pad(values, ((0, 0), (0, 0), (0, num_tokens)))


def _of_the_shape_of(values, old_values):
    """Gives values the static sizes that they had before the loop's body."""
    if tuple(values.shape) == tuple(old_values.shape):
        return values
    return ops.reshape(values, ops.shape(old_values))
