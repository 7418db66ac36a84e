"""From padded source ids to hypotheses: a strategy, its constraints, and the loop."""

import math
from typing import Any, Protocol

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.decoding import loop
from keras_transformer.decoding.arguments import SearchArguments, search_arguments
from keras_transformer.decoding.beam import Beam
from keras_transformer.decoding.constraints import Constraints, length_limits
from keras_transformer.decoding.greedy import Greedy
from keras_transformer.decoding.hypotheses import Hypotheses
from keras_transformer.decoding.loop import DecodingState
from keras_transformer.decoding.options import DecodingOptions
from keras_transformer.decoding.sampling import Sampling

_CAPACITY_MULTIPLE = 16


class SearchModel(Protocol):
    """What a search needs of a model. `Transformer` has it; so may any other.

    Optional: `reorder(cache, parents)` for beam search; `cache.extended(capacity)` to be run in
    stages; `step_function(attention_layer, attention_heads, weights)` and `step_weights(layout)`
    to lay weights out once before the loop; `cache.attention`, float32 `(batch, beams, source)`,
    for a coverage penalty.
    """

    def start_decoding(self, source_ids, capacity, num_beams=1, with_attention=False) -> Any:
        """Encodes int32 `(batch, source)`; gives the cache for the first token."""

    def step(self, ids, cache) -> tuple[keras.KerasTensor, Any]:
        """From int32 `(batch, beams)` to logits `(batch, beams, vocabulary)` and a cache."""


class Search:
    """The compiled part of decoding, as functions to be compiled.

    Args:
        model: `SearchModel`.
        options: `DecodingOptions`.
    """

    def __init__(self, model: SearchModel, options: DecodingOptions):
        self.model = model
        self.options = options

    def begin(self, arguments: SearchArguments, capacity, stop_at=None, weights=None):
        """Encodes, and decodes until all have ended or have `stop_at` tokens.

        Args:
            arguments: `SearchArguments`.
            capacity: Tokens that the state has room for.
            stop_at: Integer scalar, `capacity` by default.
            weights: What the model's `step_weights` gave, where that is kept.

        Returns:
            `DecodingState` and the `Hypotheses` that it holds.
        """
        cache = self.model.start_decoding(
            arguments.source_ids,
            capacity,
            self.options.beams,
            with_attention=self.options.with_coverage,
        )
        strategy, constraints = self._strategy(arguments), self._constraints(arguments)
        state = loop.start(strategy, cache, constraints, capacity)
        stop_at = capacity if stop_at is None else stop_at
        return self._advance(strategy, constraints, state, stop_at, weights)

    def proceed(self, state: DecodingState, arguments: SearchArguments, stop_at, weights=None):
        """Goes on from a state that `begin` or `proceed` left.

        Args:
            state: `DecodingState`.
            arguments: As it was begun with.
            stop_at: Integer scalar, at most the state's capacity.
            weights: As in `begin`.

        Returns:
            As `begin`.
        """
        state = _with_static_beams(state, self.options.beams)
        strategy, constraints = self._strategy(arguments), self._constraints(arguments)
        return self._advance(strategy, constraints, state, stop_at, weights)

    def extended(self, state: DecodingState, capacity) -> DecodingState:
        """The state with room for more tokens."""
        more = capacity - ops.shape(state.ids)[2]
        return state.extended(more)._replace(cache=state.cache.extended(capacity))

    def _advance(self, strategy, constraints, state, stop_at, weights):
        step = self._step_function(state, weights)
        reorder = getattr(self.model, "reorder", None)
        state = loop.advance(strategy, step, state, constraints, stop_at, reorder)
        return state, strategy.hypotheses(state, constraints)

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
            return Sampling(
                arguments.seeds,
                options.n_best,
                temperature=arguments.temperature,
                top_k=arguments.top_k,
                top_p=arguments.top_p,
                min_p=arguments.min_p,
                length_penalty=arguments.length_penalty,
            )
        if options.beam_size == 1:
            return Greedy(length_penalty=arguments.length_penalty)
        return Beam(
            options.beam_size,
            length_penalty=arguments.length_penalty,
            n_best=options.n_best,
            coverage_penalty=arguments.coverage_penalty,
            attention=(lambda cache: cache.attention) if options.with_coverage else None,
            source_mask=masks.padding_mask(arguments.source_ids),
            num_groups=options.num_groups,
            diversity_penalty=arguments.diversity_penalty,
        )

    def _constraints(self, arguments):
        lengths = _token_counts(arguments.source_ids)
        min_lengths = ops.cast(ops.cast(lengths, "float32") * arguments.min_length_ratio, "int32")
        margin = arguments.max_length_margin
        if arguments.prefixes is not None:
            # What is forced comes on top of what may follow, up to the absolute limit.
            margin = margin + ops.cast(_token_counts(arguments.prefixes), "float32")
        return Constraints(
            length_limits(lengths, arguments.max_length_ratio, margin, arguments.max_length),
            ops.maximum(min_lengths, arguments.min_length),
            arguments.prefixes,
            arguments.logit_bias,
            self.options.no_repeat_ngram_size,
        )


