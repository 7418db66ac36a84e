"""From padded source ids to hypotheses: a strategy, its constraints, and the loop."""

import math
from typing import Any, Protocol

import keras
import numpy as np
from keras import KerasTensor, ops

from keras_transformer import masks
from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding import loop
from keras_transformer.decoding.beam import Beam
from keras_transformer.decoding.constraints import Constraints, length_limits
from keras_transformer.decoding.loop import DecodingState
from keras_transformer.decoding.options import SearchArguments, search_arguments
from keras_transformer.decoding.results import Hypotheses
from keras_transformer.decoding.sampling import Greedy, Sampling
from keras_transformer.options import LENGTH_MARGIN, DecodingOptions

_CAPACITY_MULTIPLE = 16


class SearchModel(Protocol):
    """A model that can be searched: it encodes `(batch, source)`, and has `step` as in `loop`.

    Optional: `reorder(cache, parents)` for beam search; `cache.extended(capacity)` for stages;
    `step_function(attention_layer, attention_heads, weights)` and `step_weights(layout)` to lay
    weights out before the loop; `cache.attention`, float32 `(batch, beams, source)`, for coverage;
    `continues_source`, whether each target begins with the tokens of its source.
    """

    def start_decoding(self, source_ids, capacity, num_beams=1, with_attention=False) -> Any: ...

    def step(self, ids, cache) -> tuple[KerasTensor, Any]: ...


class Search:
    """The compiled part of decoding: functions to a state and the `Hypotheses` that it holds.

    `weights` is what the model's `step_weights` gave, where that is kept.
    """

    def __init__(self, model: SearchModel, options: DecodingOptions):
        self.model, self.options = model, options

    def begin(
        self, arguments: SearchArguments, capacity, stop_at=None, weights=None
    ) -> tuple[DecodingState, Hypotheses]:
        """Encodes, and decodes until all have ended or have `stop_at` of `capacity` tokens."""
        ids, options = arguments.source_ids, self.options  # ids: [batch, source]
        cache = self.model.start_decoding(ids, capacity, options.beams, options.with_coverage)
        strategy, constraints = self._strategy(arguments), self._constraints(arguments)
        state = loop.start(strategy, cache, constraints, capacity)  # --> [batch, beams, capacity]
        return self.proceed(state, arguments, capacity if stop_at is None else stop_at, weights)

    def proceed(
        self, state: DecodingState, arguments: SearchArguments, stop_at, weights=None
    ) -> tuple[DecodingState, Hypotheses]:
        """Goes on from a state of either, up to `stop_at` tokens, at most its capacity."""
        strategy, constraints = self._strategy(arguments), self._constraints(arguments)
        state = _with_static_beams(state, strategy.beams)
        step, reorder = self._step_function(state, weights), getattr(self.model, "reorder", None)
        state = loop.advance(strategy, step, state, constraints, stop_at, reorder)
        return state, strategy.hypotheses(state, constraints)  # --> [batch, n_best, capacity]

    def extended(self, state: DecodingState, capacity: int) -> DecodingState:
        """The state with capacity for more tokens."""
        more = capacity - ops.shape(state.ids)[2]
        return state.extended(more)._replace(cache=state.cache.extended(capacity))

    def _step_function(self, state, weights):
        if not hasattr(self.model, "step_function"):
            return self.model.step
        if weights is None:
            one_row = tuple(state.ids.shape[:2]) == (1, 1)
            weights = self.model.step_weights("one" if one_row else "many")
        options = self.options
        return self.model.step_function(options.attention_layer, options.attention_heads, weights)

    def _strategy(self, arguments):
        options = self.options
        if options.sampling:
            filters = arguments.temperature, arguments.top_k, arguments.top_p, arguments.min_p
            return Sampling(arguments.seeds, options.n_best, *filters, arguments.length_penalty)
        if options.beam_size == 1:
            return Greedy(length_penalty=arguments.length_penalty)
        return Beam(
            options.beam_size,
            arguments.length_penalty,
            options.n_best,
            arguments.coverage_penalty,
            attention=(lambda cache: cache.attention) if options.with_coverage else None,
            source_mask=masks.padding_mask(arguments.source_ids),  # --> [batch, source]
            num_groups=options.num_groups,
            diversity_penalty=arguments.diversity_penalty,
        )

    @property
    def _forbidden_ids(self):
        turn_id = getattr(getattr(self.model, "config", None), "turn_id", None)
        return Constraints._field_defaults["forbidden_ids"] + ((turn_id,) if turn_id else ())

    def _constraints(self, arguments):
        lengths = _token_counts(arguments.source_ids)  # --> [batch]
        min_lengths = ops.cast(ops.cast(lengths, "float32") * arguments.min_length_ratio, "int32")
        margin, prefixes = arguments.max_length_margin, _forced_ids(self.model, arguments)
        if prefixes is not None:
            # What is forced comes on top of what may follow, up to the absolute limit.
            margin = margin + ops.cast(_token_counts(prefixes), "float32")  # --> [batch]
        return Constraints(
            length_limits(lengths, arguments.max_length_ratio, margin, arguments.max_length),
            ops.maximum(min_lengths, arguments.min_length),
            prefixes,
            arguments.logit_bias,
            self.options.no_repeat_ngram_size,
            forbidden_ids=self._forbidden_ids,
        )


