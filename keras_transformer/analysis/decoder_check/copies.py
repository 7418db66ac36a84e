"""Compares a model with its saved file and with an export."""

import pathlib
import random
import tempfile

import keras
import numpy as np
from keras import ops

_UNTRACKED = (
    "All weights are equal: `get_config` leaves out an argument, or the model has a variable that "
    "Keras does not save."
)


def load_saved(model: keras.Model) -> keras.Model:
    """Saves a model to a temporary `.keras` file and loads it."""
    # New layers draw their seeds from Python's generator.
    state = random.getstate()
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.keras"
            model.save(path)
            return keras.saving.load_model(path, compile=False)
    finally:
        random.setstate(state)


def cause_of_loading(error: BaseException) -> str:
    """Returns the likely cause of a file that cannot be saved or loaded."""
    text = str(error)
    if "Lambda" in text or "lambda" in text or "safe_mode" in text:
        return "A Lambda layer cannot be loaded safely: write a registered layer."
    if "register_keras_serializable" in text or "Could not locate" in text:
        return "A class is not registered: decorate it with `register_keras_serializable`."
    return "`get_config` does not return the arguments that `__init__` needs."


def cause_of_loaded(model: keras.Model, loaded: keras.Model) -> str:
    """Returns the likely cause of other outputs after loading."""
    weights, others = model.weights, loaded.weights
    if len(weights) != len(others):
        return (
            f"The loaded model has {len(others)} weights instead of {len(weights)}: `get_config` "
            "leaves out an argument, or `build` does not make all weights."
        )
    for weight, other in zip(weights, others, strict=True):
        is_equal = weight.shape == other.shape and np.array_equal(
            ops.convert_to_numpy(weight), ops.convert_to_numpy(other)
        )
        if not is_equal:
            return (
                f"The weight `{weight.path}` of shape {tuple(weight.shape)} is not restored: "
                "`save_own_variables`, or a layer that Keras does not track."
            )
    return _UNTRACKED
