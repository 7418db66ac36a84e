"""What a training run leaves on disk, and how it is read again.

recipe.yaml         the recipe with every default written out
tokenizer.model     or source_tokenizer.model and target_tokenizer.model
model.keras         the best model by validation loss
checkpoints/        the last epochs, with the optimizer's state
history.csv         a line an epoch
metrics.json        the best epoch, minutes, what was dropped from the data
tensorboard/        event files
"""

import csv
import json
import pathlib
import re

import keras

from keras_transformer.decoding import ModelEngine
from keras_transformer.errors import InputError
from keras_transformer.files import replaced_file, write_whole
from keras_transformer.models import Transformer
from keras_transformer.text import Tokenizer
from keras_transformer.training.recipe import Recipe


class RunFolder:
    """Paths and files of one run.

    Args:
        path: The folder.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.recipe_file = self.path / "recipe.yaml"
        self.model_file = self.path / "model.keras"
        self.checkpoints = self.path / "checkpoints"
        self.history_file = self.path / "history.csv"
        self.metrics_file = self.path / "metrics.json"
        self.tensorboard = self.path / "tensorboard"

    @classmethod
    def existing(cls, path):
        """A folder that holds a run.

        Raises:
            InputError: There is none.
        """
        folder = cls(path)
        if not folder.path.is_dir():
            raise InputError(f"{path}: no such run folder.")
        if not folder.recipe_file.is_file():
            raise InputError(f"{path}: not a run folder: it has no recipe.yaml.")
        return folder

    def create(self, recipe, tokenizers):
        """Writes what is known before the first step.

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
            target.save(self.path / "target_tokenizer.model")
        # Last: a folder with a recipe is a run.
        self.write_recipe(recipe)

    def write_recipe(self, recipe):
        """Writes `recipe.yaml`."""
        import yaml

        text = yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True)
        write_whole(self.recipe_file, text)

    def recipe(self):
        """The run's `Recipe`."""
        return Recipe.load(self.recipe_file, trained=True)

    def tokenizers(self):
        """The source's and the target's `Tokenizer`; one object twice when it is joint."""
        joint = self.path / "tokenizer.model"
        if joint.exists() or not (self.path / "source_tokenizer.model").exists():
            tokenizer = Tokenizer.load(joint)
            return tokenizer, tokenizer
        return (
            Tokenizer.load(self.path / "source_tokenizer.model"),
            Tokenizer.load(self.path / "target_tokenizer.model"),
        )

    def model(self):
        """The best model.

        Raises:
            InputError: There is none yet, or the file is damaged or of another kind.
        """
        return load_model(self.model_file, compile=False)

    def engine(self):
        """A `ModelEngine` with the run's model, tokenizers and limits."""
        decoding = self.recipe().decoding
        model = self.model()
        try:
            return ModelEngine(
                model,
                *self.tokenizers(),
                max_source_length=decoding.max_source_length,
                max_target_length=decoding.max_target_length,
                frozen=True,
            )
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from None

    def checkpoint_file(self, epoch):
        """The checkpoint after `epoch` epochs."""
        return self.checkpoints / f"epoch-{epoch:04d}.keras"

    def checkpoint_epochs(self):
        """Epochs that have a checkpoint, in order."""
        found = (
            re.fullmatch(r"epoch-(\d{4,})\.keras", file.name) for file in self.checkpoints.glob("*")
        )
        return sorted(int(match.group(1)) for match in found if match)

    def history(self):
        """The lines of `history.csv` as dicts of numbers, in the order of the epochs."""
        if not self.history_file.exists():
            return []
        with open(self.history_file, newline="", encoding="utf-8") as file:
            return [
                {key: float(value) for key, value in row.items()} for row in csv.DictReader(file)
            ]

    def write_metrics(self, metrics):
        """Writes `metrics.json`."""
        write_whole(self.metrics_file, json.dumps(metrics, indent=2) + "\n")


def load_model(path, compile):
    """A `Transformer` from a `.keras` file, without running any code that the file may hold.

    Raises:
        InputError: The file is missing, damaged, or holds something else.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such model file.")
    try:
        model = keras.saving.load_model(path, compile=compile, safe_mode=True)
    except Exception as error:  # Keras and h5py raise many kinds for a damaged file.
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{path}: cannot be read as a Keras model: {first:.200}") from None
    if not isinstance(model, Transformer):
        raise InputError(f"{path}: expected a Transformer. Received: {type(model).__name__}.")
    return model


def save_model(model, path):
    """Saves a model so that `path` is never half a file."""
    with replaced_file(path) as temporary:
        model.save(temporary)
