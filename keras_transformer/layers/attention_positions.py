"""Positions inside attention: rotations of queries and keys, and scores of distances."""

import math

import keras
from keras import ops


def apply_rotary(
    heads: keras.KerasTensor, positions: keras.KerasTensor, max_wavelength: float = 10000
) -> keras.KerasTensor:
    """Turns the pair of features `i` and `i + d/2` at position `p` by `p / w^(2i/d)`.

    `d` is the number of features, `w` the `max_wavelength`. The product of a rotated query and a
    rotated key depends on the difference of their positions alone.

    Args:
        heads: Float `(batch, length, heads, features)`, an even number of features.
        positions: Integer `(length,)`.

    Returns:
        Float of the shape and dtype of `heads`; angles and products are computed in float32.

    Reference: Su et al. 2021, section 3.4.2 (arXiv:2104.09864). The paper pairs neighbouring
    features: another order, which the projections before the rotation learn.
    """
    half = heads.shape[-1] // 2
    frequencies = ops.exp(ops.arange(half, dtype="float32") * (-math.log(max_wavelength) / half))
    angles = ops.expand_dims(ops.cast(positions, "float32"), 1) * frequencies
    angles = ops.expand_dims(angles, 1)  # --> [length, 1, features / 2]
    cosine, sine = ops.cos(angles), ops.sin(angles)
    wide = ops.cast(heads, "float32")
    first, second = wide[..., :half], wide[..., half:]
    turned = [first * cosine - second * sine, first * sine + second * cosine]
    return ops.cast(ops.concatenate(turned, axis=-1), heads.dtype)


def relative_scores(
    query: keras.KerasTensor,
    distance_embeddings: keras.KerasTensor,
    query_positions: keras.KerasTensor,
    key_positions: keras.KerasTensor,
) -> keras.KerasTensor:
    """Scores of each query with the trained vector of its distance to each key.

    Args:
        query: Float `(batch, heads, query, key_dim)`.
        distance_embeddings: Float `(2 · max_distance + 1, key_dim)`; farther keys count as
            `max_distance` away.
        query_positions: Integer `(query,)`.
        key_positions: Integer `(key,)`.

    Returns:
        Float `(batch, heads, query, key)`.

    Reference: Shaw et al. 2018, section 3.2 (arXiv:1803.02155).
    """
    farthest = distance_embeddings.shape[0] // 2
    distance = ops.expand_dims(key_positions, 0) - ops.expand_dims(query_positions, 1)
    index = ops.clip(distance, -farthest, farthest) + farthest  # --> [query, key]
    vectors = ops.take(ops.cast(distance_embeddings, query.dtype), index, axis=0)
    return ops.einsum("bnqd,qkd->bnqk", query, vectors)
