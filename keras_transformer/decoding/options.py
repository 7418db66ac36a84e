"""Arguments of the compiled search, made of `DecodingOptions`."""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from keras import KerasTensor, ops

from keras_transformer.options import LENGTH_MARGIN, DecodingOptions

_INTEGERS = ("top_k", "min_length", "max_length")
Tensor: TypeAlias = np.ndarray | KerasTensor


class SearchArguments(NamedTuple):
    """The sources of a batch, and the options of `DecodingOptions` that are no part of the program.

    In sampling, temperature, top-k, top-p and min-p may also be `(batch,)`.
    """

    source_ids: Tensor  # int32 [batch, source], padded with 0
    seeds: Tensor | None  # int32 [batch]
    prefixes: Tensor | None  # int32 [batch, prefix]: what each translation begins with, padded
    logit_bias: Tensor | None  # float32 [vocabulary]
    length_penalty: Tensor  # float32 [], like the next eight
    coverage_penalty: Tensor
    diversity_penalty: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    min_length_ratio: Tensor
    max_length_ratio: Tensor  # most tokens as a multiple of the source's, and the margin more
    max_length_margin: Tensor
    top_k: Tensor  # int32 [], like the next two
    min_length: Tensor
    max_length: Tensor  # most tokens of any translation

    def map_sentences(self, function: Callable[..., Tensor], *others) -> "SearchArguments":
        """With `function` of what has a row for each sentence, here and in the others."""
        every = zip(self[:3], *(each[:3] for each in others), strict=True)
        mapped = (None if values[0] is None else function(*values) for values in every)
        return self._replace(**dict(zip(self._fields, mapped, strict=False)))


def search_arguments(
    options: DecodingOptions,
    source_ids: Tensor,
    max_length: int,
    seeds: Tensor | None = None,
    prefixes: Tensor | None = None,
    logit_bias: Tensor | None = None,
) -> SearchArguments:
    """`SearchArguments` from options with one seed, `seeds` of each sentence by default.

    `max_length` holds where the options name none.
    """
    ratio, margin = options.max_length_ratio, LENGTH_MARGIN
    if ratio == math.inf:
        ratio, margin = 0.0, 2**24  # more than `max_length` ever is, and exact in float32
    if options.sampling and seeds is None:
        seeds = ops.full((ops.shape(source_ids)[0],), options.seed, "int32")
    given = vars(options) | {"max_length_ratio": ratio, "max_length_margin": margin}
    given["max_length"] = options.resolve_max_length(max_length)
    numbers = {
        name: (np.int32 if name in _INTEGERS else np.float32)(given[name])
        for name in SearchArguments._fields[4:]
    }
    return SearchArguments(source_ids, seeds, prefixes, logit_bias, **numbers)
