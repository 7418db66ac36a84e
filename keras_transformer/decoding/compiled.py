"""Functions of a model compiled with XLA, on either backend."""

import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

_compiling = threading.RLock()


class Compiled:
    """A function that may use a model's weights, compiled once for each set of shapes.

    TensorFlow traces the function once for all shapes (an axis of one row apart: see `_spec`), JAX
    once for each; XLA compiles a program for each on both. Changes of the weights are seen.

    Args:
        model: The Keras model that `function` uses, or `None`.
        function: From arrays, or structures of arrays, to a structure of tensors.
        kept: A structure of tensors that each call gets after its arguments, outside the program.
        with_xla: Whether XLA compiles it, or TensorFlow runs it as a graph, which takes a few
            times as long; JAX knows nothing else.
    """

    def __init__(self, model, function: Callable, kept: Any = (), with_xla: bool = True):
        backend = keras.backend.backend()
        if backend not in ("tensorflow", "jax"):
            rule = "Decoding is compiled on the TensorFlow and JAX backends."
            raise RuntimeError(f"{rule} Received: backend={backend!r}.")
        self.programs = set()  # the shapes that it has been called with
        if backend == "tensorflow":
            self._run = _with_tensorflow(function, kept, with_xla)
        else:
            self._run = _with_jax(model, function, kept)
        self._counts = with_xla or backend == "jax"

    @property
    def compilations(self) -> int:
        """Programs that XLA has compiled."""
        return len(self.programs) if self._counts else 0

    def __call__(self, *arguments):
        shapes = tuple(
            (tuple(np.shape(each)), keras.backend.standardize_dtype(each.dtype))
            for each in keras.tree.flatten(arguments)
            if each is not None
        )
        if shapes in self.programs:
            return self._run(*arguments)
        # Several batches may be on their way: one at a time is traced and compiled.
        with _compiling:
            result = self._run(*arguments)
            self.programs.add(shapes)
        return result


def _with_tensorflow(function, kept, with_xla):
    import tensorflow as tf

    traced = {}

    def call(*arguments):
        flat = tf.nest.flatten(arguments)
        flat = [None if each is None else tf.convert_to_tensor(each) for each in flat]
        key = tuple(None if each is None else _spec(tf, each) for each in flat)
        if key not in traced:
            # No signature is given: the arguments are flat, and their places of `None` stay so.
            def run(*tensors):
                given = iter(tensors)
                structure = [None if spec is None else next(given) for spec in key]
                # Tensors that are closed over are arguments of the program, not constants.
                return function(*tf.nest.pack_sequence_as(arguments, structure), *kept)

            signature = [spec for spec in key if spec is not None]
            run = tf.function(run, signature, jit_compile=with_xla or None, autograph=False)
            # Called as it is: to look for a trace would take half a millisecond each time.
            traced[key] = run.get_concrete_function()
        return traced[key](*(each for each in flat if each is not None))

    return call


def _spec(tf, value):
    # A batch of one sentence is traced as such: some of XLA's best choices for a matrix are its
    # worst for a vector, and the model may then choose otherwise.
    shape = [1 if size == 1 else None for size in value.shape]
    if len(shape) > 2:
        shape[1] = value.shape[1]  # heads or hypotheses: never padded
    return tf.TensorSpec(shape, value.dtype)


def _with_jax(model, function, kept):
    import jax

    def variables():
        # A model need not be one of Keras': anything with a step can be searched.
        return getattr(model, "variables", ())

    # The weights are an argument: closed over, they would be constants of each program.
    @jax.jit
    def run(values, arguments):
        with keras.StatelessScope(list(zip(variables(), values, strict=True))):
            return function(*arguments)

    return lambda *arguments: run([each.value for each in variables()], (*arguments, *kept))
