"""Vectors of positions, fixed or learned: their similarity and their rotation.

Angles are computed in NumPy and float64, because in float32 an angle of 1,000 radians is exact only
to 3e-5.
"""

import keras
import numpy as np

from keras_transformer.layers.positions import position_table


def position_vectors(layer: keras.layers.Layer, length: int, width: int) -> np.ndarray:
    """Returns `layers.positions.position_table`, with NaN past the end of a learned table."""
    vectors = np.full((length, width), np.nan, "float32")
    table = position_table(layer, length, width)
    vectors[: len(table)] = table
    return vectors


def frequencies(width: int, max_wavelength: float = 10000) -> np.ndarray:
    """Returns the radians by which each pair of features turns per position, `(width / 2,)`."""
    return max_wavelength ** (-np.arange(0, width, 2) / width)


def sinusoids(length: int, width: int, max_wavelength: float = 10000) -> np.ndarray:
    """Computes the sinusoidal encoding in float64, `(length, width)`, sine and cosine by turns."""
    angles = np.arange(length)[:, None] * frequencies(width, max_wavelength)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, -1)[:, :width]


def rotation(width: int, offset: int, max_wavelength: float = 10000) -> np.ndarray:
    """Returns the matrix that moves the sinusoidal encoding of any position by `offset`.

    It rotates the plane of each pair of features: `encoding[p + offset]` is
    `rotation @ encoding[p]` for every `p`, so that "three words before" is one linear map. That is
    why the paper chose sinusoids (Vaswani et al. 2017, section 3.5).

    Args:
        width: An even width.
        offset: Number of positions; may be negative.
        max_wavelength: See `SinusoidalPositionalEncoding`.

    Returns:
        Float64 `(width, width)`, orthogonal, of determinant 1.
    """
    if width % 2:
        raise ValueError(f"A rotation needs pairs of features. Received: width={width}.")
    angles = offset * frequencies(width, max_wavelength)
    matrix = np.zeros((width, width))
    sines, cosines = np.arange(0, width, 2), np.arange(1, width, 2)
    matrix[sines, sines] = matrix[cosines, cosines] = np.cos(angles)
    matrix[sines, cosines], matrix[cosines, sines] = np.sin(angles), -np.sin(angles)
    return matrix


def dot_products(vectors: np.ndarray) -> np.ndarray:
    """Computes the dot products of all pairs of positions, `(length, length)`, symmetric."""
    return vectors @ vectors.T


def distances(vectors: np.ndarray) -> np.ndarray:
    """Computes the Euclidean distances of all pairs of positions, `(length, length)`, symmetric."""
    squares = (vectors**2).sum(1)
    squared = squares[:, None] + squares - 2 * dot_products(vectors)
    np.fill_diagonal(squared, 0.0)
    return np.sqrt(np.maximum(squared, 0.0))


def similarity_at(vectors: np.ndarray, offset: int) -> np.ndarray:
    """Computes the cosine of each position and the position `offset` later, `(length - offset,)`.

    For sinusoids the cosine is the same at all positions. Learned vectors are trained only within
    the lengths of the training: later vectors are random, and after the table there are none (NaN).
    """
    vectors_before, vectors_after = vectors[: len(vectors) - offset], vectors[offset:]
    lengths = np.linalg.norm(vectors_before, axis=1) * np.linalg.norm(vectors_after, axis=1)
    return (vectors_before * vectors_after).sum(1) / lengths
