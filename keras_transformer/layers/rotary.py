"""Positions as rotations of queries and keys."""

import math

import keras
from keras import ops


def rotate(
    inputs: keras.KerasTensor, positions: keras.KerasTensor, max_wavelength: float = 10000
) -> keras.KerasTensor:
    """Turns the pair of features `i` and `i + d/2` at position `p` by `p / w^(2i/d)`.

    `d` is the number of features, `w` the `max_wavelength`. The product of a query and a key that
    are both turned depends on the difference of their positions alone.

    Args:
        inputs: Float `(batch, length, heads, features)`, an even number of features.
        positions: Integer `(length,)`.

    Returns:
        Float of the same shape and dtype; angles and products are computed in float32.

    Reference: Su et al. 2021, section 3.4.2 (arXiv:2104.09864), whose pairs are neighbours: the
    same up to the order of the features, which the projections before it learn.
    """
    half = inputs.shape[-1] // 2
    frequencies = ops.exp(ops.arange(half, dtype="float32") * (-math.log(max_wavelength) / half))
    angles = ops.expand_dims(ops.cast(positions, "float32"), 1) * frequencies
    angles = ops.expand_dims(angles, 1)  # --> [length, 1, features / 2]
    cosine, sine = ops.cos(angles), ops.sin(angles)
    given = ops.cast(inputs, "float32")
    first, second = given[..., :half], given[..., half:]
    turned = [first * cosine - second * sine, first * sine + second * cosine]
    return ops.cast(ops.concatenate(turned, axis=-1), inputs.dtype)
