"""The simpler simple recurrent unit: long sequences, its state, its name in files."""

import keras
import numpy as np
import pytest
from keras import ops
from reference import float64, sigmoid, ssru, weights_of

from keras_transformer.layers import SSRU, DecoderBlock

BATCH, LENGTH, WIDTH = 2, 19, 6


# Around the blocks that the scan is made of.
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 255, 257, 300])
def test_any_number_of_positions_is_read_one_after_another(rng, randomize, length):
    layer = SSRU()
    layer.build((None, None, WIDTH))
    inputs = rng.normal(size=(BATCH, length, WIDTH)).astype("float32")
    weights = weights_of(randomize(layer, scale=1.0))
    np.testing.assert_allclose(float64(layer(inputs)), ssru(weights, inputs), atol=1e-5)


def test_a_gate_near_1_forgets_little_in_bfloat16_too():
    # In bfloat16 sigmoid(7) is 1, and the state would stay 0.
    layer = SSRU(dtype="mixed_bfloat16")
    layer.build((None, None, 1))
    layer.input_dense.kernel.assign([[1.0]])
    layer.forget_dense.kernel.assign([[0.0]])
    layer.forget_dense.bias.assign([7.0])
    inputs, state = ops.ones((1, 200, 1)), layer.start(1, 1)
    expected = 1 - sigmoid(7) ** 200  # 0.167
    for _ in range(200):
        output, state = layer.step(inputs[:, :1], state)
    for last in (layer(inputs)[0, -1], output[0, 0]):
        np.testing.assert_allclose(float64(last), expected, rtol=2**-8)


def test_a_state_goes_with_its_hypothesis(rng):
    layer = SSRU()
    layer.build((None, None, WIDTH))
    inputs = rng.normal(size=(BATCH, 3, WIDTH)).astype("float32")
    _, state = layer.step(ops.convert_to_tensor(inputs), layer.start(BATCH, 3))
    moved = state.reorder(ops.convert_to_tensor([[2, 0, 2], [1, 1, 0]], "int32"))
    for row, parents in enumerate([[2, 0, 2], [1, 1, 0]]):
        np.testing.assert_array_equal(float64(moved.cell)[row], float64(state.cell)[row][parents])


def test_a_block_of_a_saved_model_is_found_by_its_name_and_its_weights_by_theirs(rng, tmp_path):
    import h5py

    # As Keras wrote it when this block was a class of its own.
    config = {"intermediate_dim": 13, "num_heads": 2, "use_projection": True}
    saved = {"registered_name": "keras_transformer>SSRUDecoderBlock", "config": config}
    saved |= {"module": "keras_transformer.layers.ssru", "class_name": "SSRUDecoderBlock"}
    block = keras.saving.deserialize_keras_object(saved)
    model = keras.Sequential([block])
    model.build((None, None, WIDTH))
    model.save_weights(tmp_path / "block.weights.h5")
    with h5py.File(tmp_path / "block.weights.h5") as file:
        path = "layers/ssru_decoder_block"
        assert {"ssru", "ssru_norm", "feed_forward", "feed_forward_norm"} <= set(file[path])
        assert {"input_dense", "forget_dense", "output_dense"} <= set(file[path]["ssru"])
    copy = DecoderBlock.from_config(block.get_config())
    copy.build((None, None, WIDTH))
    copy.set_weights(block.get_weights())
    inputs = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    np.testing.assert_array_equal(float64(copy(inputs)), float64(block(inputs)))
