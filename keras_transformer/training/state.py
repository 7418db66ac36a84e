"""State of a training, which callbacks share with the run that they belong to."""

from typing import Any

import keras

from keras_transformer.data import ParallelDataset
from keras_transformer.errors import show
from keras_transformer.training.bleu import bleu_and_chrf, doubt
from keras_transformer.training.corpus import Tokenizers
from keras_transformer.training.hosts import Host
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.resumption import MidEpochState
from keras_transformer.training.run_folder import (
    RunFolder,
    best_row,
)


class RunState:
    """State of a training that its callbacks read and write, and the measures of an epoch.

    Attributes:
        recipe: Recipe of the run.
        folder: RunFolder that is written.
        host: This one of all hosts.
        tokenizers: Tokenizers of source and target.
        datasets: Batches by part, `train` and `validation`.
        validation: `(source, reference)` texts for BLEU, samples and pictures.
        model: Compiled model in training.
        engine: Engine of this model.
        start: State that `fit` goes on from.
        history: Lines of `history.csv` so far.
        metrics: Content of `metrics.json` so far.
    """

    tokenizers: Tokenizers
    datasets: dict[str, ParallelDataset]
    validation: list[tuple[str, str]]
    model: keras.Model
    engine: Any

    def __init__(self, recipe: Recipe, folder: RunFolder, host: Host):
        self.recipe, self.folder, self.host = recipe, folder, host
        self.start, self.history, self.metrics = MidEpochState(), [], {}
        self.datasets, self._validation_names = {}, []
        self._is_resumed = self._has_doubted = False

    def has_stopped(self) -> bool:
        """Returns True when no epoch was the best for `early_stopping_patience` epochs.

        The history decides, so a resumed run stops where an unbroken one does.
        """
        training, rows = self.recipe.training, self.history
        patience = training.early_stopping_patience
        if patience is None or not rows:
            return False
        return rows[-1]["epoch"] - best_row(rows, training.select_by)["epoch"] >= patience

    def translate(self, sources: list[str]) -> list[str]:
        """Translates by greedy search with the model's weights as they are."""
        found = self.engine.translate(sources, beam_size=1, long_input="truncate")
        return [each.text for each in found]

    def bleu_and_chrf(self) -> dict[str, float]:
        """Returns cased BLEU and chrF of the validation set's first 2,000 pairs, 0 … 100.

        As `val_bleu` and `val_chrf`, and of each of several corpora as `val_bleu/NAME`, ….
        """
        sources, references = map(list, zip(*self.validation, strict=True))
        pairs = list(zip(self.translate(sources), references, strict=True))
        by_name = {"": pairs}
        for name, pair in zip(self._validation_names, pairs, strict=False):
            by_name.setdefault(f"/{name}", []).append(pair)
        found = {}
        for name, chosen in by_name.items():
            hypotheses, wanted = zip(*chosen, strict=True)
            scores = bleu_and_chrf(hypotheses, wanted, self.recipe.data.bleu_tokenizer)
            found |= {f"val_{metric}{name}": score.value for metric, score in scores.items()}
            if not self._has_doubted and (sentence := doubt(scores)) is not None:
                self._has_doubted = True
                show(sentence)
        return found

    def validate_corpora(self) -> dict[str, float]:
        """Returns loss and metrics of each of several validation corpora, `val_loss/NAME`, …."""
        found = {}
        for part, dataset in self.datasets.items():
            if name := part.partition("/")[2]:
                logs = self.model.evaluate(for_fit(dataset), verbose=0, return_dict=True)
                found |= {f"val_{key}/{name}": float(value) for key, value in logs.items()}
        return found


def for_fit(dataset, start=0):
    """Returns a dataset in the form that the backend's `fit` and `evaluate` take."""
    if keras.backend.backend() == "tensorflow":
        return dataset.to_tf_dataset(start)  # batches are made ahead, and the step is traced once
    return dataset.to_py_dataset(start)
