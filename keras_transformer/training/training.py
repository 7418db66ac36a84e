"""A training from texts to metrics: its data, its model, its measures and its run folder."""

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_transformer.base.errors import check_folder, print_lines
from keras_transformer.base.large_variables import assign_each, zero_initialized
from keras_transformer.engine import Engine
from keras_transformer.engine.device import DevicePlan, device_plan, warn_of_wrong_sums
from keras_transformer.engine.scores import bleu_and_chrf, meaningless_bleu, tokenizer_of
from keras_transformer.models import model_of
from keras_transformer.runs.history import averaged_epochs, best_row, measure
from keras_transformer.runs.model_file import load_model
from keras_transformer.runs.run_folder import MAX_SAMPLE_PAIRS, RunFolder
from keras_transformer.text.per_text import LANGUAGE_OPTIONS
from keras_transformer.training.checkpoints import (
    last_checkpoint,
    remove_partial_files,
    roll_back,
    save_without_optimizer,
)
from keras_transformer.training.hosts import Host
from keras_transformer.training.lora import enable_lora, set_merged_weights
from keras_transformer.training.optimizer import compile_model, keep_zero_start
from keras_transformer.training.preparing import Prepared, check_equal, named, origin_of

_NAMED_MEASURES = "val_loss", "val_bleu", "val_chrf", "val_token_accuracy"


