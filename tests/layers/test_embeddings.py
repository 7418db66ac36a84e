"""TokenEmbedding: scaled rows of a table one way, its transpose the other way."""

import math

import keras
import numpy as np
import pytest
import reference
from keras import ops
from reference import float64

from keras_transformer.layers import TokenEmbedding

BATCH, LENGTH, VOCABULARY, WIDTH = 2, 5, 23, 7


def built(vocabulary=VOCABULARY, width=WIDTH, **arguments):
    layer = TokenEmbedding(vocabulary, width, **arguments)
    layer.build((None, None))
    return layer, reference.weights_of(layer)["embeddings"]


def test_a_vector_is_its_row_times_the_root_of_the_width(rng):
    layer, table = built()
    ids = rng.integers(0, VOCABULARY, (BATCH, LENGTH))
    np.testing.assert_allclose(float64(layer(ids)), table[ids] * math.sqrt(WIDTH), rtol=1e-6)


def test_logits_are_dot_products_with_the_unscaled_rows(rng):
    layer, table = built()
    hidden = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    np.testing.assert_allclose(float64(layer.project(hidden)), hidden @ table.T, atol=1e-5)


def test_one_table_serves_both_directions(rng):
    layer, table = built()
    layer.set_weights([2 * table])
    assert len(layer.weights) == 1
    ids = np.array([[11]])
    hidden = rng.normal(size=(1, 1, WIDTH)).astype("float32")
    np.testing.assert_allclose(float64(layer(ids)), 2 * table[ids] * math.sqrt(WIDTH), rtol=1e-6)
    np.testing.assert_allclose(float64(layer.project(hidden)), hidden @ (2 * table.T), atol=1e-5)


def test_initial_rows_have_standard_deviation_one_over_root_width():
    _, table = built(503, 101)
    # 50,803 draws: the standard error of the deviation is 0.3%.
    assert abs(table.std() * math.sqrt(101) - 1) < 0.015
    assert abs(table.mean()) * math.sqrt(101) < 0.02


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint16", "float32"])
def test_large_ids_are_not_rounded_in_half_precision(policy, dtype):
    layer, table = built(4099, 3, dtype=policy)
    ids = np.array([[257, 2049, 4097, 4098]])
    outputs = float64(layer(ops.convert_to_tensor(ids.astype(dtype))))
    np.testing.assert_allclose(outputs, table[ids] * math.sqrt(3), rtol=2e-2, atol=1e-3)
    assert keras.backend.standardize_dtype(layer(ids).dtype) == layer.compute_dtype


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_large_ids_are_not_rounded_on_the_way_through_a_model(policy):
    keras.config.set_dtype_policy(policy)
    layer, table = built(4099, 3)
    inputs = keras.Input((None,), dtype="int32")
    model = keras.Model(inputs, layer(inputs))
    ids = np.array([[257, 2049, 4097, 4098]])
    outputs = model.predict(ids, verbose=0)
    np.testing.assert_allclose(float64(outputs), table[ids] * math.sqrt(3), rtol=2e-2, atol=1e-3)


def test_each_id_trains_its_own_row(pull_back):
    layer, table = built()
    ids = np.array([[3, 5, 3]])

    def with_table(values):
        return layer.stateless_call([values], [], ids)[0]

    _, pull = pull_back(with_table, table.astype("float32"))
    expected = np.zeros_like(table)
    expected[3], expected[5] = 2 * math.sqrt(WIDTH), math.sqrt(WIDTH)
    np.testing.assert_allclose(pull(np.ones((1, 3, WIDTH))), expected, rtol=1e-6)
