"""State of a training, which callbacks share with their run."""

import json
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from keras_transformer.data import ParallelDataset
from keras_transformer.engine.run_folder import load_model
from keras_transformer.errors import InputError, show
from keras_transformer.training.corpus import Tokenizers
from keras_transformer.training.evaluate import bleu_and_chrf, doubt
from keras_transformer.training.hosts import Host
from keras_transformer.training.lora import load_small
from keras_transformer.training.optimizer import inner_optimizer
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.run_folder import (
    RunFolder,
    best_row,
    epoch_and_step,
)

# Fields that `--resume` may change. The checkpoint holds the state of other fields, or they would
# lead to other weights than in an uninterrupted run.
_FREE = {
    "epochs",
    "early_stopping_patience",
    "checkpoint_every_minutes",
    "keep_checkpoints",
    "sample_translations",
    "attention_images",
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
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            raise InputError(f"{file}: cannot be read.") from None


def check_resumable(folder: RunFolder, recipe: Recipe) -> None:
    """Raises `InputError` if `recipe` differs from the run's in a field that must not change."""
    folder.check_removed_options()
    run_options, new_options = folder.recipe().to_dict(), recipe.to_dict()
    for section in ("data", "text", "model", "training"):
        for key in sorted(run_options[section].keys() | new_options[section].keys()):
            values = run_options[section].get(key), new_options[section].get(key)
            is_equal = len({str(_without_files(value)) for value in values}) == 1
            if not is_equal and key not in _FREE:
                raise InputError(
                    f"{folder.path}: cannot be resumed with another `{section}.{key}`. "
                    f"Received: {new_options[section].get(key)!r} instead of "
                    f"{run_options[section].get(key)!r}."
                )
    # `model.keras` is written after the first checkpoint.
    if folder.model_file.exists() and not folder.checkpoint_epochs():
        raise InputError(f"{folder.path}: there is no checkpoint to resume from.")


def _without_files(value):
    """Returns a field's value, for corpora only names, weights and tags."""
    if isinstance(value, dict) and "source" in value:
        return {key: value[key] for key in value if key not in ("source", "target")}
    return list(map(_without_files, value)) if isinstance(value, (list, tuple)) else value


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
                load_small(model, file)
            else:
                model = load_model(file, compile=True)
            # Checkpoints of version 0.2 have another momentum, for averages after each batch.
            if (momentum := folder.recipe().training.ema_momentum) is not None:
                inner_optimizer(model).ema_momentum = momentum
            return model, state
        except InputError as error:
            show(f"{error} Trying the previous checkpoint.")
    if files:
        raise InputError(f"{folder.checkpoints}: there is no whole checkpoint to resume from.")
    return None


class RunState:
    """State of a training that its callbacks read and write, and the measures of an epoch.

    Attributes:
        recipe: Recipe of the run.
        folder: RunFolder of the run.
        host: This host.
        tokenizers: Tokenizers of source and target.
        datasets: Batches by part, `train` and `validation`.
        validation: `(source, reference)` texts for BLEU, samples and heat maps.
        model: Compiled model in training.
        engine: Engine of this model.
        start: State from which `fit` continues.
        history: Lines of `history.csv` so far.
        metrics: Content of `metrics.json` so far.
        compiled_shapes: Shapes of batches that XLA has compiled, by part.
    """

    tokenizers: Tokenizers
    datasets: dict[str, ParallelDataset]
    validation: list[tuple[str, str]]
    model: keras.Model
    engine: Any

    def __init__(self, recipe: Recipe, folder: RunFolder, host: Host):
        self.recipe, self.folder, self.host = recipe, folder, host
        if recipe.training.lora_rank is not None:
            folder.checkpoint_suffix = ".npz"
        self.start, self.history, self.metrics = MidEpochState(), [], {}
        self.datasets, self._validation_names = {}, []
        self.compiled_shapes: dict[str, set] = {"train": set(), "validation": set()}
        self._is_resumed = self._has_doubted = False

    def has_stopped(self) -> bool:
        """Returns True when no epoch was the best for `early_stopping_patience` epochs.

        The history decides, so a resumed run stops where an uninterrupted run does.
        """
        training, rows = self.recipe.training, self.history
        patience = training.early_stopping_patience
        if patience is None or not rows:
            return False
        return rows[-1]["epoch"] - best_row(rows, training.select_by)["epoch"] >= patience

    def translate(self, sources: list[str]) -> list[str]:
        """Translates by greedy search with the model's current weights."""
        translations = self.engine.translate(sources, beam_size=1, long_input="truncate")
        return [translation.text for translation in translations]

    def bleu_and_chrf(self) -> dict[str, float]:
        """Returns cased BLEU and chrF of the validation set's first 2,000 pairs, from 0 to 100.

        The names are `val_bleu` and `val_chrf`, and for several corpora also `val_bleu/NAME`, ….
        """
        sources, references = map(list, zip(*self.validation, strict=True))
        pairs = list(zip(self.translate(sources), references, strict=True))
        by_name = {"": pairs}
        for name, pair in zip(self._validation_names, pairs, strict=False):
            by_name.setdefault(f"/{name}", []).append(pair)
        measures = {}
        for name, named_pairs in by_name.items():
            hypotheses, references_of_name = zip(*named_pairs, strict=True)
            scores = bleu_and_chrf(hypotheses, references_of_name, self.recipe.data.bleu_tokenizer)
            measures |= {f"val_{metric}{name}": score.value for metric, score in scores.items()}
            if not self._has_doubted and (sentence := doubt(scores)) is not None:
                self._has_doubted = True
                show(sentence)
        return measures

    def validate_corpora(self) -> dict[str, float]:
        """Returns loss and metrics of each of several validation corpora, `val_loss/NAME`, …."""
        measures = {}
        for part, dataset in self.datasets.items():
            if name := part.partition("/")[2]:
                logs = self.model.evaluate(for_fit(dataset), verbose=0, return_dict=True)
                measures |= {f"val_{key}/{name}": float(value) for key, value in logs.items()}
        return measures


def for_fit(dataset, start=0):
    """Converts a dataset for the backend's `fit` and `evaluate`."""
    if keras.backend.backend() == "tensorflow":
        # It makes batches ahead, and Keras traces the step once.
        return dataset.to_tf_dataset(start)
    return dataset.to_py_dataset(start)
