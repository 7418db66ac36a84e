"""Searches hypotheses for padded ids, and scores given targets, in one graph each."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from keras import KerasTensor, ops

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import BOS_ID, UNK_ID
from keras_transformer.base.impossible import NEG_INF
from keras_transformer.base.options import check_positive, values_of
from keras_transformer.decoding import loop
from keras_transformer.decoding.arguments import (
    SearchArguments,
    check_candidates,
    check_ids_of,
    check_leaves_room,
    search_arguments,
    tensors_and_options,
)
from keras_transformer.decoding.beam import Beam
from keras_transformer.decoding.constrained_beam import ConstrainedBeam
from keras_transformer.decoding.constraints import Constraints, floor_to_int32, length_limits
from keras_transformer.decoding.loop import DecodingState, StepBody, pad_tokens
from keras_transformer.decoding.ranking import LENGTH_MARGIN
from keras_transformer.decoding.results import Hypotheses
from keras_transformer.decoding.sampling import Greedy, Sampling
from keras_transformer.decoding.search_options import FILTERS, DecodingOptions
from keras_transformer.layers import masks

FIRST_CAPACITY = 32  # tokens of the first loop of a search
_CAPACITY_MULTIPLE = 16
WrapBody: TypeAlias = Callable[[StepBody], StepBody]


class SearchModel:
    """Methods of a model that can be searched; the base class of wrappers of other models.

    The models of this package have these methods. A wrapper needs at least `start_decoding` and
    `step`, and for beam search `reorder`.

    Attributes:
        position_limit: Maximum number of target positions; None: any number.
        forbidden_ids: Ids that no translation contains, in addition to padding and BOS.
        has_unknown_id: Whether id 3 is `<unk>`, which a search chooses only with `allow_unknown`.
        is_extendable: Whether a search may begin with a small cache and extend it.
        has_candidate_logits: Whether `step_function` takes the ids whose logits are needed.
        can_shrink: Whether a search may continue with some of its sentences. Then the batch is
            the first axis of each tensor of a cache except scalars.
    """

    position_limit: int | None = None
    forbidden_ids: tuple[int, ...] = ()
    has_unknown_id: bool = False
    is_extendable: bool = False
    has_candidate_logits: bool = False
    can_shrink: bool = False

    def start_decoding(self, source_ids: KerasTensor, capacity: int, num_beams: int = 1) -> Any:
        """Encodes `(batch, source)` and makes the cache of the first step.

        The cache is any structure of tensors of fixed shapes, with capacity for `capacity` steps of
        `num_beams` hypotheses per sentence.
        """
        raise _lacks(self, "start_decoding", "search")

    def step(self, ids: KerasTensor, cache: Any) -> tuple[KerasTensor, Any]:
        """Computes logits, float `(batch, beams, vocabulary)`, after ids `(batch, beams)`."""
        raise _lacks(self, "step", "search")

    def reorder(self, cache: Any, parents: KerasTensor) -> Any:
        """Lets each hypothesis continue another one: parents int32 `(batch, beams)`."""
        raise _lacks(self, "reorder", "beam search")

    def extended(self, cache: Any, capacity: int) -> Any:
        """Returns the cache with capacity for `capacity` steps, if `is_extendable`."""
        raise _lacks(self, "extended", "search with `is_extendable`")

    def step_weights(self, one_row: bool = False, cached: bool = False) -> Any:
        """Prepares weights for a loop of steps; None to use the weights as they are.

        `one_row`: a step has one hypothesis of one sentence. `cached`: many loops use the result.
        """
        return None

    def step_function(self, weights: Any = None) -> loop.Step:
        """Returns `step` for a loop, with the result of `step_weights`.

        If `has_candidate_logits`, it also takes ids, int32 `(count,)`, whose logits a step returns.
        """
        return self.step


def _lacks(model, method, search):
    rule = f"A {search} needs a model with the method `{method}`, see `SearchModel`."
    return NotImplementedError(f"{rule} Received: {type(model).__name__}.")


class Search:
    """Search of one batch: strategy, constraints and step.

    Args:
        model: A model of this package, or any other `SearchModel`.
        options: `DecodingOptions`, of which only fixed values count.
        arguments: `SearchArguments`, the options that are tensors.
        weights: Result of the model's `step_weights`, if several searches share it.
        wrap_body: Wrapper of a function that several loops call, such as `tf.function`, which
            traces it once.
        first_capacity: Capacity of the first loop, in tokens. XLA compiles each loop, so that fewer
            loops compile sooner.
    """

    def __init__(
        self,
        model,
        options: DecodingOptions,
        arguments: SearchArguments,
        weights=None,
        wrap_body: WrapBody | None = None,
        first_capacity: int = FIRST_CAPACITY,
    ):
        self._first_capacity = first_capacity
        self._model, self._options, self._arguments = model, options, arguments
        candidates = self._candidates = arguments.candidates
        if candidates is not None:
            arguments = _among(candidates, arguments, model.forbidden_ids)
        self._strategy = _strategy(options, arguments)
        self._constraints = _constraints(model, options, arguments)
        if weights is None:
            one_row = arguments.source_ids.shape[0] == 1 and options.beams == 1
            weights = model.step_weights(one_row)
        if candidates is None:
            step = model.step_function(weights)
        elif model.has_candidate_logits:
            step = candidates.step(model.step_function(weights, candidates.ids))
        else:
            step = candidates.step(candidates.limited(model.step_function(weights)))
        self._step, self._forced_ids = step, arguments.forced_ids
        step_body = loop.make_step_body(self._strategy, step, self._constraints, model.reorder)
        self._step_body = step_body if wrap_body is None else wrap_body(step_body)

    def run(self, capacity: int | KerasTensor, longest: int | None = None) -> Hypotheses:
        """Decodes to the end, in loops with capacity for 32, 64, 128, … tokens.

        The time of attention depends on the capacity. A loop runs, and the cache is padded for it,
        only if a sentence has not ended in the previous loop. A single sentence begins with 64,
        because a second loop costs it more time than the larger capacity.

        Args:
            capacity: Maximum number of tokens of a hypothesis, the last axis of the result.
            longest: Upper bound of a traced `capacity`.
        """
        first = self._first_capacity * (2 if self._arguments.source_ids.shape[0] == 1 else 1)
        sizes = [first]
        while sizes[-1] < (capacity if longest is None else longest):
            sizes.append(2 * sizes[-1])
        if not self._model.is_extendable:
            sizes = [capacity]
        sizes = [_smaller(size, capacity) for size in sizes]
        return self._run_loops(self.begin(sizes[0]), sizes)

    def begin(self, capacity: int | KerasTensor) -> DecodingState:
        """Encodes the source, and makes the state before the first token."""
        ids, options = self._arguments.source_ids, self._options  # ids: [batch, source]
        cache = self._model.start_decoding(ids, self._num_steps(capacity), options.beams)
        state = loop.start(self._strategy, cache, self._constraints, capacity)
        if self._forced_ids is None:
            return state
        return loop.after_forced(state, self._step, self._forced_ids)

    def _num_steps(self, capacity):
        """Returns the number of steps of translations of up to `capacity` tokens."""
        return capacity if self._forced_ids is None else capacity + 1

    def proceed(
        self, state: DecodingState, stop_at: int | KerasTensor
    ) -> tuple[DecodingState, Hypotheses]:
        """Decodes until all have ended or have `stop_at` tokens, at most the state's capacity."""
        state = loop.advance(self._step_body, state, stop_at)
        return state, self._hypotheses(state)

    def continue_block(
        self,
        state: DecodingState,
        indices: KerasTensor,
        growth_shape: KerasTensor,
        num_unfinished: KerasTensor,
    ) -> tuple[DecodingState, Hypotheses]:
        """Continues a state with the sentences that the arguments have.

        Decodes until at most `num_unfinished` of them are left, or the capacity is used up.

        Args:
            state: State of these sentences and others.
            indices: Int32 `(batch,)`, the sentences' indices in the state.
            growth_shape: `(tokens,)`. Its length is the number of tokens that the capacity grows
                by. Its values are not read: XLA compiles per shape, and TensorFlow traces once.
            num_unfinished: Int32 `()`.
        """
        state, num_tokens = loop.of_sentences(state, indices), ops.shape(growth_shape)[0]
        capacity = ops.shape(state.ids)[2] + num_tokens
        state = self._extended(state, num_tokens, capacity)
        state = loop.advance(self._step_body, state, capacity, num_unfinished)
        return state, self._hypotheses(state)

    def _extended(self, state, num_tokens, capacity):
        """Returns a state with capacity for more tokens, `capacity` in all."""
        cache = self._model.extended(state.cache, self._num_steps(capacity))
        return state.extended(num_tokens)._replace(cache=cache)

    def _hypotheses(self, state):
        hypotheses = self._strategy.hypotheses(state, self._constraints)
        return hypotheses if self._candidates is None else self._candidates.hypotheses(hypotheses)

    def _run_loops(self, state, sizes):
        size, *larger = sizes
        state = loop.advance(self._step_body, state, size)

        def padded_hypotheses():
            hypotheses = self._hypotheses(state)
            num_tokens = sizes[-1] - size
            return hypotheses._replace(
                ids=pad_tokens(hypotheses.ids, num_tokens),  # --> [batch, n_best, capacity]
                token_log_probabilities=pad_tokens(hypotheses.token_log_probabilities, num_tokens),
            )

        def next_loop():
            extended = self._extended(state, larger[0] - size, larger[0])
            return self._run_loops(extended, larger)

        if not larger:
            return padded_hypotheses()

        def next_loop_if_running():
            return ops.cond(ops.any(state.running), next_loop, padded_hypotheses)

        if isinstance(larger[0], int):
            return next_loop_if_running()
        # XLA knows a traced capacity when it compiles for a shape. Then TensorFlow passes it only
        # one branch of a switch, but both branches of a condition.
        return ops.switch(
            ops.cast(larger[0] > size, "int32"), [padded_hypotheses, next_loop_if_running]
        )


