"""Initial values of layers with a matrix, which are zeros where others follow."""

import numpy as np
import pytest
from reference import float64

from keras_transformer.base.large_variables import zero_initialized
from keras_transformer.layers import TokenEmbedding
from keras_transformer.layers.projection import Dense, Projection

WIDTH = 4
LAYERS = {
    "dense": lambda **options: Dense(6, **options),
    "projection": lambda **options: Projection("btd,dhk->bthk", (None, 2, 3), **options),
    "embedding": lambda **options: TokenEmbedding(5, WIDTH, **options),
}


def built(name, **options):
    layer = LAYERS[name](**options)
    layer.build((1, 2, WIDTH))
    return layer


def is_drawn(layer):
    return bool(np.any(float64(layer.weights[0])))


@pytest.mark.parametrize("name", LAYERS)
def test_a_zero_initialized_matrix_is_not_drawn(name):
    argument = "embeddings_initializer" if name == "embedding" else "kernel_initializer"
    with zero_initialized():
        layer, chosen = built(name), built(name, **{argument: "ones"})
        assert not is_drawn(layer) and not is_drawn(chosen)
    np.testing.assert_array_equal(float64(built(name, **{argument: "ones"}).weights[0]), 1.0)
    # The configuration keeps the initializer, for a model that is made of it and trained.
    again = type(layer).from_config(layer.get_config())
    again.build((1, 2, WIDTH))
    assert is_drawn(again)


def test_matrices_are_zero_initialized_until_the_outermost_context_ends():
    """A context within another, as where a model is loaded while another one is made."""
    with zero_initialized():
        with zero_initialized():
            layers = [built("dense")]
        layers.append(built("dense"))
    layers.append(built("dense"))
    assert [is_drawn(layer) for layer in layers] == [False, False, True]


@pytest.mark.parametrize("name", ["dense", "projection"])
def test_matrices_of_lora_are_drawn(name):
    """Files have the merged kernels: these values do not follow."""
    with zero_initialized():
        layer = built(name)
    layer.enable_lora(2)
    assert np.any(float64(layer.lora_kernel_a)) and not np.any(float64(layer.lora_kernel_b))
