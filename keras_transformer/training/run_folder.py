"""Run folder as training writes it: checkpoints, history, metrics, and what every reader needs.

An epoch counts when its checkpoint has its name, and not before: all else that belongs to the epoch
is written earlier, and may be there without it. `RunFolder.settle` rolls the folder back to the
state after an epoch, whenever its writing was interrupted.
"""

import csv
import io
import json
import os
import pathlib
import re
import shutil
from collections.abc import Iterable

import keras

from keras_transformer.engine.run_folder import (
    FILES,
    PARTIAL,
    RunFiles,
    read_sections,
    save_model,
)
from keras_transformer.errors import InputError
from keras_transformer.files import (
    rename_durably,
    replaced_file,
    write_whole,
)
from keras_transformer.text import Labels, Tokenizer
from keras_transformer.training.lora import merged_weights, save_small
from keras_transformer.training.recipe import Recipe, TrainingSection

# Options that runs of version 0.2 have and no recipe has any more, with the values that a run goes
# on with as it was begun.
_GONE = {
    "data.clean": (None,),
    "training.short_targets": (False,),
    "training.weight_histograms": (False, True),
}


class RunFolder(RunFiles):
    """Paths and files of a run, with those that only training reads."""

    def __init__(self, path: str | os.PathLike):
        super().__init__(path)
        self.base_file = self.checkpoints / "base.keras"
        self.checkpoint_suffix = ".keras"
        self.history_file = self.path / "history.csv"
        self.samples_file = self.path / "samples.txt"
        self.metrics_file = self.path / "metrics.json"
        self.bad_batch_file = self.path / "bad_batch.json"
        self.tensorboard = self.path / "tensorboard"

    def create(
        self, recipe: Recipe, tokenizers: tuple[Tokenizer, Tokenizer | Labels], digests: dict
    ) -> None:
        """Writes what is known before the first step; the digests tell the texts from others.

        Raises:
            InputError: The folder cannot be made.
        """
        self.write_start(recipe.to_dict(), tokenizers, digests)

    def write_recipe(self, recipe: Recipe) -> None:
        """Writes `recipe.yaml`."""
        self.write_sections(recipe.to_dict())

    def recipe(self) -> Recipe:
        """The run's `Recipe`."""
        return Recipe.from_dict(self._sections()[0], where=str(self.recipe_file))

    def check_options_gone(self) -> None:
        """Raises `InputError` for a run that another version began with an option that is gone."""
        for name, value in self._sections()[1].items():
            if value not in _GONE[name]:
                raise InputError(
                    f"{self.path}: cannot be resumed, because `{name}` is gone. "
                    f"Received: {value!r}. Train anew, or resume with version 0.2."
                )

    def _sections(self):
        """Sections of the recipe, and by their names the values of options that are gone."""
        sections, gone = read_sections(self.recipe_file), {}
        for name in _GONE:
            section, key = name.split(".")
            if isinstance(sections.get(section), dict) and key in sections[section]:
                gone[name] = sections[section].pop(key)
        return sections, gone

    def checkpoint_file(self, epoch: int) -> pathlib.Path:
        """The checkpoint after `epoch` epochs."""
        return self.checkpoints / f"epoch-{epoch:04d}{self.checkpoint_suffix}"

    def checkpoint_epochs(self) -> list[int]:
        """Epochs that have a checkpoint, in order."""
        matches = (
            re.fullmatch(rf"epoch-(\d{{4,}})\{self.checkpoint_suffix}", file.name)
            for file in self.checkpoints.glob("*")
        )
        return sorted(int(match.group(1)) for match in matches if match)

    def step_file(self, epoch: int, step: int) -> pathlib.Path:
        """The checkpoint after `epoch` epochs and so many steps of the next one."""
        return self.checkpoints / f"step-{epoch:04d}-{step:08d}{self.checkpoint_suffix}"

    def step_files(self) -> list[pathlib.Path]:
        """The checkpoints within an epoch, in order."""
        files = self.checkpoints.glob(f"step-*{self.checkpoint_suffix}")
        return sorted(files, key=epoch_and_step)

    def remove_step_files(self, keep: Iterable[pathlib.Path]) -> None:
        """Removes all checkpoints within an epoch but these, with the files next to them."""
        stems = {file.stem for file in keep}
        for file in self.checkpoints.glob("step-*"):
            if file.stem not in stems:
                file.unlink()

    def remove_partial_files(self) -> None:
        """Removes what a killed process was writing, which no later process writes over."""
        for file in self.path.rglob(".*"):
            name = file.relative_to(self.path).as_posix()
            if PARTIAL.search(name) and FILES.fullmatch(PARTIAL.sub(r"\1\2\3", name)):
                file.unlink()

    def candidate_file(self, epoch: int) -> pathlib.Path:
        """The model of an epoch that may become the best one, or a part of the average."""
        return self.checkpoints / f"best-{epoch:04d}.keras"

    def settle(self, epoch: int, training: TrainingSection) -> None:
        """Rolls the folder back to the state after `epoch` epochs, whose checkpoint is whole.

        The best model so far gets its place; what later epochs left before they had a checkpoint
        goes. Doing it twice changes nothing.

        Args:
            epoch: How many epochs there were; 0 before the first checkpoint.
            training: How the best one is chosen, and what stays.
        """
        self.bad_batch_file.unlink(missing_ok=True)
        written = self.history()
        rows = written[:epoch]
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
        kept = self.checkpoints.glob(f"step-{epoch:04d}-*{self.checkpoint_suffix}")
        self.remove_step_files(keep=kept)
        if len(written) > epoch:
            self.write_history(rows)
        samples = self.samples()
        for match in re.finditer(r"^epoch (\d+)$", samples, re.MULTILINE):
            if int(match.group(1)) > epoch:
                write_whole(self.samples_file, samples[: match.start()])
                break
        for old in self.checkpoint_epochs()[: -training.keep_checkpoints]:
            self.checkpoint_file(old).unlink()

    def digests(self) -> dict[str, dict[str, str]]:
        """Returns the digests of the texts that the run was begun with."""
        try:
            return json.loads(self.digests_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise InputError(f"{self.digests_file}: cannot be read as JSON.") from None

    def samples(self) -> str:
        """The text of `samples.txt`, empty without it."""
        try:
            return self.samples_file.read_bytes().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def write_history(self, rows: list[dict[str, float]]) -> None:
        """Writes `history.csv`: dicts of numbers, in the order of the epochs."""
        text = io.StringIO()
        # A later version may measure more than the epochs of an earlier one have.
        names = dict.fromkeys(["epoch", *(name for row in rows for name in row)])
        writer = csv.DictWriter(text, list(names), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_whole(self.history_file, text.getvalue())

    def history(self) -> list[dict[str, float]]:
        """The lines of `history.csv` as dicts of numbers, in the order of the epochs."""
        if not self.history_file.exists():
            return []
        with open(self.history_file, newline="", encoding="utf-8") as file:
            rows = [
                {key: float(value) for key, value in row.items() if value}
                for row in csv.DictReader(file)
            ]
        # An integer, as it was written and may be written again.
        return [row | {"epoch": int(row["epoch"])} for row in rows]

    def metrics(self) -> dict:
        """Returns the content of `metrics.json`, empty without it."""
        try:
            return json.loads(self.metrics_file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}

    def write_metrics(self, metrics: dict) -> None:
        """Writes `metrics.json`."""
        write_whole(self.metrics_file, json.dumps(metrics, indent=2, allow_nan=False) + "\n")


def epoch_and_step(checkpoint: pathlib.Path) -> list[int]:
    """The numbers in a checkpoint's name, which order checkpoints: as text 10000 is below 9999."""
    return [int(number) for number in re.findall(r"\d+", checkpoint.stem)]


def best_row(rows: list[dict[str, float]], select_by: str) -> dict[str, float]:
    """The best line of a history, by the lowest `val_loss` or the highest value of a measure."""
    return best_first(rows, select_by)[0]


def averaged_epochs(rows: list[dict[str, float]], training: TrainingSection) -> list[int]:
    """The epochs whose models are averaged when training ends after these lines."""
    if training.average_epochs is None:
        return []
    if training.average_of == "best":
        rows = best_first(rows, training.select_by)[: training.average_epochs]
    return sorted(int(row["epoch"]) for row in rows[-training.average_epochs :])


def best_first(rows: list[dict[str, float]], select_by: str) -> list[dict[str, float]]:
    """The lines of a history, the best epoch's first; the validation loss decides equal ones."""
    sign = 1 if select_by == "loss" else -1
    column = "val_token_accuracy" if select_by == "accuracy" else f"val_{select_by}"
    return sorted(rows, key=lambda row: (sign * row[column], row["val_loss"]))


def save_checkpoint(model: keras.Model, path: pathlib.Path) -> None:
    """Saves a model with its optimizer's state; with LoRA (`.npz`) only the small matrices."""
    (save_small if path.suffix == ".npz" else save_model)(model, path)


def save_without_optimizer(model: keras.Model, path: str | os.PathLike) -> None:
    """Saves a copy of a model: the optimizer's state is three times as large as the weights.

    LoRA's matrices are merged into the weights.
    """
    copy = type(model).from_config(model.get_config())
    copy.set_weights(merged_weights(model))
    save_model(copy, path)