class Training:
    """A training, from a prepared recipe to metrics; `train` calls its methods in order.

    Args:
        prepared: Recipe, tokenizers and batches.
        folder: RunFolder of the run.
        host: This host.
        plan: Shapes and rows that suit the device.

    Attributes:
        recipe: Recipe of the run.
        is_resumed: Whether the run continues from its folder.
        tokenizers: Tokenizers of source and target.
        datasets: Batches by part, `train` and `validation`.
        validation: `(source, reference)` texts for BLEU and samples.
        model: Compiled model in training, from `begin` on, like `engine`.
        engine: Engine of this model.
        start_epoch: Number of complete epochs from which `fit` continues.
        history: Lines of `history.csv` so far.
        metrics: Content of `metrics.json` so far.
        compiled_shapes: Shapes of batches that XLA has compiled, by part.
    """

    translation_options: Mapping[str, Any] = {"beam_size": 1, "long_input": "truncate"}
    model: keras.Model
    engine: Engine

    def __init__(
        self, prepared: Prepared, folder: RunFolder, host: Host, plan: DevicePlan | None = None
    ):
        self.recipe, self.tokenizers = prepared.recipe, prepared.tokenizers
        self.datasets, self.validation = prepared.datasets, prepared.validation
        self.is_resumed, self._prepared = prepared.is_resumed, prepared
        self.folder, self.host, self.plan = folder, host, plan or device_plan()
        self.start_epoch = 0
        self.history: list[dict[str, float]] = []
        self.metrics: dict[str, Any] = {}
        self.compiled_shapes: dict[str, set] = {"train": set(), "validation": set()}
        self._has_doubted = False
        self._translations: list[str] = []  # of the last epoch's BLEU

    def begin(self) -> None:
        """Makes the model or reads the last checkpoint, and prepares the folder for epochs."""
        warn_of_wrong_sums()
        self.model, self.start_epoch = self.model_and_start()
        keep_zero_start(self.model)
        # Now: variables that are made in the first step would let TensorFlow trace it twice.
        self.model.optimizer.build(self.model.trainable_variables)
        trainable_count = sum(
            math.prod(variable.shape) for variable in self.model.trainable_variables
        )
        part = (
            ""
            if trainable_count == self.model.count_params()
            else f", {trainable_count:,} of them trained"
        )
        print_lines(f"{self.model.count_params():,} parameters{part}")
        if self.is_resumed:
            remove_partial_files(self.folder)
            self.folder.write_sections(self.recipe.to_dict())
            roll_back(self.folder, self.start_epoch, self.recipe.training)
            self._complete(self.folder)
        else:
            prepared = self._prepared
            with self.folder.replaced(prepared.check_replaceable) as new_folder:
                new_folder.create(
                    self.recipe.to_dict(), self.tokenizers, prepared.digests, prepared.languages
                )
                self._complete(new_folder)
        self.history = self.folder.history()
        self.engine = self.make_engine()

    def _complete(self, folder):
        """Writes the files of a run's start that `folder` lacks."""
        if self.recipe.training.lora_rank is not None and not folder.base_file.exists():
            save_without_optimizer(self.model, folder.base_file)
        if not folder.sample_pairs_file.exists():
            folder.write_sample_pairs(self.validation[:MAX_SAMPLE_PAIRS])
        if folder.shortlist_file.exists():
            return
        if self.recipe.training.shortlist:
            check_folder("extras/corpora")
            from keras_transformer.extras.corpora.learn_shortlist import learn_shortlist

            print_lines("making the shortlist")
            shortlist = learn_shortlist(self.datasets["train"].pairs, *self.tokenizers)
            shortlist.save(folder.shortlist_file)
        elif not self.is_resumed and (origin := origin_of(self.recipe)) is not None:
            if (shortlist := origin.shortlist()) is not None:  # Its vocabularies are this run's.
                shortlist.save(folder.shortlist_file)

    def model_and_start(self) -> tuple[keras.Model, int]:
        """Returns the compiled model of the last checkpoint, or a new model, and its epochs."""
        checkpoint = last_checkpoint(self.folder, self._new_model) if self.is_resumed else None
        return checkpoint or (self._new_model(), 0)

    def make_engine(self) -> Any:
        """Returns an engine of the model in training."""
        options = self.folder.engine_options(lambda: self.tokenizers)
        # None: the engine chooses what suits the device and the size of the model.
        options["plan"] = None if self.plan == device_plan() else self.plan
        return self.host.engine(self.model, *self.tokenizers, **options)

    def _new_model(self):
        recipe, (source, target) = self.recipe, self.tokenizers
        keras.utils.set_random_seed(recipe.training.seed)
        target_size = None if source == target else target.vocabulary_size
        config = recipe.model_config(source.vocabulary_size, target_size, source.turn_id)
        # LoRA's checkpoints belong to a copy of the origin's weights, as the origin may change.
        file = self.folder.base_file if self.is_resumed else None
        start_model = None
        if file is not None and file.exists():
            start_model = load_model(file, compile=False)
        elif (origin := origin_of(recipe)) is not None:
            start_model = origin.model()
            fields = (
                {name: value for name, value in one.to_dict().items() if "dropout" not in name}
                for one in (start_model.config, config)
            )
            check_equal(origin, *(named("model", values) for values in fields))
        with contextlib.nullcontext() if start_model is None else zero_initialized():
            model = model_of(config, dtype=recipe.training.dtype_policy)
        compile_model(model, recipe.training)
        if start_model is not None:
            assign_each(model.weights, start_model.weights)
        if recipe.training.lora_rank is not None:
            enable_lora(model, recipe.training.lora_rank)
        return model

    def is_over(self) -> bool:
        """Returns True if no epoch is left to train."""
        return self.start_epoch >= self.recipe.training.epochs or self.has_stopped()

    def has_stopped(self) -> bool:
        """Returns True when no epoch was the best for `early_stopping_patience` epochs.

        The history decides, so a resumed run stops where an uninterrupted run does.
        """
        training, rows = self.recipe.training, self.history
        patience = training.early_stopping_patience
        if patience is None or not rows:
            return False
        return rows[-1]["epoch"] - best_row(rows, training.select_by)["epoch"] >= patience

    def translate(self, count: int | None = None) -> list[str]:
        """Translates the first validation sentences by greedy search, with the present weights."""
        texts = [source for source, _ in self.validation[:count]]
        directions = self._prepared.validation_directions[:count]
        options = dict(self.translation_options)
        if directions:
            languages = map(list, zip(*directions, strict=True))
            options |= zip(LANGUAGE_OPTIONS, languages, strict=True)
        return [translation.text for translation in self.engine.translate(texts, **options)]

    def sample_translations(self) -> list[str]:
        """Returns the translations of the first validation sentences, with the present weights."""
        training = self.recipe.training
        count = training.sample_translations
        if training.selects_by_translations and self.plan.has_few_programs:
            return self._translations[:count]  # A search of a few sentences is another program.
        return self.translate(count)

    def bleu_and_chrf(self) -> dict[str, float]:
        """Returns cased BLEU and chrF of the validation set's first 2,000 pairs, from 0 to 100.

        The names are `val_bleu` and `val_chrf`, and for several corpora also `val_bleu/NAME`, ….
        """
        references = [reference for _, reference in self.validation]
        self._translations = self.translate()
        pairs = list(zip(self._translations, references, strict=True))
        by_name = {"": pairs}
        for name, pair in zip(self._prepared.validation_names, pairs, strict=False):
            by_name.setdefault(f"/{name}", []).append(pair)
        measures = {}
        for name, named_pairs in by_name.items():
            hypotheses, references_of_name = zip(*named_pairs, strict=True)
            scores = bleu_and_chrf(hypotheses, references_of_name, self.recipe.data.bleu_tokenizer)
            measures |= {f"val_{metric}{name}": score.value for metric, score in scores.items()}
            if not self._has_doubted and (sentence := meaningless_bleu(scores)) is not None:
                self._has_doubted = True
                print_lines(sentence)
        return measures

    def validate_corpora(self) -> dict[str, float]:
        """Returns loss and metrics of each of several validation corpora, `val_loss/NAME`, …."""
        measures = {}
        for part, dataset in self.datasets.items():
            if name := part.partition("/")[2]:
                logs = self.model.evaluate(for_fit(dataset), verbose=0, return_dict=True)
                measures |= {f"val_{key}/{name}": float(value) for key, value in logs.items()}
        return measures

    def _best_translations(self, best):
        """Returns BLEU and chrF of the best epoch with their signatures, if they were measured."""
        if not self.recipe.training.selects_by_translations:
            return {}
        references = [reference for _, reference in self.validation]
        tokenize = self.recipe.data.bleu_tokenizer or tokenizer_of(references)
        scores = bleu_and_chrf(references[:1], references[:1], tokenize)
        return {
            **{
                f"best_validation_{name}": best[f"val_{name}"]
                for name in scores
                if f"val_{name}" in best
            },
            "validation_signatures": {name: score.signature for name, score in scores.items()},
        }

    def average(self) -> None:
        """Averages the models of the last `average_epochs`; the average becomes the best model.

        Afterwards the model has the averaged weights.
        """
        training, model = self.recipe.training, self.model
        epochs = averaged_epochs(self.history, training)
        if len(epochs) < 2:
            return
        files = map(self.folder.candidate_file, epochs)
        total: list[np.ndarray] = []
        for file in files:
            saved_weights = load_model(file, compile=False).get_weights()
            weights = [np.asarray(weight, "float64") for weight in saved_weights]
            if total:
                weights = [
                    total_weight + weight
                    for total_weight, weight in zip(total, weights, strict=True)
                ]
            total = weights
        set_merged_weights(model, [weight / len(epochs) for weight in total])
        row = {"epoch": 0.0}
        logs = model.evaluate(for_fit(self.datasets["validation"]), verbose=0, return_dict=True)
        row |= {f"val_{key}": float(value) for key, value in logs.items()}
        row |= self.validate_corpora()
        if training.selects_by_translations:
            row |= self.bleu_and_chrf()
        # Also if an epoch measures better, because the measure of the best of many epochs is partly
        # luck, unlike the measure of an average.
        save_without_optimizer(model, self.folder.model_file)
        values = {key: row[key] for key in row if key.startswith(_NAMED_MEASURES)}
        self.metrics["average"] = {"epochs": epochs, **values}

    def finish(self) -> None:
        """Writes `metrics.json`, and a line about the epoch that was kept to stderr."""
        best = best_row(self.history, self.recipe.training.select_by)
        dataset, perplexity = self.datasets["train"], best["val_perplexity"]
        names = (part.partition("/")[2] for part in self.datasets)
        corpora = {
            name: {
                key.removeprefix("val_").removesuffix(f"/{name}"): value
                for key, value in best.items()
                if key.endswith(f"/{name}") and math.isfinite(value)
            }
            for name in filter(None, names)
        }
        report: dict[str, Any] = {
            "best_epoch": int(best["epoch"]),
            "best_validation_loss": best["val_loss"],
            "best_validation_perplexity": perplexity if math.isfinite(perplexity) else None,
            **self._best_translations(best),
            **({"best_validation_corpora": corpora} if corpora else {}),
            **self.metrics,
            "epochs": int(self.history[-1]["epoch"]),
            "training_minutes": round(sum(row["seconds"] for row in self.history) / 60, 2),
            "steps_per_epoch": dataset.steps_per_epoch,
            "shapes": [list(shape) for shape in dataset.shapes],
            "real_token_share": round(dataset.real_token_share, 4),
            "pairs": {part: _counts(report) for part, report in self._prepared.reports.items()},
        }
        self.folder.write_metrics(report)
        print_lines(self._kept(best))

    def _kept(self, best):
        """Returns a line about the epoch that the best model is of, or the averaged epochs."""
        training, trained = self.recipe.training, int(self.history[-1]["epoch"])
        average, name = self.metrics.get("average"), measure(training.select_by)
        kept, row = f"epoch {int(best['epoch'])} of {trained}", best
        if average:
            epochs = ", ".join(map(str, average["epochs"]))
            kept, row = f"the average of epochs {epochs} of {trained}", average
        digits = 2 if training.selects_by_translations else 4
        return f"kept {kept}: {name} {row[name]:.{digits}f}"


def for_fit(dataset):
    """Converts a dataset for the backend's `fit` and `evaluate`."""
    if keras.backend.backend() == "tensorflow":
        # It makes batches ahead, and Keras traces the step once.
        return dataset.to_tf_dataset()
    return dataset.to_py_dataset()


def _counts(report):
    counts = {"total": report.total, "kept": report.kept}
    counts["dropped"] = {reason: drop.count for reason, drop in report.dropped.items()}
    corpora = {name: _counts(corpus_report) for name, corpus_report in report.corpora.items()}
    return {**counts, "corpora": corpora} if corpora else counts
