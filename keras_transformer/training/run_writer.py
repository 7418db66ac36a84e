"""Run folder as training writes it: checkpoints, history, metrics, and the files of readers.

An epoch counts only when its checkpoint is complete. All other files of the epoch are written
before, and may exist without the checkpoint. `RunFolder.roll_back_to` removes what is newer than an
epoch, wherever writing was interrupted.
"""

import csv
import io
import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import keras

from keras_transformer.engine.run_folder import RunFiles, load_model, save_model
from keras_transformer.errors import InputError, show
from keras_transformer.files import rename_durably, replaced_file, write_whole
from keras_transformer.models.initial_values import without_drawing
from keras_transformer.reading import readable
from keras_transformer.text import Labels, Tokenizer
from keras_transformer.text.languages import Languages
from keras_transformer.training.lora import load_adapter, merged_weights, save_adapter
from keras_transformer.training.recipe import Recipe, TrainingSection

# Fields that `--resume` may change. The checkpoint holds the state of other fields, or they would
# lead to other weights than in an uninterrupted run.
_FREE = {
    "epochs",
    "early_stopping_patience",
    "checkpoint_every_minutes",
    "keep_checkpoints",
    "sample_translations",
    "attention_images",
    "shortlist",
    # Texts are compared by their checksums, so that they may be moved.
    "folder",
    "cache",
}


