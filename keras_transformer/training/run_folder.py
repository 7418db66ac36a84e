"""Folder of a training run, written and read.

recipe.yaml         the recipe with every default written out
tokenizer.model     or source_tokenizer.model and target_tokenizer.model
labels.json         a classifier's labels, beside source_tokenizer.model
data.json           digests of the texts
model.keras         the best model, or the average of some epochs where that is better
checkpoints/        the last epochs and steps, with the optimizer's state; models to be averaged
history.csv         a line an epoch
samples.tsv         validation pairs that exports are verified with
samples.txt         sample translations, each epoch
bad_batch.json      where the loss was no number, if it was
metrics.json        the best epoch, minutes, what was dropped from the data
tensorboard/        event files

An epoch counts when its checkpoint has its name, and not before: all else that belongs to the epoch
is written earlier, and may be there without it. `RunFolder.settle` makes the folder that of an
epoch, whenever its writing was interrupted.
"""

import csv
import io
import json
import os
import pathlib
import re
import shutil
from collections.abc import Iterable, Mapping

import keras

from keras_transformer.engine.model_engine import ClassifierEngine, ModelEngine, engine_of
from keras_transformer.errors import InputError, first_line
from keras_transformer.files import (
    escape_field,
    iterate_lines,
    rename_durably,
    replaced_file,
    unescape_field,
    write_whole,
)
from keras_transformer.models import KINDS
from keras_transformer.owned_folder import OwnedFolder
from keras_transformer.text import Labels, Tokenizer
from keras_transformer.training.recipe import Recipe, TrainingSection, read_sections

# Files of a run.
_MADE = re.compile(
    r"(recipe\.yaml|(source_|target_)?tokenizer\.model|labels\.json|data\.json|model\.keras|history\.csv"
    r"|samples\.(tsv|txt)|bad_batch\.json|metrics\.json|checkpoints/(epoch|best)-\d+\.keras"
    r"|checkpoints/step-\d+-\d+\.(keras|json)"
    r"|tensorboard/(train|validation|attention)/events\.out\.tfevents\.[^/]*)"
)
# Those that `RunFolder.create` writes before the recipe.
_MADE_FIRST = re.compile(r"(source_|target_)?tokenizer\.model|labels\.json|data\.json|samples\.tsv")
# Options that runs of version 0.2 have and no recipe has any more, with the values that a run goes
# on with as it was begun.
_GONE = {
    "data.clean": (None,),
    "training.short_targets": (False,),
    "training.weight_histograms": (False, True),
}
# Their names while they are written.
_PARTIAL = re.compile(r"(^|/)\.([^/]*)\.partial(\.[^/]*)$")