def search(
    model: SearchModel,
    source_ids: np.ndarray | KerasTensor,
    beam_size: int = DecodingOptions.beam_size,
    length_penalty: float = DecodingOptions.length_penalty,
    n_best: int = DecodingOptions.n_best,
    max_length: int = 256,
    wrap_body: WrapBody | None = None,
    first_capacity: int = FIRST_CAPACITY,
    **options,
) -> Hypotheses:
    """Translates ids in one graph, by any strategy.

    Args:
        model: A `Transformer`, or any other `SearchModel`.
        source_ids: Integer `(batch, source)`, padded with 0. A row of padding has an empty result.
        beam_size: As in `DecodingOptions`, like `length_penalty` and `n_best`.
        max_length: Maximum number of tokens of a translation, whatever its source.
        wrap_body: As in `Search`, like `first_capacity`.
        **options: Other fields of `DecodingOptions`, and fields of `SearchArguments`. A number may
            be a traced tensor, and a filter of sampling may have a value for each sentence. A
            `logit_bias` may be an array for the whole vocabulary.

    Raises:
        ValueError: An argument has other axes or is out of range. The translations could be longer
            than the model's learned positions. A prefix has `max_length` tokens or more. An id is
            outside the vocabulary. An id of a prefix or a phrase is not a candidate. The model
            computes NaN.
    """
    _check_model(model)
    check_positive(max_length=max_length, first_capacity=first_capacity)
    max_length, first_capacity = int(max_length), int(first_capacity)
    options |= {"beam_size": beam_size, "length_penalty": length_penalty, "n_best": n_best}
    tensors, decoding_options = tensors_and_options(source_ids, options)
    check_ids_of(model, tensors)
    bias = bias_of(decoding_options, model)
    if bias is not None and "logit_bias" in tensors:
        tensors["logit_bias"] = tensors["logit_bias"] + bias
    decoding_options.check_min_length(max_length)
    source_ids = tensors["source_ids"]
    arguments = search_arguments(decoding_options, source_ids, max_length, logit_bias=bias)
    arguments = arguments._replace(**tensors)
    longest = decoding_options.resolve_max_length(max_length)
    columns, prefixes = ops.shape(source_ids)[1], arguments.prefixes
    forced_columns = 0 if prefixes is None else ops.shape(prefixes)[1]
    if arguments.phrases is not None:
        forced_columns += math.prod(ops.shape(arguments.phrases)[1:])
    capacity = result_capacity(columns, decoding_options.max_length_ratio, longest, forced_columns)
    limit = model.position_limit
    num_steps = longest if arguments.forced_ids is None else longest + 1
    if not isinstance(capacity, int) and limit is not None and num_steps > limit:
        received = f"max_length={num_steps}, the model's max_length={limit}"
        raise ValueError(f"Decoding must end within the learned positions. Received: {received}.")
    if prefixes is not None:
        check_leaves_room(prefixes, longest)
    check_candidates(arguments)
    one = Search(model, decoding_options, arguments, None, wrap_body, first_capacity)
    hypotheses = one.run(capacity, longest)
    _check_no_nan(hypotheses.scores)
    return hypotheses


