"""The weights of a decoding step; `test_keras_features.py` compares the products of each layout."""

import keras
from keras import ops

from keras_transformer.models import step_weights
from keras_transformer.models.step_weights import Linear, SplitLinear

WIDTH, OUTPUTS = 5, 7


def test_no_matrix_is_cut_in_two_for_a_gpu(monkeypatch):
    monkeypatch.setattr(step_weights, "_LEAST_SPLIT", 1)
    linear = Linear(ops.ones((WIDTH, OUTPUTS)), None)
    assert isinstance(linear.to_kept(one_row=False), SplitLinear)
    monkeypatch.setattr(keras.distribution, "list_devices", lambda: ["cpu:0", "gpu:0"])
    assert linear.to_kept(one_row=False) is linear
