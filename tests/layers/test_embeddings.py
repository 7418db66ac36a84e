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


def test_one_table_scaled_gives_vectors_and_unscaled_gives_logits(rng):
    layer, table = built()
    assert len(layer.weights) == 1
    ids = rng.integers(0, VOCABULARY, (BATCH, LENGTH))
    hidden = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    np.testing.assert_allclose(float64(layer(ids)), table[ids] * math.sqrt(WIDTH), rtol=1e-6)
    np.testing.assert_allclose(float64(layer.project(hidden)), hidden @ table.T, atol=1e-5)


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


def test_an_embedding_that_was_saved_without_mask_zero_still_makes_no_mask():
    config = TokenEmbedding(VOCABULARY, WIDTH).get_config()
    assert TokenEmbedding.from_config(config).mask_zero
    del config["mask_zero"]
    layer = TokenEmbedding.from_config(config)
    assert not layer.mask_zero and layer.get_config() == {**config, "mask_zero": False}
    assert layer.compute_mask(ops.zeros((2, 5), "int32")) is None
