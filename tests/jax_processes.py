"""New processes with Keras' JAX backend, as on a machine without TensorFlow."""

import os
import pathlib

_WITHOUT_TENSORFLOW = pathlib.Path(__file__).parent / "data" / "without_tensorflow"


def jax_environment(*paths):
    """Variables of the process, which imports from `paths`."""
    path = os.pathsep.join(map(str, (_WITHOUT_TENSORFLOW, *paths)))
    return {"KERAS_BACKEND": "jax", "PYTHONPATH": path}