def _check_model(model):
    names = [name for name in vars(SearchModel) if not name.startswith("_")]
    if missing := [name for name in names if not hasattr(model, name)]:
        rule = "`model` must have the methods and attributes of `SearchModel`, its base class."
        raise InputError(f"{rule} Received: {type(model).__name__} without {', '.join(missing)}.")


def _check_no_nan(scores):
    """Raises `InputError` for a model that computes NaN, where scores have values already."""
    values = values_of(scores)
    if values is not None and np.isnan(values).any():
        row = int(np.flatnonzero(np.isnan(values).any(axis=1))[0])
        raise InputError(f"A step must return finite logits. Received: NaN for sentence {row}.")


def bias_of(options: DecodingOptions, model) -> np.ndarray | None:
    """Returns `logit_bias` and `banned_ids` as an array `(vocabulary,)`, None without them."""
    if not options.banned_ids and not options.logit_bias:
        return None
    if not hasattr(model, "config"):
        rule = "`banned_ids` and a dict `logit_bias` need a model of this package."
        raise InputError(f"{rule} Received: {type(model).__name__}. Give it an array `logit_bias`.")
    options.check_ids(size := model.config.output_vocabulary_size)
    bias = np.zeros(size, "float32")
    for id, value in (*options.logit_bias, *((id, NEG_INF) for id in options.banned_ids)):
        bias[id] = max(value, NEG_INF)
    return bias