def search(
    model: SearchModel,
    source_ids: np.ndarray | KerasTensor,
    beam_size: int = DecodingOptions.beam_size,
    length_penalty: float = DecodingOptions.length_penalty,
    n_best: int = DecodingOptions.n_best,
    max_length: int = 256,
    **options,
) -> Hypotheses:
    """Translates ids in one graph, by any strategy.

    Args:
        model: A `Transformer`, or any other `SearchModel`.
        source_ids: Integer `(batch, source)`, padded with 0. A row of padding gives nothing.
        beam_size: As in `DecodingOptions`, like `length_penalty` and `n_best`.
        max_length: Most tokens of a translation, whatever its source.
        **options: Other fields of `DecodingOptions`; and fields of `SearchArguments` that hold
            tensors (seeds, prefixes, temperatures…) instead of what the options give.

    Raises:
        ValueError: The translations could be longer than the model's learned positions; or a
            prefix, or a language model's source, has `max_length` tokens or more.
    """
    tensors = {
        name: options.pop(name)
        for name in SearchArguments._fields
        if name in options and hasattr(options[name], "shape")
    }
    options |= {"beam_size": beam_size, "length_penalty": length_penalty, "n_best": n_best}
    checked = DecodingOptions(**options)
    arguments = search_arguments(checked, source_ids, max_length)._replace(**tensors)
    longest = checked.resolve_max_length(max_length)
    columns, forced = ops.shape(source_ids)[1], _forced_ids(model, arguments)
    forced_columns = 0 if forced is None else ops.shape(forced)[1]
    capacity = _capacity(columns, checked.max_length_ratio, longest, forced_columns)
    most = getattr(getattr(model, "config", None), "position_limit", None)
    if not isinstance(capacity, int) and most is not None and longest > most:
        given = f"max_length={longest}, the model's max_length={most}"
        raise ValueError(f"Decoding must end within the learned positions. Received: {given}.")
    if forced is not None:
        _check_leaves_room(forced, longest)
    return Search(model, checked).begin(arguments, capacity)[1]


def _forced_ids(model, arguments):
    """Ids that the targets begin with, int32 `(batch, columns)`, padded with 0; or None."""
    if not getattr(model, "continues_source", False):
        return arguments.prefixes
    ids = arguments.source_ids
    return ops.where(ops.equal(ids, EOS_ID), PAD_ID, ids)


def _check_leaves_room(forced, max_length):
    try:
        most = int(np.max(np.count_nonzero(np.asarray(forced), axis=1), initial=0))
    except (NotImplementedError, TypeError):
        return  # a traced tensor, which has no values yet
    if most >= max_length:
        rule = "A forced beginning must have fewer tokens than `max_length`."
        raise ValueError(f"{rule} Received: {most} tokens, max_length={max_length}.")


def _token_counts(ids):  # --> [batch]
    return ops.sum(ops.cast(masks.padding_mask(ids), "int32"), axis=1)


def _with_static_beams(state, beams):
    """A state that came through a compiled function's border, where axes lose their sizes."""

    def static(values):
        return ops.reshape(values, (-1, beams)) if len(values.shape) == 2 else values

    return keras.tree.map_structure(static, state._replace(cache=()))._replace(cache=state.cache)


def _capacity(padded_source_length, ratio, max_length, forced_columns):
    """The largest limit that a padded source can have, rounded up to a multiple of 16, and what is
    forced on top of it."""
    if ratio == math.inf:
        return max_length
    if isinstance(padded_source_length, int):
        tokens = int(ratio * padded_source_length)
    else:
        tokens = ops.cast(ratio * ops.cast(padded_source_length, "float32"), "int32")
    capacity = -(-(tokens + LENGTH_MARGIN) // _CAPACITY_MULTIPLE) * _CAPACITY_MULTIPLE
    return _smaller(capacity + forced_columns, max_length)


def _smaller(size, limit):
    # JAX knows its shapes, and takes nothing but integers for one.
    return min(size, limit) if isinstance(size, int) else ops.minimum(size, limit)
