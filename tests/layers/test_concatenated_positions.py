"""ConcatenatedPositions: tokens and positions side by side, projected."""

import keras
import numpy as np
import pytest
import reference
from keras import ops
from reference import float64

from keras_transformer.layers import (
    ConcatenatedPositions,
    LearnedPositionalEmbedding,
    SinusoidalPositionalEncoding,
)

WIDTH = 7
IDS = np.array([[3, 5, 7], [11, 13, 0]])
POSITIONS = {
    "sinusoidal": SinusoidalPositionalEncoding,
    "learned": lambda: LearnedPositionalEmbedding(11),
}


@pytest.mark.parametrize("kind", POSITIONS)
@pytest.mark.parametrize("start", [0, 5])
def test_is_the_product_of_both_side_by_side(rng, randomize, kind, start):
    layer = ConcatenatedPositions(POSITIONS[kind]())
    layer.build((None, None, WIDTH))
    weights = reference.weights_of(randomize(layer))
    inputs = rng.normal(size=(2, 5, WIDTH)).astype("float32")
    positions = (
        reference.positional_encoding(5, WIDTH, start)
        if kind == "sinusoidal"
        else next(v for k, v in weights.items() if k.endswith("embeddings"))[start : start + 5]
    )
    both = np.concatenate([inputs, np.broadcast_to(positions, inputs.shape)], axis=2)
    expected = both @ weights["projection/kernel"]
    np.testing.assert_allclose(float64(layer(inputs, start_index=start)), expected, atol=1e-5)


def test_a_mask_is_passed_on():
    layer = ConcatenatedPositions(SinusoidalPositionalEncoding())
    inputs = ops.ones((1, 3, WIDTH))
    inputs._keras_mask = mask = ops.convert_to_tensor([[True, True, False]])
    np.testing.assert_array_equal(np.asarray(layer(inputs)._keras_mask), np.asarray(mask))


@pytest.mark.parametrize("shared", [False, True])
def test_a_model_is_saved_with_its_learned_positions_also_where_two_layers_share_them(
    tmp_path, shared
):
    ids = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(29, WIDTH)(ids)
    one = LearnedPositionalEmbedding(11)
    other = one if shared else LearnedPositionalEmbedding(11)
    outputs = [ConcatenatedPositions(each)(embedded) for each in (one, other)]
    model = keras.Model(ids, outputs)
    # Tokens, projections, tables of positions.
    assert len(model.weights) == 1 + 2 + (1 if shared else 2)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(loaded.weights) == len(model.weights)
    for found, expected in zip(loaded(IDS), model(IDS), strict=True):
        np.testing.assert_array_equal(float64(found), float64(expected))
