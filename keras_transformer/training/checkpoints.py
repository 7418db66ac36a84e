"""Checkpoints of a training: how they are saved, read, and a run is rolled back to one."""

import os
import pathlib
import re
import shutil
from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.base.errors import InputError, print_lines
from keras_transformer.base.files import rename_durably, replaced_file, write_whole
from keras_transformer.base.large_variables import assign_each, zero_initialized
from keras_transformer.runs.history import averaged_epochs, best_row
from keras_transformer.runs.model_file import load_model, save_model
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.training.lora import load_adapter, merged_weights, save_adapter

_KEPT_CHECKPOINTS = 2  # of the last epochs; the previous one in case the last one is damaged


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
    with zero_initialized():
        copy = type(model).from_config(model.get_config())
    assign_each(copy.weights, merged_weights(model))
    save_model(copy, path)


def last_checkpoint(
    folder: RunFolder, make_model: Callable[[], keras.Model]
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


def roll_back(run: RunFolder, epoch: int, training: Any) -> None:
    """Rolls a run back to the state after `epoch` epochs, whose checkpoint is complete.

    The best model so far becomes `model.keras`, and files of later epochs without a checkpoint are
    removed. A second call changes nothing.

    Args:
        run: Folder of the run.
        epoch: Number of epochs; 0 before the first checkpoint.
        training: Section `training` of the recipe: its options choose the best model and averaged
            models.

    Raises:
        InputError: The history ends before this epoch.
    """
    run.bad_batch_file.unlink(missing_ok=True)
    history = run.history()
    rows, checkpoints = history[:epoch], run.checkpoint_epochs()
    if len(rows) < epoch:
        rule = f"must have the {epoch} epochs that the checkpoints have"
        raise InputError(f"{run.history_file}: {rule}. Received: {len(rows)}.")
    best = run.candidate_file(int(best_row(rows, training.select_by)["epoch"]) if rows else 0)
    averaged = averaged_epochs(rows, training)
    # Later checkpoints are damaged, or the training would not continue from this epoch.
    last = [number for number in checkpoints if number <= epoch][-_KEPT_CHECKPOINTS:]
    stays = {run.checkpoint_file(number) for number in checkpoints if number > epoch}
    stays |= {*map(run.checkpoint_file, last), *map(run.candidate_file, averaged)}
    if averaged:
        stays.add(best)
    if best.exists() and averaged:
        with replaced_file(run.model_file) as temporary:
            shutil.copyfile(best, temporary)
    elif best.exists():
        rename_durably(best, run.model_file)
    if rows != history:
        run.write_history(rows)
    samples = run.samples()
    for match in re.finditer(r"^epoch (\d+)$", samples, re.MULTILINE):
        if int(match.group(1)) > epoch:
            write_whole(run.samples_file, samples[: match.start()])
            break
    files = {*run.checkpoints.glob("best-*.keras"), *map(run.checkpoint_file, checkpoints)}
    for file in sorted(files - stays):
        file.unlink()


def remove_partial_files(run: RunFolder) -> None:
    """Removes the temporary files of a killed process, which no later process overwrites."""
    owned = run.owned()
    for path in list(run.path.rglob(".*.partial*")):
        if owned.is_mine(path.relative_to(run.path).as_posix()):
            path.unlink()
