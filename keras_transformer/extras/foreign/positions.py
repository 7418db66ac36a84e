"""Tables of positions in a file, as positions of a `Transformer`."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np

# Error of a sinusoid in a table, and of its angle per position where it is computed in float32.
_ERRORS = {np.dtype("float16"): 1e-3, np.dtype(ml_dtypes.bfloat16): 1e-2}
_ERROR, _ANGLE_ERROR = 1e-5, 2e-6
NAMES = ("encoder_Wpos", "decoder_Wpos")
"""Names of the tables in Marian."""


def position_fields(arrays: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a `TransformerConfig` that describe the positions of its sides.

    Args:
        arrays: Tensors with the tables `(positions, width)` of the encoder and the decoder. Tables
            of sinusoids need no weights and are removed. Other tables are learned positions.
    """
    tables = [np.asarray(arrays[name]) for name in NAMES]
    for layout, frequencies in itertools.product(("halves", "interleaved"), ("paper", "marian")):
        if all(_is_sinusoidal(table, layout, frequencies) for table in tables):
            for name in NAMES:
                del arrays[name]
            return {"position_layout": layout, "position_frequencies": frequencies}
    return {"positions": "learned", "max_length": min(map(len, tables))}


def sinusoids(positions: np.ndarray, width: int, layout: str, frequencies: str) -> np.ndarray:
    """Computes the vectors of `layers.SinusoidalPositionalEncoding` in NumPy, as float64."""
    pairs = np.arange(width // 2)
    span = width / 2 if frequencies == "paper" else max(width / 2 - 1, 1)
    angles = positions[:, None] * 10000.0 ** (-pairs / span)  # --> [position, pair]
    waves = np.stack([np.sin(angles), np.cos(angles)], axis=2 if layout == "interleaved" else 1)
    return waves.reshape(len(positions), -1)


def _is_sinusoidal(table, layout, frequencies):
    positions = np.arange(len(table))
    if table.ndim != 2 or table.shape[1] % 2:
        return False
    expected = sinusoids(positions, table.shape[1], layout, frequencies)
    error = _ERRORS.get(table.dtype, _ERROR) + positions[:, None] * _ANGLE_ERROR
    return bool(np.all(np.abs(np.asarray(table, "float32") - expected) <= error))
