"""Vectors of positions, fixed or learned: their similarity and their rotation.

In NumPy and float64 where angles are compared: in float32 an angle of 1,000 radians is known to
3e-5 only.
"""

import keras
import numpy as np
from keras import ops


def position_vectors(layer: keras.layers.Layer, length: int, width: int) -> np.ndarray:
    """Returns the vectors that a positional layer adds to each place.

    Args:
        layer: `SinusoidalPositionalEncoding`, `LearnedPositionalEmbedding`, or
            `ConcatenatedPositions` over one of them.
        length: Number of positions, from 0.
        width: The model's width.

    Returns:
        Float32 `(length, width)`; NaN past the end of a learned table.
    """
    last = min(length, getattr(getattr(layer, "positions", layer), "max_length", length))
    encoded = layer(ops.zeros((1, last, width), layer.compute_dtype))[0]
    vectors = np.full((length, width), np.nan, "float32")
    vectors[:last] = ops.convert_to_numpy(ops.cast(encoded, "float32"))
    return vectors


def frequencies(width: int, max_wavelength: float = 10000) -> np.ndarray:
    """Radians that each pair of features turns by from one position to the next, `(width / 2,)`."""
    return max_wavelength ** (-np.arange(0, width, 2) / width)


def sinusoids(length: int, width: int, max_wavelength: float = 10000) -> np.ndarray:
    """The sinusoidal encoding in float64, `(length, width)`: sines and cosines interleaved."""
    angles = np.arange(length)[:, None] * frequencies(width, max_wavelength)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, -1)[:, :width]


def rotation(width: int, offset: int, max_wavelength: float = 10000) -> np.ndarray:
    """The matrix that moves the sinusoidal encoding of any position by `offset` positions.

    One rotation of the plane for each pair of features: `encoding[p + offset]` is
    `rotation @ encoding[p]` whatever `p` is, so that "three words before" is one linear map. That
    is why the paper chose sinusoids (Vaswani et al. 2017, section 3.5).

    Args:
        width: An even width.
        offset: Positions to move by; may be negative.
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
    """The dot product of every two positions, `(length, length)`, symmetric."""
    return vectors @ vectors.T


def distances(vectors: np.ndarray) -> np.ndarray:
    """The Euclidean distance of every two positions, `(length, length)`, symmetric."""
    squares = (vectors**2).sum(1)
    squared = squares[:, None] + squares - 2 * dot_products(vectors)
    np.fill_diagonal(squared, 0.0)
    return np.sqrt(np.maximum(squared, 0.0))


def similarity_at(vectors: np.ndarray, offset: int) -> np.ndarray:
    """The cosine between each position and the one `offset` later, `(length - offset,)`.

    Constant for sinusoids, at any position. Learned vectors have it within the lengths of the
    training: beyond they are as initialized, and past the table there are none (NaN).
    """
    one, other = vectors[: len(vectors) - offset], vectors[offset:]
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return (one * other).sum(1) / lengths