class RunFolder:
    """Paths and files of one run."""

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path)
        self.recipe_file = self.path / "recipe.yaml"
        self.model_file = self.path / "model.keras"
        self.checkpoints = self.path / "checkpoints"
        self.history_file = self.path / "history.csv"
        self.samples_file = self.path / "samples.txt"
        self.sample_pairs_file = self.path / "samples.tsv"
        self.digests_file = self.path / "data.json"
        self.metrics_file = self.path / "metrics.json"
        self.bad_batch_file = self.path / "bad_batch.json"
        self.tensorboard = self.path / "tensorboard"

    @classmethod
    def existing(cls, path: str | os.PathLike) -> "RunFolder":
        """Returns a folder that holds a run.

        Raises:
            InputError: There is no run.
        """
        folder = cls(path)
        if not folder.path.is_dir():
            raise InputError(f"{path}: no such run folder.")
        if not folder.recipe_file.is_file():
            raise InputError(f"{path}: not a run folder: it has no recipe.yaml.")
        return folder

    def is_half_made(self) -> bool:
        """Returns whether `create` was interrupted here, or nothing was written yet."""
        paths = (path for path in self.path.rglob("*") if not path.is_dir())
        files = {path.relative_to(self.path).as_posix() for path in paths}
        files -= {".lock", ".recipe.partial.yaml"}
        if not self.path.is_dir() or files and not self.checkpoints.is_dir():
            return False
        return all(_MADE_FIRST.fullmatch(_PARTIAL.sub(r"\1\2\3", file)) for file in files)

    def owned(self) -> OwnedFolder:
        """Returns the folder as one that a run made; its `check` and `clear` spare other files."""
        # A `recipe.yaml` alone can be anybody's.
        is_run = any(self.path.glob("*tokenizer*.model"))

        def owns(path):
            return is_run and bool(_MADE.fullmatch(_PARTIAL.sub(r"\1\2\3", path)))

        return OwnedFolder(self.path, self.recipe_file.name, owns)

    def check_replaceable(
        self,
        overwrite: bool,
        inputs: Mapping[str, str | os.PathLike | None],
        half_made: bool = False,
    ) -> None:
        """Checks that a new run may take the folder: it is missing or empty, or may be overwritten.

        Args:
            overwrite: Replace a run that is there, if nothing else is in its folder.
            inputs: Files that the new run is made from, by their names in messages.
            half_made: Replace what an interrupted `create` left.

        Raises:
            InputError: The folder is not replaced.
        """
        overwrite = overwrite or (half_made and self.is_half_made())
        self.owned().check_replaceable(overwrite, "--resume to go on with it, ")
        for name, file in inputs.items():
            if file and pathlib.Path(file).resolve().is_relative_to(self.path.resolve()):
                raise InputError(
                    f"{self.path}: is not overwritten, because {name} is in it: {file}. "
                    "Give another --output."
                )

    def create(
        self, recipe: Recipe, tokenizers: tuple[Tokenizer, Tokenizer | Labels], digests: dict
    ) -> None:
        """Writes what is known before the first step; the digests tell the texts from others.

        Raises:
            InputError: The folder cannot be made.
        """
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path}: cannot make the folder: {error.strerror}.") from None
        source, target = tokenizers
        if source == target:
            source.save(self.path / "tokenizer.model")
        else:
            source.save(self.path / "source_tokenizer.model")
            target.save(self._target_file(recipe))
        write_whole(self.digests_file, json.dumps(digests, indent=2) + "\n")
        # Last: a folder with a recipe is a run.
        self.write_recipe(recipe)

    def write_recipe(self, recipe: Recipe) -> None:
        """Writes `recipe.yaml`."""
        import yaml

        text = yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True)
        write_whole(self.recipe_file, text)

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

    def _target_file(self, recipe):
        is_classifier = recipe.gives_labels
        return self.path / ("labels.json" if is_classifier else "target_tokenizer.model")

    def tokenizers(self) -> tuple[Tokenizer, Tokenizer | Labels]:
        """The source's and the target's `Tokenizer`; one object twice when it is joint.

        A classifier's second one is its `Labels`.
        """
        joint = self.path / "tokenizer.model"
        if joint.exists() or not (self.path / "source_tokenizer.model").exists():
            tokenizer = Tokenizer.load(joint)
            return tokenizer, tokenizer
        target = self._target_file(self.recipe())
        load = Labels.load if target.suffix == ".json" else Tokenizer.load
        return Tokenizer.load(self.path / "source_tokenizer.model"), load(target)

    def model(self) -> keras.Model:
        """The best model.

        Raises:
            InputError: There is none yet, or the file is damaged or of another kind.
        """
        return load_model(self.model_file, compile=False)

    def engine(self) -> ModelEngine | ClassifierEngine:
        """Returns the engine with the run's model, tokenizers and limits."""
        options, model = self.recipe().engine_options, self.model()
        try:
            return engine_of(model, *self.tokenizers(), frozen=True, **options)
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from None

    def checkpoint_file(self, epoch: int) -> pathlib.Path:
        """The checkpoint after `epoch` epochs."""
        return self.checkpoints / f"epoch-{epoch:04d}.keras"

    def checkpoint_epochs(self) -> list[int]:
        """Epochs that have a checkpoint, in order."""
        found = (
            re.fullmatch(r"epoch-(\d{4,})\.keras", file.name) for file in self.checkpoints.glob("*")
        )
        return sorted(int(match.group(1)) for match in found if match)

    def step_file(self, epoch: int, step: int) -> pathlib.Path:
        """The checkpoint after `epoch` epochs and so many steps of the next one."""
        return self.checkpoints / f"step-{epoch:04d}-{step:08d}.keras"

    def step_files(self) -> list[pathlib.Path]:
        """The checkpoints within an epoch, in order."""
        return sorted(self.checkpoints.glob("step-*.keras"), key=epoch_and_step)

    def remove_step_files(self, keep: Iterable[pathlib.Path]) -> None:
        """Removes all checkpoints within an epoch but these, with what lies beside them."""
        kept = {file.stem for file in keep}
        for file in self.checkpoints.glob("step-*"):
            if file.stem not in kept:
                file.unlink()

    def remove_partial_files(self) -> None:
        """Removes what a killed process was writing, which no later process writes over."""
        for file in self.path.rglob(".*"):
            name = file.relative_to(self.path).as_posix()
            if _PARTIAL.search(name) and _MADE.fullmatch(_PARTIAL.sub(r"\1\2\3", name)):
                file.unlink()

    def candidate_file(self, epoch: int) -> pathlib.Path:
        """The model of an epoch that may become the best one, or a part of the average."""
        return self.checkpoints / f"best-{epoch:04d}.keras"

    def settle(self, epoch: int, training: TrainingSection) -> None:
        """Makes the folder that of `epoch` epochs, whose checkpoint is whole.

        The best model so far gets its place; what later epochs left before they had a checkpoint
        goes. Doing it twice changes nothing.

        Args:
            epoch: How many epochs there were; 0 before the first checkpoint.
            training: How the best one is chosen, and what stays.
        """
        self.bad_batch_file.unlink(missing_ok=True)
        written = self.history()
        rows = written[:epoch]
        averaged = [self.candidate_file(each) for each in averaged_epochs(rows, training)]
        best = self.candidate_file(int(best_row(rows, training.select_by)["epoch"]) if rows else 0)
        if best.exists() and averaged:
            with replaced_file(self.model_file) as temporary:
                shutil.copyfile(best, temporary)
        elif best.exists():
            rename_durably(best, self.model_file)
        for file in self.checkpoints.glob("best-*.keras"):
            if file not in averaged and not (averaged and file == best):
                file.unlink()
        self.remove_step_files(keep=self.checkpoints.glob(f"step-{epoch:04d}-*.keras"))
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

    def write_sample_pairs(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Writes `samples.tsv`, one line per pair of a source and a target text."""
        lines = ("\t".join(map(escape_field, pair)) + "\n" for pair in pairs)
        write_whole(self.sample_pairs_file, "".join(lines))

    def sample_pairs(self) -> list[tuple[str, str]]:
        """Returns the pairs of `samples.tsv`; none where a run was made without it.

        Raises:
            InputError: A line is not two texts with a tab between.
        """
        if not self.sample_pairs_file.is_file():
            return []
        pairs = []
        for number, line in enumerate(iterate_lines(self.sample_pairs_file, True), start=1):
            source, tab, target = line.partition("\t")
            if not tab or "\t" in target:
                place = f"{self.sample_pairs_file}, line {number}"
                raise InputError(
                    f"{place}: expected a source and a target. Received: {line!r:.80}."
                )
            pairs.append((unescape_field(source), unescape_field(target)))
        return pairs

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
    return [int(each) for each in re.findall(r"\d+", checkpoint.stem)]


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


def load_model(path: str | os.PathLike, compile: bool) -> keras.Model:
    """A model from a `.keras` file, without running any code that the file may hold.

    Raises:
        InputError: The file is missing, damaged, or holds something else.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such model file.")
    try:
        model = keras.saving.load_model(path, compile=compile, safe_mode=True)
    except Exception as error:  # Keras and h5py raise many kinds for a damaged file.
        reason = f"{first_line(error):.200}"
        raise InputError(f"{path}: cannot be read as a Keras model: {reason}") from None
    if not isinstance(model, tuple(KINDS.values())):
        names = ", ".join(kind.__name__ for kind in KINDS.values())
        raise InputError(f"{path}: expected one of {names}. Received: {type(model).__name__}.")
    return model


def save_model(model: keras.Model, path: str | os.PathLike) -> None:
    """Saves a model so that `path` is never half a file."""
    with replaced_file(path) as temporary:
        model.save(temporary)


def save_without_optimizer(model: keras.Model, path: str | os.PathLike) -> None:
    """Saves a copy of a model: the optimizer's state is three times as large as the weights."""
    copy = type(model).from_config(model.get_config())
    copy.set_weights(model.get_weights())
    save_model(copy, path)
