"""Small random Transformers, built once."""

import contextlib

import decoding_oracles as oracles
import keras
import pytest

from keras_transformer.decoding.search import search
from keras_transformer.engine.programs import Compiled


@pytest.fixture(scope="module", autouse=True)
def quick_graphs(plain_graphs):
    """Graphs stand here for programs of XLA."""


@pytest.fixture(scope="session")
def compiled_search(varied):
    """`compiled_search(variant, beam_size, …)(source_ids)`: as XLA programs, kept for all tests."""
    programs = {}

    def compiled_search(variant, beam_size=1, exponent=0.6, n_best=None):
        key = (variant, beam_size, exponent, n_best)
        if key not in programs:
            model = varied(variant)

            def run(source_ids):
                limits = n_best or beam_size, oracles.MAX_LENGTH
                # Id 3 is a word like the others here.
                return search(model, source_ids, beam_size, exponent, *limits, allow_unknown=True)

            programs[key] = Compiled(model, run)
        return programs[key]

    return compiled_search


@pytest.fixture
def graph():
    """`graph(function)`: a program of JAX, or a graph of TensorFlow, which never frees XLA's."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit
    import tensorflow as tf

    return tf.function(autograph=False)


@pytest.fixture
def step_by_step():
    """Within it a loop runs its body in Python, once an iteration."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.disable_jit()
    return contextlib.nullcontext()
