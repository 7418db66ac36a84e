"""Projection: the product of EinsumDense over the last axes, and its first weights."""

import math

import keras
import numpy as np
import pytest

from keras_transformer.layers.projection import Projection

BATCH, LENGTH, WIDTH, HEADS, HEAD = 2, 3, 5, 7, 11
INTO_HEADS = ("btd,dnh->btnh", (None, HEADS, HEAD), "nh")
OUT_OF_HEADS = ("btnh,nhd->btd", (None, WIDTH), "d")


@pytest.mark.parametrize(("arguments", "shape"), [(INTO_HEADS, (WIDTH,)), (OUT_OF_HEADS, (7, 11))])
@pytest.mark.parametrize("use_bias", [True, False])
def test_it_equals_numpy_and_keras(rng, randomize, arguments, shape, use_bias):
    equation, output_shape, bias_axes = arguments
    keywords = dict(output_shape=output_shape, bias_axes=bias_axes if use_bias else None)
    inputs = rng.normal(size=(BATCH, LENGTH, *shape)).astype("float32")
    projection = Projection(equation, **keywords)
    projection.build(inputs.shape)
    randomize(projection)
    kernel, *bias = (np.asarray(w) for w in projection.weights)
    assert len(bias) == use_bias
    expected = np.einsum(equation, inputs, kernel) + (bias[0] if use_bias else 0.0)
    np.testing.assert_allclose(np.asarray(projection(inputs)), expected, rtol=1e-4, atol=1e-5)
    theirs = keras.layers.EinsumDense(equation, **keywords)
    theirs.build(inputs.shape)
    theirs.set_weights(projection.get_weights())
    np.testing.assert_allclose(np.asarray(theirs(inputs)), expected, rtol=1e-4, atol=1e-5)


def test_it_begins_glorot_uniform_over_the_whole_matrix():
    equation, output_shape, bias_axes = INTO_HEADS
    projection = Projection(equation, output_shape, bias_axes=bias_axes)
    projection.build((None, None, 97))
    kernel = np.abs(np.asarray(projection.kernel))
    limit = math.sqrt(6 / (97 + HEADS * HEAD))
    assert limit * 0.99 < kernel.max() <= limit
    assert abs(kernel.mean() - limit / 2) < limit * 0.02
    assert not np.any(np.asarray(projection.bias))


def test_it_survives_its_configuration():
    projection = Projection(INTO_HEADS[0], INTO_HEADS[1], bias_axes="nh", name="query")
    again = Projection.from_config(projection.get_config())
    assert again.get_config() == projection.get_config()
