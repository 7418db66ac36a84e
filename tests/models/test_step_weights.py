"""The weights of a decoding step: every layout gives the products of the layers."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.models import step_weights
from keras_transformer.models.step_weights import Linear, SplitLinear, StackedLinear

WIDTH, OUTPUTS = 5, 7


@pytest.mark.parametrize("one_row", [None, False, True])  # None: not cached
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("outputs", [1, 6, 7, 8])
@pytest.mark.parametrize("with_bias", [True, False])
def test_each_layout_gives_the_same_product(rng, monkeypatch, one_row, rows, outputs, with_bias):
    monkeypatch.setattr(step_weights, "_LEAST_SPLIT", 2 * WIDTH)
    matrix, bias = rng.normal(size=(WIDTH, outputs)), rng.normal(size=outputs)
    inputs = rng.normal(size=(rows, WIDTH))
    arrays = [ops.convert_to_tensor(x.astype("float32")) for x in (matrix, bias, inputs)]
    linear = Linear(arrays[0], arrays[1] if with_bias else None)
    if one_row is not None:
        linear = linear.to_cached(one_row)
    kinds = {True: StackedLinear, False: SplitLinear if outputs > 1 else Linear, None: Linear}
    assert type(linear) is kinds[one_row]
    if one_row:  # At most four blocks, of equally many columns.
        assert linear.matrix.shape[0] == {1: 1, 6: 2, 7: 1, 8: 4}[outputs]
    expected = inputs @ matrix + (bias if with_bias else 0.0)
    np.testing.assert_allclose(np.asarray(linear(arrays[2])), expected, rtol=1e-5, atol=1e-5)


def test_no_matrix_is_cut_in_two_for_a_gpu(monkeypatch):
    monkeypatch.setattr(step_weights, "_LEAST_SPLIT", 1)
    linear = Linear(ops.ones((WIDTH, OUTPUTS)), None)
    assert isinstance(linear.to_cached(one_row=False), SplitLinear)
    monkeypatch.setattr(keras.distribution, "list_devices", lambda: ["cpu:0", "gpu:0"])
    assert linear.to_cached(one_row=False) is linear
