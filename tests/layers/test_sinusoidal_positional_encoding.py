"""SinusoidalPositionalEncoding against the paper's formula."""

import math

import keras
import numpy as np
import pytest
import reference
from keras import ops
from reference import float64

from keras_transformer.layers import SinusoidalPositionalEncoding

BATCH, LENGTH, WIDTH = 2, 5, 14


def encoding_of(length, width, dtype="float32", max_wavelength=10000, **call):
    layer = SinusoidalPositionalEncoding(max_wavelength, dtype=dtype)
    return float64(layer(np.zeros((1, length, width), "float32"), **call))[0]


def test_position_one_of_width_512_begins_as_the_formula_says():
    # sin(1), cos(1), then the angle 10000^(-2/512) = 0.964662: sin and cos of it.
    angle = math.exp(-math.log(10000) * 2 / 512)
    first = encoding_of(2, 512)[1, :4]
    np.testing.assert_allclose(
        first, [math.sin(1), math.cos(1), math.sin(angle), math.cos(angle)], atol=1e-6
    )
    assert [round(x, 4) for x in first.tolist()] == [0.8415, 0.5403, 0.8219, 0.5697]


@pytest.mark.parametrize("width", [1, 2, 13, 14])
@pytest.mark.parametrize("max_wavelength", [10000, 37])
def test_equals_the_formula_at_even_and_odd_widths(width, max_wavelength):
    np.testing.assert_allclose(
        encoding_of(LENGTH, width, max_wavelength=max_wavelength),
        reference.positional_encoding(LENGTH, width, max_wavelength=max_wavelength),
        atol=1e-6,
    )


def test_the_encoding_is_added_to_every_sentence(rng):
    inputs = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    outputs = float64(SinusoidalPositionalEncoding()(inputs))
    expected = inputs + reference.positional_encoding(LENGTH, WIDTH)
    np.testing.assert_allclose(outputs, expected, atol=1e-6)


@pytest.mark.parametrize("shift", [1, 3, 17])
def test_a_shift_is_one_rotation_of_each_pair_whatever_the_position(shift):
    encoding = encoding_of(41, WIDTH)
    pairs = encoding.reshape(41, WIDTH // 2, 2)  # (sin, cos)
    for i in range(WIDTH // 2):
        angle = shift / 10000 ** (2 * i / WIDTH)
        rotation = np.array(
            [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
        )
        np.testing.assert_allclose(pairs[shift:, i], pairs[: 41 - shift, i] @ rotation.T, atol=2e-5)


def test_start_index_goes_on_where_the_first_piece_ended():
    whole = encoding_of(11, WIDTH)
    np.testing.assert_allclose(encoding_of(4, WIDTH, start_index=7), whole[7:], atol=1e-6)


def test_start_index_may_be_given_by_position():
    inputs = np.zeros((1, LENGTH, WIDTH), "float32")
    outputs = float64(SinusoidalPositionalEncoding()(inputs, 3))[0]
    expected = reference.positional_encoding(LENGTH, WIDTH, start_index=3)
    np.testing.assert_allclose(outputs, expected, atol=1e-6)


def test_start_index_may_be_a_tensor_inside_a_compiled_program(compiled):
    layer = SinusoidalPositionalEncoding()
    inputs = ops.zeros((1, 1, WIDTH))
    step = compiled(lambda start: layer(inputs, start_index=start))
    for position in (0, 1, 29):
        np.testing.assert_allclose(
            float64(step(ops.convert_to_tensor(position, "int32")))[0],
            reference.positional_encoding(1, WIDTH, start_index=position),
            atol=1e-5,
        )


@pytest.mark.parametrize(
    ("policy", "half_step"),
    [("float32", 2.0**-25), ("mixed_bfloat16", 2.0**-9), ("mixed_float16", 2.0**-12)],
)
def test_far_positions_lose_only_the_rounding_of_the_output(policy, half_step):
    start, width = 2000, 62
    outputs = encoding_of(3, width, dtype=policy, start_index=start)
    expected = reference.positional_encoding(3, width, start_index=start)
    # An angle of 2,000 in float32 is itself known to a few times 2000 * 2^-24.
    angle_error = 4 * start * 2.0**-24
    np.testing.assert_allclose(outputs, expected, atol=half_step + angle_error, rtol=0)
    neighbours = np.abs(np.diff(expected, axis=0)).max(axis=-1)
    assert (np.abs(np.diff(outputs, axis=0)).max(axis=-1) > 0.5 * neighbours).all()


def test_no_length_is_too_long():
    encoding = encoding_of(3001, 7)
    last = reference.positional_encoding(1, 7, start_index=3000)
    np.testing.assert_allclose(encoding[-1:], last, atol=4 * 3000 * 2.0**-24)


def test_the_length_may_be_unknown_when_a_model_is_built():
    inputs = keras.Input((None, WIDTH))
    model = keras.Model(inputs, SinusoidalPositionalEncoding()(inputs))
    for length in (3, 11):
        outputs = float64(model(np.zeros((1, length, WIDTH), "float32")))[0]
        expected = reference.positional_encoding(length, WIDTH)
        np.testing.assert_allclose(outputs, expected, atol=2e-6)
