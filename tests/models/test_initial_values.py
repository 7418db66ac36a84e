import keras
import numpy as np
import pytest

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.models.initial_values import drawn_by_numpy, without_drawing

CONFIG = TransformerConfig(211, 32, 4, 48, num_encoder_layers=1, num_decoder_layers=1)


def make():
    return Transformer(CONFIG)


@pytest.mark.jax  # others draw at once
def test_numpy_draws_from_the_distributions_of_the_initializers():
    keras.utils.set_random_seed(1)
    expected, drawn = make(), drawn_by_numpy(make, 3)
    assert [v.shape for v in expected.variables] == [v.shape for v in drawn.variables]
    for weight, other in zip(expected.weights, drawn.weights, strict=True):
        one, two = (keras.ops.convert_to_numpy(variable) for variable in (weight, other))
        assert two.dtype == one.dtype
        assert abs(two.mean() - one.mean()) < 0.05
        assert two.std() == pytest.approx(one.std(), rel=0.15)
        assert np.abs(two).max() == pytest.approx(np.abs(one).max(), rel=0.35)
    again = drawn_by_numpy(make, 3).get_weights()
    assert all(map(np.array_equal, drawn.get_weights(), again))
    assert not np.array_equal(drawn_by_numpy(make, 4).get_weights()[0], again[0])


def test_a_model_whose_weights_are_set_later_trains_and_computes():
    model, other = make(), without_drawing(make)
    other.set_weights(model.get_weights())
    ids = np.array([[5, 6, 2], [7, 2, 0]], "int32")
    np.testing.assert_array_equal(other((ids, ids)), model((ids, ids)))
    other.compile(loss="mse", jit_compile=False)
    other.fit((ids, ids), np.zeros((2, 3, 211), "float32"), verbose=0)
