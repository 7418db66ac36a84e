"""What a compiled search takes as its arguments: other values, the same program."""

import math
from typing import NamedTuple

import numpy as np
from keras import KerasTensor, ops

Tensor = np.ndarray | KerasTensor


class SearchArguments(NamedTuple):
    """The sources of a batch, and the options of `DecodingOptions` that are no part of the program.

    Attributes:
        source_ids: Int32 `(batch, source)`, padded with 0.
        seeds: Int32 `(batch,)`, or `None`.
        prefixes: Int32 `(batch, prefix)`: what each translation begins with, padded with 0, or
            `None`.
        logit_bias: Float32 `(vocabulary,)`, or `None`.
        length_penalty: Float32 scalar, like the others up to `max_length_ratio`. In sampling,
            temperature, top-k, top-p and min-p may also be `(batch,)`.
        max_length_ratio: Most tokens as a multiple of the source's, and `max_length_margin` more.
        max_length: Int32 scalar, as `min_length` and `top_k`: most tokens of any translation.
    """

    source_ids: Tensor
    seeds: Tensor | None
    prefixes: Tensor | None
    logit_bias: Tensor | None
    length_penalty: Tensor
    coverage_penalty: Tensor
    diversity_penalty: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    min_length_ratio: Tensor
    max_length_ratio: Tensor
    max_length_margin: Tensor
    top_k: Tensor
    min_length: Tensor
    max_length: Tensor

    def of_rows(self, rows):
        """The arguments of some sentences of the batch, as NumPy arrays."""
        chosen = {
            name: np.asarray(getattr(self, name))[rows]
            for name in PER_SENTENCE
            if getattr(self, name) is not None
        }
        return self._replace(**chosen)


PER_SENTENCE = ("source_ids", "seeds", "prefixes")
_FLOATS = (
    "length_penalty",
    "coverage_penalty",
    "diversity_penalty",
    "temperature",
    "top_p",
    "min_p",
    "min_length_ratio",
)
_MARGIN = 10


def search_arguments(
    options, source_ids, max_length, seeds=None, prefixes=None, logit_bias=None
) -> SearchArguments:
    """`SearchArguments` from `DecodingOptions`.

    Args:
        options: `DecodingOptions`; its `seed` must be an integer.
        source_ids: Int32 `(batch, source)`, padded with 0.
        max_length: Most tokens of a translation, where the options name no other.
        seeds: Int32 `(batch,)`; in sampling, by default the options' for each sentence.
        prefixes: As in `SearchArguments`.
        logit_bias: As in `SearchArguments`.
    """
    ratio, margin = options.max_length_ratio, _MARGIN
    if ratio == math.inf:
        ratio, margin = 0.0, 2**24  # more than `max_length` ever is, and exact in float32
    if options.sampling and seeds is None:
        seeds = ops.full((ops.shape(source_ids)[0],), options.seed, "int32")
    longest = max_length if options.max_length is None else options.max_length
    return SearchArguments(
        source_ids,
        seeds,
        prefixes,
        logit_bias,
        *(np.float32(getattr(options, name)) for name in _FLOATS),
        max_length_ratio=np.float32(ratio),
        max_length_margin=np.float32(margin),
        top_k=np.int32(options.top_k),
        min_length=np.int32(options.min_length),
        max_length=np.int32(longest),
    )
