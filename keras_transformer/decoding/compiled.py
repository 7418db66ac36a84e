"""Compiling functions of a model with XLA, on either backend."""

import threading

import keras
import numpy as np

_compiling = threading.RLock()


class Compiled:
    """A function that may use a model's weights, compiled once for each set of shapes.

    TensorFlow traces the function once for all shapes (an axis of one row apart: see `_spec`),
    JAX once for each; XLA compiles a program for each on both. Later changes of the weights are
    seen.

    Args:
        model: The Keras model that `function` uses.
        function: From arrays, or structures of arrays, to a structure of tensors.
        kept: A structure of tensors that each call gets after its arguments; they are no part
            of the program.
        with_xla: Whether XLA compiles it, or TensorFlow runs it as a graph, which takes a few
            times as long; JAX knows nothing else.

    Attributes:
        programs: The sets of shapes that it has been called with.
        compilations: How many programs XLA has compiled for them.
    """

    def __init__(self, model, function, kept=(), with_xla=True):
        backend = keras.backend.backend()
        if backend not in ("tensorflow", "jax"):
            raise RuntimeError(
                "Decoding is compiled on the TensorFlow and JAX backends. "
                f"Received: backend={backend!r}."
            )
        self.programs = set()
        if backend == "tensorflow":
            self._run = _TensorFlow(function, kept, with_xla)
        else:
            self._run = _JAX(model, function, kept)
        self._counts = with_xla or backend == "jax"

    @property
    def compilations(self):
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


class _TensorFlow:
    def __init__(self, function, kept, with_xla):
        self._function, self._kept, self._with_xla = function, kept, with_xla
        self._traced = {}

    def __call__(self, *arguments):
        import tensorflow as tf

        flat = [
            None if each is None else tf.convert_to_tensor(each)
            for each in tf.nest.flatten(arguments)
        ]
        specs = [None if each is None else _spec(tf, each) for each in flat]
        key = tuple(specs)
        if key not in self._traced:
            # No signature is given: the arguments are flat, and their places of `None` stay so.
            def run(*tensors):
                given = iter(tensors)
                structure = [None if spec is None else next(given) for spec in key]
                given = tf.nest.pack_sequence_as(arguments, structure)
                # What is closed over is an argument of the program, not a constant in it.
                return self._function(*given, *self._kept)

            signature = [spec for spec in specs if spec is not None]
            function = tf.function(
                run, signature, jit_compile=self._with_xla or None, autograph=False
            )
            # Called as it is: to look for a trace would take half a millisecond each time.
            self._traced[key] = function.get_concrete_function()
        return self._traced[key](*(each for each in flat if each is not None))


def _spec(tf, value):
    # A batch of one sentence is traced as such: some of XLA's best choices for a matrix are its
    # worst for a vector, and the model may then choose otherwise.
    shape = [1 if axis == 0 and size == 1 else None for axis, size in enumerate(value.shape)]
    if len(shape) > 2:
        shape[1] = value.shape[1]  # heads or hypotheses: never padded
    return tf.TensorSpec(shape, value.dtype)


class _JAX:
    def __init__(self, model, function, kept):
        import jax

        # The weights are an argument: closed over, they would be constants of each program.
        @jax.jit
        def run(values, arguments):
            mapping = list(zip(getattr(model, "variables", ()), values, strict=True))
            with keras.StatelessScope(state_mapping=mapping):
                return function(*arguments)

        self._model, self._jitted, self._kept = model, run, kept

    def __call__(self, *arguments):
        # A model need not be one of Keras': anything with a step can be searched.
        variables = getattr(self._model, "variables", ())
        return self._jitted([each.value for each in variables], (*arguments, *self._kept))
