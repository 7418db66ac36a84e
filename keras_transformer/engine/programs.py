"""Functions of a model compiled with XLA, on either backend."""

import functools
import threading
from collections.abc import Callable

import keras
import numpy as np

from keras_transformer.base.memory import giving_back, is_large

_compiling = threading.RLock()


class Compiled:
    """A function that may use a model's weights, compiled once for each set of shapes.

    TensorFlow traces the function once for all shapes (except axes of one row: see `_spec`), JAX
    once per shape. XLA compiles it once per shape on both backends. The compiled function uses the
    current weights. Keyword arguments of a call are static: hashable values, and the function is
    compiled for each of them.

    Args:
        model: The Keras model that `function` uses, or `None`.
        function: Function from arrays, or structures of arrays, to a structure of tensors.
        outer_arguments: Function from the static arguments to a tuple of structures of tensors.
            They are computed outside the compiled function, and follow its other arguments.
        with_xla: Whether XLA compiles it. Otherwise TensorFlow runs it as a graph, which takes a
            few times as long; JAX always compiles.
    """

    def __init__(
        self,
        model,
        function: Callable,
        outer_arguments: Callable[..., tuple] | None = None,
        with_xla: bool = True,
    ):
        backend = keras.backend.backend()
        if backend not in ("tensorflow", "jax"):
            rule = "Decoding is compiled on the TensorFlow and JAX backends."
            raise RuntimeError(f"{rule} Received: backend={backend!r}.")
        self.shapes, self._is_large = set(), is_large(model)  # the shapes of earlier calls
        outer_arguments = outer_arguments or (lambda **static: ())
        if backend == "tensorflow":
            self._run = _with_tensorflow(function, outer_arguments, with_xla)
        else:
            self._run = _with_jax(model, function, outer_arguments)
        self._counts = with_xla or backend == "jax"

    @property
    def compilations(self) -> int:
        """Number of functions that XLA has compiled."""
        return len(self.shapes) if self._counts else 0

    def has_program(self, *arguments, **static) -> bool:
        """Returns whether a call compiles nothing."""
        return _shapes(arguments, static) in self.shapes

    def __call__(self, *arguments, **static):
        shapes = _shapes(arguments, static)
        if shapes in self.shapes:
            return self._run(arguments, static)
        # Several threads may call it, but only one at a time may trace and compile.
        with _compiling, giving_back(self._is_large):
            result = self._run(arguments, static)
            self.shapes.add(shapes)
        return result


def _shapes(arguments, static):
    """Returns all that a program depends on."""
    shapes = tuple(
        (tuple(np.shape(value)), keras.backend.standardize_dtype(value.dtype))
        for value in keras.tree.flatten(arguments)
        if value is not None
    )
    return shapes + tuple(static.values())


def _with_tensorflow(function, outer_arguments, with_xla):
    import tensorflow as tf

    traced = {}

    def call(arguments, static):
        flat = tf.nest.flatten(arguments)
        flat = [None if value is None else tf.convert_to_tensor(value) for value in flat]
        specs = tuple(None if value is None else _spec(tf, value) for value in flat)
        key = specs, *static.values()
        if key not in traced:
            weights = outer_arguments(**static)

            # `tf.function` takes flat tensors, because a signature has no place for `None`.
            def run(*tensors):
                tensors = iter(tensors)
                structure = [None if spec is None else next(tensors) for spec in specs]
                # Tensors that the function closes over are its arguments, not constants.
                structure = tf.nest.pack_sequence_as(arguments, structure)
                return function(*structure, *weights, **static)

            signature = [spec for spec in specs if spec is not None]
            run = tf.function(run, signature, jit_compile=with_xla or None, autograph=False)
            # The concrete function, because to look for a trace takes half a millisecond per call.
            traced[key] = run.get_concrete_function()
        return traced[key](*(value for value in flat if value is not None))

    return call


def _spec(tf, value):
    # A batch of one sentence has its own trace: some of XLA's best choices for a matrix are its
    # worst for a vector, and the model may choose another layout of its weights.
    shape = [1 if size == 1 else None for size in value.shape]
    if len(shape) > 2:
        shape[1] = value.shape[1]  # heads or hypotheses: never padded
    return tf.TensorSpec(shape, value.dtype)


def _with_jax(model, function, outer_arguments):
    import jax

    def variables():
        # A model need not be a Keras model: any object with a step can be searched.
        return getattr(model, "variables", ())

    # The weights are an argument, because JAX makes constants of arrays that it closes over.
    @functools.partial(jax.jit, static_argnames="static")
    def run(values, arguments, static):
        with keras.StatelessScope(list(zip(variables(), values, strict=True))):
            return function(*arguments, **dict(static))

    def call(arguments, static):
        arguments = (*arguments, *outer_arguments(**static))
        values = [variable.value for variable in variables()]
        return run(values, arguments, tuple(static.items()))

    return call
