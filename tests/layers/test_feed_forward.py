"""FeedForward against NumPy."""

import numpy as np
import pytest
import reference
from keras import ops
from reference import float64

from keras_transformer.layers import FeedForward

BATCH, LENGTH, WIDTH, INNER = 2, 5, 7, 13


def built(randomize, **arguments):
    layer = FeedForward(np.int64(INNER), **arguments)
    layer.build((None, None, WIDTH))
    return randomize(layer)


@pytest.mark.parametrize("activation", ["tanh", ops.tanh])
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
