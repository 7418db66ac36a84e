import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import projection as projections
from keras_transformer.layers.projection import (
    Linear,
    Projection,
    SplitLinear,
    StackedLinear,
    TableLinear,
)

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


@pytest.mark.parametrize("layout", ["many", "one", "many, kept", "one, kept"])
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("outputs", [1, 6, 7, 8])
@pytest.mark.parametrize("with_bias", [True, False])
def test_each_layout_gives_the_same_product(rng, monkeypatch, layout, rows, outputs, with_bias):
    monkeypatch.setattr(projections, "_LEAST_SPLIT", 2 * WIDTH)
    matrix, bias = rng.normal(size=(WIDTH, outputs)), rng.normal(size=outputs)
    inputs = rng.normal(size=(rows, WIDTH))
    arrays = [ops.convert_to_tensor(each.astype("float32")) for each in (matrix, bias, inputs)]
    linear = Linear(arrays[0], arrays[1] if with_bias else None).laid_out(layout)
    kinds = {"one, kept": StackedLinear, "many, kept": SplitLinear if outputs > 1 else Linear}
    assert type(linear) is kinds.get(layout, Linear)
    expected = inputs @ matrix + (bias if with_bias else 0.0)
    np.testing.assert_allclose(np.asarray(linear(arrays[2])), expected, rtol=1e-5, atol=1e-5)


def test_no_matrix_is_cut_in_two_for_a_gpu(monkeypatch):
    monkeypatch.setattr(projections, "_LEAST_SPLIT", 1)
    linear = Linear(ops.ones((WIDTH, HEADS)), None)
    assert isinstance(linear.laid_out("many, kept"), SplitLinear)
    monkeypatch.setattr(keras.distribution, "list_devices", lambda: ["cpu:0", "gpu:0"])
    assert linear.laid_out("many, kept") is linear


def test_a_table_is_multiplied_as_it_lies(rng):
    table, inputs = (rng.normal(size=(n, WIDTH)).astype("float32") for n in (HEADS, LENGTH))
    logits = TableLinear(ops.convert_to_tensor(table))(ops.convert_to_tensor(inputs))
    np.testing.assert_allclose(np.asarray(logits), inputs @ table.T, rtol=1e-5, atol=1e-5)


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
