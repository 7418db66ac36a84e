"""Compiling a function of a model and ids with XLA, on either backend."""

import keras


def compile_for_ids(model, function):
    """Compiles `function(ids)`, which may use the model's weights.

    XLA compiles one program for each shape of `ids`; TensorFlow traces the function once for all
    of them, JAX once for each. Later changes of the weights are seen.

    Args:
        model: The Keras model that `function` uses.
        function: From int32 `(batch, length)` to a structure of tensors.

    Returns:
        A callable from a NumPy array to a structure of tensors.

    Raises:
        RuntimeError: The Keras backend is neither TensorFlow nor JAX.
    """
    if keras.backend.backend() == "tensorflow":
        return _compile_with_tensorflow(function)
    if keras.backend.backend() == "jax":
        return _compile_with_jax(model, function)
    raise RuntimeError(
        "Decoding is compiled on the TensorFlow and JAX backends. "
        f"Received: backend={keras.backend.backend()!r}."
    )


def _compile_with_tensorflow(function):
    import tensorflow as tf

    return tf.function(
        function,
        input_signature=[tf.TensorSpec((None, None), tf.int32)],
        jit_compile=True,
        autograph=False,
    )


def _compile_with_jax(model, function):
    import jax

    # The weights are an argument: closed over, they would be constants of each program.
    @jax.jit
    def run(values, ids):
        with keras.StatelessScope(state_mapping=list(zip(model.variables, values, strict=True))):
            return function(ids)

    return lambda ids: run([variable.value for variable in model.variables], ids)