def result_capacity(source_columns, ratio: float, max_length: int, forced_columns=0):
    """Returns an upper bound of the number of tokens of translations of a padded source.

    It is `ratio · source_columns` and the margin, rounded up to a multiple of 16, plus forced
    tokens; at most `max_length`. An integer, or a scalar tensor for a traced number of columns.
    """
    if ratio == math.inf:
        return max_length
    if isinstance(source_columns, int):
        tokens = math.ceil(ratio * source_columns)  # `length_limits` may round it up in float32.
    else:
        tokens = floor_to_int32(ops.ceil(ratio * ops.cast(source_columns, "float32")))
    capacity = -(-(tokens + LENGTH_MARGIN) // _CAPACITY_MULTIPLE) * _CAPACITY_MULTIPLE
    return _smaller(capacity + forced_columns, max_length)


def score_targets(model, source_ids, target_ids):
    """Scores targets by teacher forcing, in one pass.

    Args:
        model: A model of `keras_transformer.models`.
        source_ids: Int32 `(batch, source)`, padded with 0.
        target_ids: Int32 `(batch, target)`, without BOS, with EOS and then padding.

    Returns:
        Log-probabilities of the target's tokens, float32 `(batch, target)`, not masked; and the
        alignment, float32 `(batch, target, source)`: the mean of the last block's heads, `None` for
        a model without attention.
    """
    begin = ops.full((ops.shape(target_ids)[0], 1), BOS_ID, "int32")
    decoder_ids = ops.concatenate([begin, target_ids[:, :-1]], axis=1)  # --> [batch, target]
    logits, attention = model.call_with_attention(source_ids, decoder_ids)
    target_logits = ops.take_along_axis(logits, ops.expand_dims(target_ids, 2), axis=2)[..., 0]
    alignment = ops.mean(ops.cast(attention[-1], "float32"), axis=1) if attention else None
    return target_logits - ops.logsumexp(logits, axis=2), alignment


def _strategy(options, arguments):
    has_phrases = arguments.phrases is not None
    ranking = options.ranking_class.of(arguments)
    if has_phrases and options.sampling:
        raise InputError("`phrases` are only for a beam search. Received: sampling=True.")
    if options.sampling:
        filters = {name: getattr(arguments, name) for name in FILTERS}
        ids = None if arguments.candidates is None else arguments.candidates.ids
        return Sampling(arguments.seeds, options.n_best, ranking=ranking, ids=ids, **filters)
    if options.beam_size == 1 and not has_phrases:
        return Greedy(ranking)
    strategy_class = ConstrainedBeam if has_phrases else Beam
    return strategy_class(options.beam_size, ranking, options.n_best, options.stops_early)


def _among(candidates, arguments, forbidden_ids):
    """Returns the arguments of a search whose tokens are indices of candidates."""
    names = ("prefixes", "phrases", "forced_ids")
    ids_by_name = {name: getattr(arguments, name) for name in names}
    indices = {
        name: None if ids is None else candidates.indices(ids) for name, ids in ids_by_name.items()
    }
    bias = candidates.bias(arguments.logit_bias, forbidden_ids)
    return arguments._replace(**indices, logit_bias=bias)


def _constraints(model, options, arguments):
    lengths = _token_counts(arguments.source_ids)  # --> [batch]
    min_lengths = floor_to_int32(ops.cast(lengths, "float32") * arguments.min_length_ratio)
    margin = arguments.max_length_margin
    for forced in (arguments.prefixes, arguments.phrases):
        if forced is not None:
            # The limit does not include forced tokens, up to the absolute limit.
            margin = margin + ops.cast(_token_counts(forced), "float32")  # --> [batch]
    forbidden_ids = list(Constraints._field_defaults["forbidden_ids"])
    if model.has_unknown_id and not options.allow_unknown:
        forbidden_ids.append(UNK_ID)
    if arguments.candidates is None:  # otherwise the bias forbids them
        forbidden_ids += model.forbidden_ids
    return Constraints(
        length_limits(lengths, arguments.max_length_ratio, margin, arguments.max_length),
        ops.maximum(min_lengths, arguments.min_length),
        arguments.prefixes,
        arguments.logit_bias,
        options.no_repeat_ngram_size,
        forbidden_ids=tuple(forbidden_ids),
        phrases=arguments.phrases,
    )


def _token_counts(ids):  # --> [batch]
    is_token = ops.cast(masks.padding_mask(ids), "int32")
    return ops.sum(is_token, axis=tuple(range(1, len(ids.shape))))


def _smaller(size, limit):
    # JAX knows its shapes, and takes only integers as sizes.
    is_static = isinstance(size, int) and isinstance(limit, int)
    return min(size, limit) if is_static else ops.minimum(size, limit)
