"""Small random Transformers, built once."""

import contextlib

import decoding_oracles as oracles
import keras
import pytest


@pytest.fixture(scope="session")
def varied():
    """`varied(variant)`: a float32 model whose sentences end at different lengths."""
    models = {}

    def varied(variant):
        if variant not in models:
            models[variant] = oracles.varied_transformer(variant)
        return models[variant]

    return varied


@pytest.fixture
def step_by_step():
    """Within it a loop runs its body in Python, once an iteration."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.disable_jit()
    return contextlib.nullcontext()
