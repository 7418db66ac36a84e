"""The simpler simple recurrent unit: the scan against a loop, its steps, what it sees."""

import keras
import numpy as np
import pytest
from keras import ops
from reference import float64, weights_of

from keras_transformer.layers import SSRU, DecoderBlock
from keras_transformer.layers.kv_cache import Past
from keras_transformer.layers.ssru import scan

BATCH, LENGTH, SOURCE, WIDTH = 2, 19, 7, 6
TOLERANCE = {"float32": 1e-5, "mixed_bfloat16": 3e-2}
POLICIES = pytest.mark.parametrize(("policy", "tolerance"), TOLERANCE.items())


def loop(forget, added):
    cell, cells = np.zeros_like(added[:, 0]), []
    for step in range(added.shape[1]):
        cell = forget[:, step] * cell + added[:, step]
        cells.append(cell)
    return np.stack(cells, axis=1)


def sigmoid(values):
    return 1 / (1 + np.exp(-values))


# Around the blocks that the scan is made of.
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 255, 257, 300])
def test_the_scan_equals_a_loop(rng, length):
    forget = rng.random((BATCH, length, WIDTH)).astype("float32")
    added = rng.normal(size=(BATCH, length, WIDTH)).astype("float32")
    cells = scan(ops.convert_to_tensor(forget), ops.convert_to_tensor(added))
    np.testing.assert_allclose(float64(cells), loop(forget, added), atol=1e-5)


@POLICIES
@pytest.mark.parametrize("use_projection", [False, True])
def test_outputs_are_those_of_the_papers_equations(rng, policy, tolerance, use_projection):
    layer = SSRU(use_projection, bias_initializer="random_normal", dtype=policy)
    inputs = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    outputs, weights = layer(inputs), weights_of(layer)
    forget = sigmoid(inputs @ weights["forget/kernel"] + weights["forget/bias"])
    expected = np.maximum(loop(forget, (1 - forget) * (inputs @ weights["input/kernel"])), 0)
    if use_projection:
        expected = expected @ weights["output/kernel"] + weights["output/bias"]
    np.testing.assert_allclose(float64(outputs), expected, atol=tolerance * 3)


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


@pytest.mark.parametrize("normalize_first", [False, True])
def test_the_steps_of_a_block_equal_one_pass(rng, normalize_first):
    block = DecoderBlock(13, 2, normalize_first=normalize_first, mixer=SSRU())
    target = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    source = rng.normal(size=(BATCH, SOURCE, WIDTH)).astype("float32")
    expected, none, weights = block(target, source, return_attention_scores=True)
    assert none is None and tuple(weights.shape) == (BATCH, 2, LENGTH, SOURCE)
    cross = block.cross_attention.project_key_value(ops.convert_to_tensor(source))
    state, past = block.token_mixer.start(BATCH, 1), Past(0, None)
    for step in range(LENGTH):
        inputs = ops.convert_to_tensor(target[:, step : step + 1])
        output, state, _ = block.step(inputs, state, past, cross)
        np.testing.assert_allclose(float64(output)[:, 0], float64(expected)[:, step], atol=1e-5)


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
