"""The options of a compiled search that are its arguments, as numbers."""

import math
from typing import NamedTuple

from keras import ops


class Settings(NamedTuple):
    """The options that a compiled search takes as arguments: other values, the same program.

    Attributes:
        numbers: Float32 `(9,)`: length, coverage and diversity penalty, temperature, top-p,
            min-p, least and largest length as a multiple of the source's, and what is added to
            the latter. Or a tuple of them: temperature, top-p and min-p may then be `(batch,)`.
        integers: Int32 `(3,)`: top-k, least and largest length in tokens. Or a tuple, where top-k
            may be `(batch,)`.
        seeds: Int32 `(batch,)`, or `None`.
        prefixes: Int32 `(batch, prefix)`, padded with 0, or `None`.
        logit_bias: Float32 `(vocabulary,)`, or `None`.
    """

    numbers: object
    integers: object
    seeds: object = None
    prefixes: object = None
    logit_bias: object = None


def length_limits(lengths, ratio, extra, max_length):
    """Tokens that each translation may have.

    Args:
        lengths: Int32 `(batch,)`, tokens of each source. A limit depends on the sentence's own
            tokens alone, not on the padding that its batch-mates need.
        ratio: Multiple of the source's tokens.
        extra: Tokens more than that, a scalar or `(batch,)`.
        max_length: No limit is larger.

    Returns:
        Int32 `(batch,)`; 0 for a source without tokens.
    """
    limits = ops.cast(lengths, "float32") * ratio + ops.cast(extra, "float32")
    limits = ops.cast(limits, "int32")
    return ops.where(lengths > 0, ops.minimum(limits, max_length), 0)


def settings_of(options, max_length, batch=None, prefixes=None, logit_bias=None):
    """`Settings` as NumPy arrays.

    Args:
        options: `DecodingOptions`; its `seed` must be an integer.
        max_length: Most tokens of a translation, where the options name no other.
        batch: Sentences in a batch, for the seeds; none are made without it.
        prefixes: As in `Settings`.
        logit_bias: As in `Settings`.
    """
    import numpy as np

    ratio, extra = options.max_length_ratio, 10
    if ratio == math.inf:
        ratio, extra = 0.0, 2**24  # more than `max_length` ever is, and exact in float32
    numbers = (
        options.length_penalty,
        options.coverage_penalty,
        options.diversity_penalty,
        options.temperature,
        options.top_p,
        options.min_p,
        options.min_length_ratio,
        ratio,
        extra,
    )
    longest = max_length if options.max_length is None else options.max_length
    seeds = None
    if options.sampling and batch is not None:
        seeds = np.full((batch,), options.seed, "int32")
    return Settings(
        np.array(numbers, "float32"),
        np.array((options.top_k, options.min_length, longest), "int32"),
        seeds,
        prefixes,
        logit_bias,
    )
