"""Arguments of a compiled search: sources, and options that are tensors; checked where known."""

import math
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
from keras import KerasTensor, ops

from keras_transformer.base.errors import InputError, did_you_mean
from keras_transformer.base.ids import PAD_ID
from keras_transformer.base.options import check_ids, received, values_of
from keras_transformer.decoding.candidates import Candidates
from keras_transformer.decoding.search_options import FILTERS, DecodingOptions

Tensor: TypeAlias = np.ndarray | KerasTensor


class SearchArguments(NamedTuple):
    """Arguments of a compiled search: the sources of a batch, and options that are tensors.

    In sampling, the values of `FILTERS` may also be `(batch,)`.
    """

    source_ids: Tensor  # int32 [batch, source], padded with 0
    seeds: Tensor | None  # int32 [batch]
    prefixes: Tensor | None  # int32 [batch, prefix]: target prefixes, padded
    logit_bias: Tensor | None  # float32 [vocabulary]
    phrases: Tensor | None  # int32 [batch, phrases, length]: required phrases, padded
    candidates: Candidates | None  # None: all tokens of the vocabulary
    forced_ids: Tensor | None  # int32 [batch]: read after BOS, before a translation
    length_penalty: Tensor  # float32 [], like all up to `max_length_margin`
    word_penalty: Tensor
    temperature: Tensor
    top_p: Tensor
    min_length_ratio: Tensor
    max_length_ratio: Tensor  # maximum number of tokens per source token, plus the margin
    max_length_margin: Tensor
    top_k: Tensor  # int32 [], like all below
    min_length: Tensor
    max_length: Tensor  # maximum number of tokens of any translation


def search_arguments(
    options: DecodingOptions,
    source_ids: Tensor,
    max_length: int,
    seeds: Tensor | None = None,
    prefixes: Tensor | None = None,
    logit_bias: Tensor | None = None,
    phrases: Tensor | None = None,
    candidates: Candidates | None = None,
    forced_ids: Tensor | None = None,
) -> SearchArguments:
    """Makes `SearchArguments` from options; `seeds` are by default the options' seed.

    `max_length` is the default of the option.
    """
    ratio, margin = options.max_length_ratio, options.length_margin
    if ratio == math.inf:
        ratio, margin = 0.0, 2**24  # above any `max_length`, and exact in float32
    if options.sampling and seeds is None:
        seeds = ops.full((ops.shape(source_ids)[0],), options.seed, "int32")
    filters: dict[str, Any] = {
        name: np.dtype(filter.dtype).type(getattr(options, name))
        for name, filter in FILTERS.items()
    }
    return SearchArguments(
        source_ids,
        seeds,
        prefixes,
        logit_bias,
        phrases,
        candidates,
        forced_ids,
        length_penalty=np.float32(options.length_penalty),
        word_penalty=np.float32(options.word_penalty),
        min_length_ratio=np.float32(options.min_length_ratio),
        max_length_ratio=np.float32(ratio),
        max_length_margin=np.float32(margin),
        min_length=np.int32(options.min_length),
        max_length=np.int32(options.resolve_max_length(max_length)),
        **filters,
    )


# Axes of arguments. Numbers have none; a filter may also have a number for each sentence.
_AXES = {
    "source_ids": ("batch", "source"),
    "seeds": ("batch",),
    "prefixes": ("batch", "prefix"),
    "phrases": ("batch", "phrases", "length"),
    "forced_ids": ("batch",),
    "logit_bias": ("vocabulary",),
}
# Arguments without an option of their name.
_NEVER_OPTIONS = {*SearchArguments._fields} - DecodingOptions.__dataclass_fields__.keys()
_INTEGERS = {*_AXES, "min_length"} - {"logit_bias"}
_INTEGERS |= {name for name, filter in FILTERS.items() if filter.dtype == "int32"}


