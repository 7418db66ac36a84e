"""FeedForward against NumPy."""

import keras
import numpy as np
import pytest
import reference
from keras import ops
from keras.src import testing
from reference import float64

from keras_transformer.layers import FeedForward

BATCH, LENGTH, WIDTH, INNER = 2, 5, 7, 13


def built(randomize, **arguments):
    layer = FeedForward(INNER, **arguments)
    layer.build((None, None, WIDTH))
    return randomize(layer)


@pytest.mark.parametrize(
    ("policy", "tolerance"),
    [("float32", 1e-6), ("mixed_bfloat16", 5e-2), ("mixed_float16", 5e-3)],
)
def test_equals_the_numpy_oracle(rng, randomize, policy, tolerance):
    layer = built(randomize, dtype=policy)
    inputs = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    outputs = layer(inputs)
    assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
    expected = reference.feed_forward(reference.weights_of(layer), inputs)
    np.testing.assert_allclose(float64(outputs), expected, atol=tolerance)


def test_each_position_stands_alone(rng, randomize, influence):
    layer = built(randomize)
    moved_by = influence(layer, rng.normal(size=(BATCH, LENGTH, WIDTH)))
    np.testing.assert_array_equal(moved_by > 0, np.eye(LENGTH, dtype=bool))


@pytest.mark.parametrize("activation", ["tanh", keras.activations.tanh, ops.tanh])
def test_the_activation_is_the_given_one(rng, randomize, activation):
    layer = built(randomize, activation=activation)
    inputs = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    weights = reference.weights_of(layer)
    inner = np.tanh(inputs @ weights["inner/kernel"] + weights["inner/bias"])
    expected = inner @ weights["outer/kernel"] + weights["outer/bias"]
    np.testing.assert_allclose(float64(layer(inputs)), expected, atol=1e-6)


def test_dropout_zeroes_whole_inner_units_while_training_only(rng, randomize):
    layer = built(randomize, dropout=0.5)
    weights = reference.weights_of(layer)
    inputs = rng.normal(size=(1, 1, WIDTH)).astype("float32")
    expected = reference.feed_forward(weights, inputs)
    np.testing.assert_allclose(float64(layer(inputs)), expected, atol=1e-6)
    np.testing.assert_allclose(float64(layer(inputs, training=False)), expected, atol=1e-6)
    outputs = float64(layer(inputs, training=True))[0, 0] - weights["outer/bias"]
    # Every unit is either gone or doubled: solve for the inner units that gave this output.
    inner = np.maximum(inputs[0, 0] @ weights["inner/kernel"] + weights["inner/bias"], 0.0)
    active = np.flatnonzero(inner)
    choices = np.stack(np.meshgrid(*[[0.0, 2.0]] * len(active)), -1).reshape(-1, len(active))
    candidates = (choices * inner[active]) @ weights["outer/kernel"][active]
    errors = np.abs(candidates - outputs).max(axis=-1)
    assert errors.min() < 1e-6
    assert 0 < choices[errors.argmin()].mean() < 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            dict(intermediate_dim=0),
            "`intermediate_dim` must be a positive integer. Received: ",
        ),
        (dict(dropout=1), "`dropout` must be in [0, 1). Received: dropout=1"),
        (dict(dropout=-0.1), "`dropout` must be in [0, 1). Received: dropout=-0.1"),
    ],
)
def test_a_bad_argument_is_named(arguments, message):
    with pytest.raises(ValueError) as caught:
        FeedForward(**{"intermediate_dim": INNER, **arguments})
    assert message in str(caught.value)


def test_config_round_trip_keeps_every_argument():
    layer = FeedForward(INNER, activation="gelu", dropout=0.25, name="thinking")
    copy = FeedForward.from_config(layer.get_config())
    assert copy.get_config() == layer.get_config()
    assert (copy.intermediate_dim, copy.dropout, copy.name) == (INNER, 0.25, "thinking")
    assert copy.activation is keras.activations.gelu


class KerasHarness(testing.TestCase):
    def test_keras_own_layer_checks_pass(self):
        self.run_layer_test(
            FeedForward,
            init_kwargs={"intermediate_dim": INNER, "dropout": 0.1},
            input_shape=(BATCH, LENGTH, WIDTH),
            expected_output_shape=(BATCH, LENGTH, WIDTH),
            expected_num_trainable_weights=4,
            expected_num_non_trainable_weights=0,
            expected_num_seed_generators=1,
            supports_masking=True,
        )