def search(
    model: SearchModel,
    source_ids,
    beam_size: int = 4,
    length_penalty: float = 0.6,
    n_best: int = 1,
    max_length: int = 256,
    **options,
) -> Hypotheses:
    """Translates ids in one graph, by any strategy.

    Args:
        model: A `Transformer`, or any other `SearchModel`.
        source_ids: Integer `(batch, source)`, padded with 0. A row of padding gives nothing.
        beam_size: Hypotheses that stay alive; 1 is greedy search.
        length_penalty: Exponent of the length penalty. It ranks the hypotheses of a beam; of
            greedy search it changes the score alone.
        n_best: Hypotheses to return, at most `beam_size`.
        max_length: Most tokens of a translation, whatever its source.
        **options: Other fields of `DecodingOptions`; and fields of `SearchArguments` that hold
            tensors (seeds, prefixes, temperatures…) instead of what the options give.

    Returns:
        `Hypotheses`.

    Raises:
        ValueError: The translations could be longer than the model's learned positions.
    """
    tensors = {
        name: options.pop(name)
        for name in SearchArguments._fields
        if name in options and hasattr(options[name], "shape")
    }
    checked = DecodingOptions(
        beam_size=beam_size, length_penalty=length_penalty, n_best=n_best, **options
    )
    arguments = search_arguments(checked, source_ids, max_length)._replace(**tensors)
    longest = max_length if checked.max_length is None else checked.max_length
    capacity = _capacity(ops.shape(source_ids)[1], checked.max_length_ratio, longest)
    config = getattr(model, "config", None)
    if not isinstance(capacity, int) and getattr(config, "positions", None) == "learned":
        if longest > config.max_length:
            raise ValueError(
                "Decoding must end within the learned positions. Received: "
                f"max_length={longest}, the model's max_length={config.max_length}."
            )
    if arguments.prefixes is not None:
        capacity = _smaller(capacity + ops.shape(arguments.prefixes)[1], longest)
    return Search(model, checked).begin(arguments, capacity)[1]


def _token_counts(ids):
    """Tokens of each row that are not padding, int32 `(batch,)`."""
    return ops.sum(ops.cast(masks.padding_mask(ids), "int32"), axis=1)


def _with_static_beams(state, beams):
    """A state that came through a compiled function's border, where axes lose their sizes."""

    def static(values):
        return ops.reshape(values, (-1, beams)) if len(values.shape) == 2 else values

    return keras.tree.map_structure(static, state._replace(cache=()))._replace(cache=state.cache)


def _capacity(padded_source_length, ratio, max_length):
    """The largest limit that a padded source can have, rounded up to a multiple of 16."""
    if ratio == math.inf:
        return max_length
    if isinstance(padded_source_length, int):
        capacity = int(ratio * padded_source_length) + 10
    else:
        capacity = ops.cast(ratio * ops.cast(padded_source_length, "float32"), "int32") + 10
    capacity = (capacity + _CAPACITY_MULTIPLE - 1) // _CAPACITY_MULTIPLE * _CAPACITY_MULTIPLE
    return _smaller(capacity, max_length)


def _smaller(size, limit):
    # JAX knows its shapes, and takes nothing but integers for one.
    return min(size, limit) if isinstance(size, int) else ops.minimum(size, limit)
