import math

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.projection import Projection

BATCH, LENGTH, WIDTH, HEADS, HEAD = 2, 3, 5, 7, 11


@pytest.mark.parametrize(
    ("arguments", "shape", "equation"),
    [
        (((HEADS, HEAD),), (WIDTH,), "btd,dnh->btnh"),
        (((WIDTH,), 2), (HEADS, HEAD), "btnh,nhd->btd"),
    ],
)
@pytest.mark.parametrize("use_bias", [True, False])
def test_it_is_the_product_over_the_last_axes(rng, randomize, arguments, shape, equation, use_bias):
    projection = Projection(*arguments, use_bias=use_bias)
    inputs = rng.normal(size=(BATCH, LENGTH, *shape)).astype("float32")
    projection.build(inputs.shape)
    randomize(projection)
    kernel, *bias = (np.asarray(w) for w in projection.weights)
    assert len(bias) == use_bias
    expected = np.einsum(equation, inputs, kernel) + (bias[0] if use_bias else 0.0)
    np.testing.assert_allclose(np.asarray(projection(inputs)), expected, rtol=1e-4, atol=1e-5)


def test_it_begins_glorot_uniform_over_the_whole_matrix():
    projection = Projection((HEADS, HEAD))
    projection.build((None, None, 97))
    kernel = np.abs(np.asarray(ops.convert_to_numpy(projection.kernel)))
    limit = math.sqrt(6 / (97 + HEADS * HEAD))
    assert limit * 0.99 < kernel.max() <= limit
    assert abs(kernel.mean() - limit / 2) < limit * 0.02
    assert not np.any(np.asarray(projection.bias))


def test_it_survives_its_configuration():
    again = Projection.from_config(Projection((HEADS, HEAD), 2, False).get_config())
    assert (again.output_axes, again.input_axes, again.use_bias) == ((HEADS, HEAD), 2, False)