def tensors_and_options(
    source_ids: Any, arguments: dict[str, Any]
) -> tuple[dict[str, Any], DecodingOptions]:
    """Divides the arguments of a search into fields of `SearchArguments`, and options.

    A number whose value is known is an option, in whatever type it is given.

    Raises:
        ValueError: A tensor has another type or other axes, or a known value is out of range.
    """
    known_names = [*DecodingOptions.__dataclass_fields__, *SearchArguments._fields]
    for name in arguments:
        if name not in known_names:
            raise InputError(f"There is no option `{name}`.{did_you_mean(name, known_names)}")
    tensors = {"source_ids": _tensor("source_ids", source_ids)}
    options: dict[str, Any] = {}
    batch = tensors["source_ids"].shape[0]
    for name, value in arguments.items():
        if name in _NEVER_OPTIONS:
            if value is not None:
                tensors[name] = value if name == "candidates" else _tensor(name, value, batch)
        elif name in SearchArguments._fields and _is_array(value):
            values = values_of(value)
            if values is None or values.ndim:
                tensors[name] = _tensor(name, value, batch)
            else:
                options[name] = values
        else:
            options[name] = value
    for name in {*FILTERS, "logit_bias"} & tensors.keys():
        values = values_of(tensors[name])
        # The range of an option is an interval.
        for value in () if values is None or not values.size else (values.min(), values.max()):
            DecodingOptions(**{**options, name: {0: value} if name == "logit_bias" else value})
    return tensors, DecodingOptions(**options)


def _is_array(value):
    return ops.is_tensor(value) or isinstance(value, np.ndarray)


def _tensor(name, value, batch=None):
    """Returns an argument as an array of int32 or float32, with the axes that a search needs."""
    axes = _AXES.get(name, ())
    try:
        array = value if ops.is_tensor(value) else np.asarray(value)
        given_type, shape = keras.backend.standardize_dtype(array.dtype), tuple(array.shape)
    except ValueError:  # Rows of different lengths, or no numbers.
        raise _axes_error(name, axes, batch, f"{name}={received(value)}") from None
    if name in FILTERS and len(shape) == 1:
        axes = ("batch",)  # a number for each sentence
    is_batch = axes[:1] != ("batch",) or None in (batch, *shape[:1]) or shape[:1] == (batch,)
    is_number = "int" in given_type or ("float" in given_type and name not in _INTEGERS)
    if len(shape) != len(axes) or not is_batch or not is_number:
        raise _axes_error(name, axes, batch, f"{given_type} of shape {shape}")
    dtype = "int32" if name in _INTEGERS else "float32"
    if given_type == dtype:
        return array
    return ops.cast(array, dtype) if ops.is_tensor(array) else array.astype(dtype)


def _axes_error(name, axes, batch, description):
    numbers = "integers" if name in _INTEGERS else "numbers"
    shape = ", ".join(f"batch={batch}" if batch and axis == "batch" else axis for axis in axes)
    rule = f"`{name}` must be {numbers} of the shape ({shape})."
    return InputError(f"{rule} Received: {description}.")


def check_ids_of(model: Any, tensors: dict[str, Any]) -> None:
    """Raises `InputError` for an id outside a vocabulary, where model and ids are known."""
    config: Any = getattr(model, "config", None)
    reads_sources = getattr(config, "reads_sources", False)
    sizes = {"source_ids": config.vocabulary_size if reads_sources else math.inf}
    target_size = getattr(config, "output_vocabulary_size", math.inf)
    sizes |= dict.fromkeys(("prefixes", "phrases", "forced_ids"), target_size)
    for name in sizes.keys() & tensors.keys():
        size, ids = sizes[name], values_of(tensors[name])
        if ids is not None:
            check_ids(name, ids, size)


def check_leaves_room(prefixes: Tensor, max_length: int) -> None:
    """Raises `ValueError` for a prefix after which a translation has no place for a token."""
    ids = values_of(prefixes)
    longest = 0 if ids is None else int(np.max(np.count_nonzero(ids, axis=1), initial=0))
    if longest >= max_length:
        rule = "A target prefix must have fewer tokens than `max_length`."
        raise ValueError(f"{rule} Received: {longest} tokens, max_length={max_length}.")


def check_candidates(arguments: SearchArguments) -> None:
    """Checks that sentences may choose what their prefixes and phrases force."""
    if arguments.candidates is None:
        return
    for name in ("prefixes", "phrases"):
        arrays: list[Any] = [*map(values_of, (*arguments.candidates, getattr(arguments, name)))]
        if any(array is None or not array.ndim for array in arrays):
            continue
        ids, mask, forced = arrays
        for row, is_candidate in zip(forced, mask, strict=True):
            if len(others := np.setdiff1d(row, [PAD_ID, *ids[is_candidate]])):
                rule = f"The ids of `{name}` must be candidates of their sentence."
                raise ValueError(f"{rule} Received: {received(others.tolist())}.")
