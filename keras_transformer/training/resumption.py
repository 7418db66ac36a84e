"""Resumption of a run: fields of the recipe that may change, and the checkpoint to go on from."""

import json
import pathlib
from typing import Any, NamedTuple

import keras

from keras_transformer.engine.run_folder import load_model
from keras_transformer.errors import InputError, show
from keras_transformer.training.optimizer import inner_optimizer
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.run_folder import RunFolder, epoch_and_step

# Fields that `--resume` may change: the state of all others lies in the checkpoint, or they would
# end in other weights than those of an unbroken run.
_FREE = {
    "epochs",
    "early_stopping_patience",
    "checkpoint_every_minutes",
    "keep_checkpoints",
    "sample_translations",
    "attention_images",
    # Texts are compared by their digests, so that they may be moved.
    "folder",
    "cache",
}


class MidEpochState(NamedTuple):
    """The step that training goes on from, and the state that Keras does not save with a model.

    Attributes:
        epoch: Whole epochs before it.
        step: Batches of the next epoch before it; 0 at the start of an epoch.
        seconds: Seconds that these batches took.
        metrics: Values of the metrics' variables: sums and counts so far.
        seeds: States of the random generators.
    """

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    metrics: list[Any] = []
    seeds: list[Any] = []

    @classmethod
    def load(cls, checkpoint: pathlib.Path) -> "MidEpochState":
        """Reads the state of `step-….keras` from the JSON file beside it.

        Raises:
            InputError: The file is missing or damaged.
        """
        file = checkpoint.with_suffix(".json")
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            raise InputError(f"{file}: cannot be read.") from None


def check_resumable(folder: RunFolder, recipe: Recipe) -> None:
    """Raises `InputError` where `recipe` differs from that of the run in a field that must stay."""
    folder.check_options_gone()
    before, now = folder.recipe().to_dict(), recipe.to_dict()
    for section in ("data", "text", "model", "training"):
        for key in sorted(before[section].keys() | now[section].keys()):
            values = before[section].get(key), now[section].get(key)
            is_equal = len({str(_without_files(each)) for each in values}) == 1
            if not is_equal and key not in _FREE:
                raise InputError(
                    f"{folder.path}: cannot be resumed with another `{section}.{key}` than it "
                    f"was begun with. Received: {now[section].get(key)!r} instead of "
                    f"{before[section].get(key)!r}."
                )
    # The best model gets its place after the first checkpoint.
    if folder.model_file.exists() and not folder.checkpoint_epochs():
        raise InputError(f"{folder.path}: there is no checkpoint to resume from.")


def _without_files(value):
    """A field's value; of corpora their names, weights and tags."""
    if isinstance(value, dict) and "source" in value:
        return {key: value[key] for key in value if key not in ("source", "target")}
    return list(map(_without_files, value)) if isinstance(value, (list, tuple)) else value


def last_checkpoint(folder: RunFolder) -> tuple[keras.Model, MidEpochState] | None:
    """Reads the newest checkpoint that is whole, with a line on stderr for each damaged one.

    Returns:
        The compiled model and its state, or None before the first checkpoint.

    Raises:
        InputError: All checkpoints are damaged.
    """
    epochs = {folder.checkpoint_file(epoch): epoch for epoch in folder.checkpoint_epochs()}
    # A step of an epoch comes after the checkpoint of the epoch before.
    files = sorted([*epochs, *folder.step_files()], key=epoch_and_step, reverse=True)
    for file in files:
        try:
            is_whole = file in epochs
            state = MidEpochState(epochs[file]) if is_whole else MidEpochState.load(file)
            model = load_model(file, compile=True)
            # A checkpoint of version 0.2 has another momentum, for averages after each batch.
            if (momentum := folder.recipe().training.ema_momentum) is not None:
                inner_optimizer(model).ema_momentum = momentum
            return model, state
        except InputError as error:
            show(f"{error} Trying the checkpoint before it.")
    if files:
        raise InputError(f"{folder.checkpoints}: there is no whole checkpoint to resume from.")
    return None