class MidEpochState(NamedTuple):
    """The step from which training continues, and state that Keras does not save with a model.

    Attributes:
        epoch: Number of complete epochs before the step.
        step: Number of earlier batches of the next epoch; 0 at the start of an epoch.
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
        """Reads the state of `step-….keras` from the JSON file next to it.

        Raises:
            InputError: The file is missing or damaged.
        """
        file = checkpoint.with_suffix(".json")
        with readable(file, "the state of a checkpoint"):
            state = cls(**json.loads(file.read_bytes()))
            if [state.epoch, state.step] != epoch_and_step(checkpoint):
                raise ValueError(f"it is of epoch {state.epoch}, step {state.step}")
            return state


class RunFolder(RunFiles):
    """Paths and files of a run, including files that only training reads."""

    def __init__(self, path: str | os.PathLike):
        super().__init__(path)
        self.base_file = self.checkpoints / "base.keras"
        self.checkpoint_suffix = ".keras"
        self.history_file = self.path / "history.csv"
        self.samples_file = self.path / "samples.txt"
        self.bad_batch_file = self.path / "bad_batch.json"
        self.tensorboard = self.path / "tensorboard"

    def create(
        self,
        recipe: Recipe,
        tokenizers: tuple[Tokenizer, Tokenizer | Labels],
        digests: dict,
        languages: Languages | None = None,
    ) -> None:
        """Writes the files of a run that exist before the first step; see `write_start`.

        Raises:
            InputError: The folder cannot be made.
        """
        self.write_start(recipe.to_dict(), tokenizers, digests, languages)

    def write_recipe(self, recipe: Recipe) -> None:
        """Writes `recipe.yaml`."""
        self.write_sections(recipe.to_dict())

    def recipe(self) -> Recipe:
        """Returns the run's `Recipe`."""
        return Recipe.from_dict(self.sections(), where=str(self.recipe_file))

    def checkpoint_file(self, epoch: int) -> pathlib.Path:
        """Returns the path of the checkpoint after `epoch` epochs."""
        return self.checkpoints / f"epoch-{epoch:04d}{self.checkpoint_suffix}"

    def checkpoint_epochs(self) -> list[int]:
        """Returns the epochs that have a checkpoint, in order."""
        matches = (
            re.fullmatch(rf"epoch-(\d{{4,}})\{self.checkpoint_suffix}", file.name)
            for file in self.checkpoints.glob("*")
        )
        return sorted(int(match.group(1)) for match in matches if match)

    def step_file(self, epoch: int, step: int) -> pathlib.Path:
        """Returns the path of the checkpoint after `epoch` epochs and `step` further steps."""
        return self.checkpoints / f"step-{epoch:04d}-{step:08d}{self.checkpoint_suffix}"

    def step_files(self) -> list[pathlib.Path]:
        """Returns the checkpoints within an epoch, in order."""
        files = self.checkpoints.glob(f"step-*{self.checkpoint_suffix}")
        return sorted(files, key=epoch_and_step)

    def remove_step_files(self, keep: Iterable[pathlib.Path]) -> None:
        """Removes all checkpoints within an epoch except `keep`, with the files next to them."""
        stems = {file.stem for file in keep}
        for file in self.checkpoints.glob("step-*"):
            if file.stem not in stems:
                file.unlink()

    def remove_partial_files(self) -> None:
        """Removes the temporary files of a killed process, which no later process overwrites."""
        owned = self.owned()
        for path in list(self.path.rglob(".*.partial*")):
            if owned.is_mine(path.relative_to(self.path).as_posix()):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def candidate_file(self, epoch: int) -> pathlib.Path:
        """Returns the path of an epoch's model that may become the best or part of an average."""
        return self.checkpoints / f"best-{epoch:04d}.keras"

    def roll_back_to(self, epoch: int, training: TrainingSection) -> None:
        """Rolls the folder back to the state after `epoch` epochs, whose checkpoint is complete.

        The best model so far becomes `model.keras`, and files of later epochs without a checkpoint
        are removed. A second call changes nothing.

        Args:
            epoch: Number of epochs; 0 before the first checkpoint.
            training: Options that choose the best model, averaged models and kept checkpoints.
        """
        self.bad_batch_file.unlink(missing_ok=True)
        history = self.history()
        if len(history) < epoch:
            rule = f"must have the {epoch} epochs that the checkpoints have"
            raise InputError(f"{self.history_file}: {rule}. Received: {len(history)}.")
        rows = history[:epoch]
        averaged = [self.candidate_file(epoch) for epoch in averaged_epochs(rows, training)]
        best = self.candidate_file(int(best_row(rows, training.select_by)["epoch"]) if rows else 0)
        if best.exists() and averaged:
            with replaced_file(self.model_file) as temporary:
                shutil.copyfile(best, temporary)
        elif best.exists():
            rename_durably(best, self.model_file)
        for file in self.checkpoints.glob("best-*.keras"):
            if file not in averaged and not (averaged and file == best):
                file.unlink()
        step_files = self.checkpoints.glob(f"step-{epoch:04d}-*{self.checkpoint_suffix}")
        self.remove_step_files(keep=step_files)
        if len(history) > epoch:
            self.write_history(rows)
        samples = self.samples()
        for match in re.finditer(r"^epoch (\d+)$", samples, re.MULTILINE):
            if int(match.group(1)) > epoch:
                write_whole(self.samples_file, samples[: match.start()])
                break
        # Checkpoints of later epochs are damaged, or training would not continue from this epoch.
        epochs = [number for number in self.checkpoint_epochs() if number <= epoch]
        for epoch_to_remove in epochs[: -training.keep_checkpoints]:
            self.checkpoint_file(epoch_to_remove).unlink()

    def digests(self) -> dict[str, dict[str, str]]:
        """Returns the SHA-256 checksums of the texts that the run started with."""
        with readable(self.digests_file, "checksums of the texts"):
            digests = json.loads(self.digests_file.read_bytes())
            digests = {part: {**sides} for part, sides in digests.items()}
        return digests

    def samples(self) -> str:
        """Returns the text of `samples.txt`, or an empty text without this file."""
        try:
            return self.samples_file.read_bytes().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def write_history(self, rows: list[dict[str, float]]) -> None:
        """Writes `history.csv`: dicts of numbers, in the order of the epochs."""
        text = io.StringIO()
        # Epochs of a later version may have more measures than earlier epochs.
        names = dict.fromkeys(["epoch", *(name for row in rows for name in row)])
        writer = csv.DictWriter(text, list(names), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_whole(self.history_file, text.getvalue())

    def history(self) -> list[dict[str, float]]:
        """Returns the lines of `history.csv` as dicts of numbers, in the order of the epochs.

        Raises:
            InputError: The file is damaged.
        """
        if not self.history_file.exists():
            return []
        rows: list[dict[str, float]] = []
        with readable(self.history_file, "the history of a training"):
            text = self.history_file.read_text(encoding="utf-8")
            for epoch, row in enumerate(csv.DictReader(io.StringIO(text)), start=1):
                if None in row or None in row.values():
                    raise ValueError(f"line {epoch + 1} has another number of columns")
                values = {key: float(value) for key, value in row.items() if value}
                if values.get("epoch") != epoch or "val_loss" not in values:
                    raise ValueError(f"line {epoch + 1} must have the `val_loss` of epoch {epoch}")
                rows.append(values | {"epoch": epoch})  # An integer, to be written again as it is.
        return rows

    def write_metrics(self, metrics: dict) -> None:
        """Writes `metrics.json`."""
        write_whole(self.metrics_file, json.dumps(metrics, indent=2, allow_nan=False) + "\n")


def epoch_and_step(checkpoint: pathlib.Path) -> list[int]:
    """Returns the numbers in a checkpoint's name to sort by: as text, 10000 is below 9999."""
    return [int(number) for number in re.findall(r"\d+", checkpoint.stem)]


def best_row(rows: list[dict[str, float]], select_by: str) -> dict[str, float]:
    """Returns the best line of a history, by lowest `val_loss` or highest value of a measure."""
    return best_first(rows, select_by)[0]


def averaged_epochs(rows: list[dict[str, float]], training: TrainingSection) -> list[int]:
    """Returns the epochs whose models are averaged if training ends after these lines."""
    if training.average_epochs is None:
        return []
    if training.average_of == "best":
        rows = best_first(rows, training.select_by)[: training.average_epochs]
    return sorted(int(row["epoch"]) for row in rows[-training.average_epochs :])


def best_first(rows: list[dict[str, float]], select_by: str) -> list[dict[str, float]]:
    """Sorts the lines of a history, best epoch first; of equal epochs by validation loss."""
    sign = 1 if select_by == "loss" else -1
    column = "val_token_accuracy" if select_by == "accuracy" else f"val_{select_by}"
    return sorted(rows, key=lambda row: (sign * row[column], row["val_loss"]))


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
    copy = without_drawing(lambda: type(model).from_config(model.get_config()))
    copy.set_weights(merged_weights(model))
    save_model(copy, path)


def check_resumable(folder: RunFolder, recipe: Recipe) -> None:
    """Raises `InputError` if `recipe` differs from the run's in a field that must not change."""
    run_options, new_options = folder.recipe().to_dict(), recipe.to_dict()
    for section in ("data", "text", "model", "training"):
        for key in sorted(run_options[section].keys() | new_options[section].keys()):
            values = run_options[section].get(key), new_options[section].get(key)
            is_equal = len({str(_without_files(key, value)) for value in values}) == 1
            if not is_equal and key not in _FREE:
                raise InputError(
                    f"{folder.path}: cannot be resumed with another `{section}.{key}`. "
                    f"Received: {new_options[section].get(key)!r} instead of "
                    f"{run_options[section].get(key)!r}."
                )
    # `model.keras` is written after the first checkpoint.
    if folder.model_file.exists() and not folder.checkpoint_epochs():
        raise InputError(f"{folder.path}: there is no checkpoint to resume from.")


def _without_files(key, value):
    """Returns a field's value without paths of files whose texts have checksums."""
    if key == "glossary":
        return value is not None
    if isinstance(value, dict) and "source" in value:
        return {name: value[name] for name in value if name not in ("source", "target", "tmx")}
    is_list = isinstance(value, (list, tuple))
    return [_without_files("", corpus) for corpus in value] if is_list else value


def last_checkpoint(
    folder: RunFolder, make_model: Callable[[], keras.Model]
) -> tuple[keras.Model, MidEpochState] | None:
    """Reads the newest undamaged checkpoint, and writes a line to stderr for each damaged one.

    Args:
        folder: Folder of the run.
        make_model: Function that makes the compiled model of LoRA's matrices.

    Returns:
        The compiled model and its state, or None before the first checkpoint.

    Raises:
        InputError: All checkpoints are damaged.
    """
    epochs = {folder.checkpoint_file(epoch): epoch for epoch in folder.checkpoint_epochs()}
    # A step of an epoch comes after the checkpoint of the previous epoch.
    files = sorted([*epochs, *folder.step_files()], key=epoch_and_step, reverse=True)
    for file in files:
        try:
            is_whole = file in epochs
            state = MidEpochState(epochs[file]) if is_whole else MidEpochState.load(file)
            if file.suffix == ".npz":
                model = make_model()
                load_adapter(model, file)
            else:
                model = load_model(file, compile=True)
            return model, state
        except InputError as error:
            show(f"{error} Trying the previous checkpoint.")
    if files:
        raise InputError(f"{folder.checkpoints}: there is no whole checkpoint to resume from.")
    return None
