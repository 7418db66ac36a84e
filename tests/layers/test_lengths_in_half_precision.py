"""Layers in 16 bits at lengths and sizes where 16 bits lose.

bfloat16 has no odd integer beyond 256, float16 none beyond 2048, and a sum of many numbers stops
growing.

A result is NumPy's in float64, except for the rounding of a few products. Where each cast to
float32 stays in 16 bits, the result is farther away: the tolerance tells both apart.
"""

import ml_dtypes
import numpy as np
import pytest
import reference
from keras import ops
from reference import float64

from keras_transformer import layers
from keras_transformer.layers.positions import apply_rotary

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
# A position that a dtype does not have, and half of the step between its numbers above 1.
FAR = {"bfloat16": (301, 2.0**-8), "float16": (2305, 2.0**-11)}
HEADS, WIDTH = 4, 8


def drawn(rng, dtype, *shape, mean=0.0):
    """Numbers that the dtype has."""
    return (mean + rng.normal(size=shape)).astype(DTYPES[dtype]).astype("float32")


def sinusoids(rng, dtype):
    far, _ = FAR[dtype]
    layer = layers.SinusoidalPositionalEncoding(dtype=dtype)
    outputs = layer(np.zeros((1, 3, WIDTH), "float32"), start_index=far)[0]
    return outputs, reference.positional_encoding(3, WIDTH, start_index=far)


def mean(rng, dtype):
    inputs = drawn(rng, dtype, 1, 4 * FAR[dtype][0], WIDTH, mean=1.0)
    return layers.MaskedPooling(dtype=dtype)(inputs), float64(inputs).mean(axis=1)


def attention(rng, dtype, positions):
    """One query to keys far away, of which it sees the last four; projections copy."""
    far, _ = FAR[dtype]
    query, value = drawn(rng, dtype, 1, 1, WIDTH), drawn(rng, dtype, 1, far + 1, WIDTH, mean=1.0)
    options = {"use_bias": False, "positions": positions, "dtype": dtype}
    layer = layers.MultiHeadAttention(HEADS, WIDTH // HEADS, **options)
    layer.build(query.shape, value.shape)
    copied = np.eye(WIDTH).reshape(WIDTH, HEADS, WIDTH // HEADS)
    layer.set_weights([copied] * 3 + [np.eye(WIDTH).reshape(HEADS, WIDTH // HEADS, WIDTH)])
    mask = np.arange(far + 1)[None, None] > far - 4
    chosen = {name: name == positions for name in ("rotary", "alibi")}
    weights = reference.weights_of(layer)
    expected, _ = reference.attention(weights, *map(float64, (query, value)), mask=mask, **chosen)
    return layer(query, value, attention_mask=mask), expected


def rotary(rng, dtype):
    return attention(rng, dtype, "rotary")


def alibi(rng, dtype):
    return attention(rng, dtype, "alibi")


CASES = {"sinusoids": sinusoids, "mean": mean, "rotary": rotary, "alibi": alibi}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_far_positions_and_long_sums_are_computed_in_float32(name, dtype, monkeypatch):
    far, half_step = FAR[dtype]
    outputs, expected = CASES[name](np.random.default_rng(7), dtype)
    # Attention rounds its weights, too, and an angle is known to a few roundings of float32.
    roundings = 2 if name in ("rotary", "alibi") else 1
    tolerance = roundings * half_step * np.abs(expected).max() + 4 * far * 2.0**-24
    cast = ops.cast

    def narrow(values, to):
        """A sum stays in 16 bits, a position only goes through them."""
        values = cast(values, dtype if to == "float32" else to)
        return values if name == "mean" else cast(values, to)

    monkeypatch.setattr(ops, "cast", narrow)
    wrong, _ = CASES[name](np.random.default_rng(7), dtype)
    differences = [np.abs(float64(x) - expected).max() for x in (outputs, wrong)]
    assert differences[0] < tolerance
    # A processor may sum a mean in another order, with fewer roundings.
    assert differences[1] > tolerance or name == "mean"


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_scores_of_attention_stay_numbers(rng, dtype):
    query, value = 200 * rng.normal(size=(3, 4, 6)), rng.normal(size=(3, 5, 6))
    outputs = layers.Attention("dot", dtype=dtype)(query, value, 200 * value)
    assert np.isfinite(float64(outputs)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rotation_is_rounded_once(rng, dtype):
    far, half_step = FAR[dtype]
    rows = drawn(rng, dtype, 50, WIDTH)
    expected = reference.turned(np.concatenate([np.zeros((far, WIDTH)), rows]))[far:]
    heads = ops.cast(rows[None, :, None], dtype)  # --> [batch, length, heads, features]
    outputs = float64(apply_rotary(heads, np.arange(far, far + 50, dtype="int32")))[0, :, 0]
    angle_error = 8 * far * 2.0**-24
    assert (np.abs(outputs - expected) <= half_step * np.abs(expected) + angle_error).all()
