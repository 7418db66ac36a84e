"""Checkpoints of a training: models with their optimizers, or LoRA's small matrices."""

import os
import pathlib
from collections.abc import Callable

import keras

from keras_transformer.base.errors import InputError, print_lines
from keras_transformer.base.large_variables import assign_each, values_follow
from keras_transformer.runs.model_file import load_model, save_model
from keras_transformer.runs.run_files import RunFiles
from keras_transformer.training.lora import load_adapter, merged_weights, save_adapter


def save_checkpoint(model: keras.Model, path: pathlib.Path) -> None:
    """Saves a model with its optimizer's state; with LoRA (`.npz`) only the small matrices."""
    if path.suffix == ".npz":
        save_adapter(model, path)
    else:
        save_model(model, path)


def save_without_optimizer(model: keras.Model, path: str | os.PathLike) -> None:
    """Saves a model without the optimizer's state, which is three times as large as the weights.

    LoRA's matrices are merged into the weights.
    """
    with values_follow():
        copy = type(model).from_config(model.get_config())
    assign_each(copy.weights, merged_weights(model))
    save_model(copy, path)


def last_checkpoint(
    folder: RunFiles, make_model: Callable[[], keras.Model]
) -> tuple[keras.Model, int] | None:
    """Reads the newest undamaged checkpoint, and writes a line to stderr for each damaged one.

    Args:
        folder: Folder of the run.
        make_model: Function that makes the compiled model of LoRA's matrices.

    Returns:
        The compiled model and its number of epochs, or None before the first checkpoint.

    Raises:
        InputError: All checkpoints are damaged.
    """
    epochs = folder.checkpoint_epochs()
    for epoch in reversed(epochs):
        try:
            file = folder.checkpoint_file(epoch)
            if file.suffix == ".npz":
                model = make_model()
                load_adapter(model, file)
            else:
                model = load_model(file, compile=True)
            return model, epoch
        except InputError as error:
            print_lines(f"{error} Trying the previous checkpoint.")
    if epochs:
        raise InputError(f"{folder.checkpoints}: there is no whole checkpoint to resume from.")
    return None
