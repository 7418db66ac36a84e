"""Initial weights on JAX without a program for each shape, which takes a second to compile."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

_NOTED = "uninitialized_variables"


def without_drawing(make: Callable[[], keras.Model]) -> keras.Model:
    """Calls a function that makes a model whose weights are set afterwards, and returns the model.

    On JAX, without a distribution, no initial weights are drawn.
    """
    if not _can_wait():
        return make()
    # Not public. Keras notes variables without values, and draws them at the end of a later scope.
    from keras.src.backend.common import global_state

    noted = list(global_state.get_global_attribute(_NOTED) or ())
    try:
        with keras.StatelessScope(initialize_variables=False):
            model = make()
    finally:
        global_state.set_global_attribute(_NOTED, noted)
    for variable in model.variables:  # States of random generators are not among the weights.
        if variable.path.endswith("seed_generator_state"):
            variable.assign(variable.value)
    return model


def drawn_by_numpy(make: Callable[[], keras.Model], seed: int) -> keras.Model:
    """Calls a function that makes a model, whose initial weights NumPy draws on JAX.

    They have the distributions of the layers' initializers, but are other numbers than JAX draws.
    """
    model, rng = without_drawing(make), np.random.default_rng(seed)
    for variable in model.weights if _can_wait() else ():
        value = _drawn(getattr(variable, "_initializer", None), tuple(variable.shape), rng)
        variable.assign(variable.value if value is None else value)
    return model


def _can_wait():
    return keras.backend.backend() == "jax" and keras.distribution.distribution() is None


def _drawn(initializer: Any, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Returns a value, or None for an initializer of another kind."""
    initializers = keras.initializers
    if type(initializer) in (initializers.Zeros, initializers.Ones):
        return np.full(shape, float(isinstance(initializer, initializers.Ones)), "float32")
    if type(initializer) is initializers.RandomNormal:
        return rng.normal(initializer.mean, initializer.stddev, shape).astype("float32")
    if type(initializer) is initializers.GlorotUniform and len(shape) > 1:
        fans = _fans(initializer, shape)
        limit = math.sqrt(6 / sum(fans))
        return rng.uniform(-limit, limit, shape).astype("float32")
    return None


def _fans(initializer, shape):
    """Returns the numbers of a kernel's inputs and outputs."""
    axes = getattr(initializer, "input_axes", None), getattr(initializer, "output_axes", None)
    if None not in axes:
        return [math.prod(shape[axis] for axis in of_side) for of_side in axes]
    # The last two axes, as in Keras; the axes before them count for both.
    outer = math.prod(shape[:-2])
    return outer * shape[-2], outer * shape[-1]
