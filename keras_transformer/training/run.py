"""Trains the model of a recipe with `model.fit`, and writes its run folder."""

import contextlib
import functools
import math
import os
import sys
from typing import Any

import keras
import numpy as np

from keras_transformer.engine.run_folder import SAMPLE_PAIRS, load_model
from keras_transformer.errors import InputError, show
from keras_transformer.files import is_terminal
from keras_transformer.locks import locked_folder
from keras_transformer.models import model_of
from keras_transformer.training import callbacks as run_callbacks
from keras_transformer.training.corpus import Corpus
from keras_transformer.training.evaluate import bleu_and_chrf, check_tokenizer, tokenizer_of
from keras_transformer.training.hosts import SINGLE_HOST, Host
from keras_transformer.training.lora import enable_lora, set_merged_weights
from keras_transformer.training.optimizer import compile_model, keep_zero_start, warmup_advice
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.run_folder import (
    RunFolder,
    averaged_epochs,
    best_row,
    save_without_optimizer,
)
from keras_transformer.training.state import (
    MidEpochState,
    RunState,
    check_resumable,
    for_fit,
    last_checkpoint,
)
from keras_transformer.training.tensorboard import TensorBoard, check_plots

_PROMPT_WORDS = 3
_NAMED_MEASURES = "val_loss", "val_bleu", "val_chrf"


def train(
    recipe: Recipe,
    output: str | os.PathLike,
    resume: bool = False,
    overwrite: bool = False,
    recipe_file: str | os.PathLike | None = None,
    host: Host = SINGLE_HOST,
) -> RunFolder:
    """Trains the model of a recipe.

    Nothing is written before the data, the recipe and the vocabulary have passed their checks.

    Args:
        recipe: Recipe of the run.
        output: The run folder to make.
        resume: Whether to continue from the last complete checkpoint of `output`, with its
            tokenizers, optimizer, schedule and epoch. Without a checkpoint the run starts again,
            also in an incomplete folder. An interrupted run and its continuation give the same
            weights, history and metrics as an uninterrupted run.
        overwrite: Whether an existing run is replaced, if its folder holds nothing else.
        recipe_file: Path of the file of `recipe`, which is not overwritten.
        host: This host, of `join_hosts`. The first host writes `output`; to resume, all hosts must
            see it.

    Returns:
        The `RunFolder`; on other hosts than the first, a temporary folder.

    Raises:
        InputError: A file, a size or the folder is invalid, or another process writes to the
            folder.
        TrainingError: The loss is NaN or infinite; the last good checkpoint and the best model
            remain. Or another host has ended.
    """
    if recipe.training.attention_images:
        check_plots()
    check_tokenizer(recipe.data.bleu_tokenizer)
    recipe.check_files()
    with host.convert_peer_errors():
        folder = RunFolder(host.folder(output, resume))
        with locked_folder(folder.path):
            folder.owned().restore()
            run = Run(recipe, folder, host)
            if resume and not folder.is_half_made():
                run.resume()
            else:
                run.prepare(overwrite, recipe_file, resume)
            run.begin()
            run.fit()
            run.average()
            run.finish()
            return folder


class Run(RunState):
    """A training, from texts to metrics; `train` calls its methods in order."""

    def prepare(
        self, overwrite: bool, recipe_file: str | os.PathLike | None, half_made: bool = False
    ) -> None:
        """Reads the texts, learns the vocabularies and makes batches of a new run.

        Args:
            overwrite: Whether an existing run is replaced.
            recipe_file: Path of the recipe, which is not overwritten.
            half_made: Whether an incomplete folder is replaced.
        """
        origin, data = _origin(self.recipe), self.recipe.data
        learned_tokenizers = None if origin is None else origin.tokenizers()
        corpus = Corpus(self.recipe, learned_tokenizers)
        start_from = self.recipe.training.start_from
        inputs = {"the recipe": recipe_file, "`training.start_from`": start_from}
        inputs["`data.cache`"] = data.cache
        if data.glossary is not None:
            inputs["`data.glossary`"] = os.path.join(data.folder, data.glossary)
        for part in ("train", "validation"):
            for corpus_files in self.recipe.data.corpora(part):
                key = f"data.{part}.{corpus_files.name}".rstrip(".")
                sides = zip(("source", "target"), corpus.files_of(corpus_files), strict=True)
                inputs |= {f"`{key}.{side}`": file for side, file in sides}
        self._check_replaceable = functools.partial(
            self.folder.check_replaceable, overwrite, inputs, half_made, "--resume to continue it, "
        )
        self._check_replaceable()
        self._overwrites = overwrite or half_made
        if half_made:
            show(f"{self.folder.path}: starting the run; it was stopped before its first step.")
        self.tokenizers = corpus.tokenizers()
        self._make_datasets(corpus)

    def resume(self) -> None:
        """Reads the texts and vocabularies of an existing run, and makes its batches."""
        RunFolder.existing(self.folder.path)
        self._is_resumed = True
        check_resumable(self.folder, self.recipe)
        self.tokenizers = self.folder.tokenizers()

        def check_texts(digests):
            for part, sides in self.folder.digests().items():
                for side, digest in sides.items():
                    if digests[part].get(side) != digest:
                        files = " and ".join(map(str, corpus.files(part)))
                        raise InputError(
                            f"{self.folder.path}: cannot be resumed, because its texts have "
                            f"changed. Received: another {side} side of `data.{part}`, {files}."
                        )

        corpus = Corpus(self.recipe, self.tokenizers, check_texts)
        self._make_datasets(corpus)

    def _make_datasets(self, corpus):
        self.datasets, self.reports = corpus.datasets(self.tokenizers, self.host)
        self.digests = corpus.digests
        for part, report in self.reports.items():
            show(f"{part}: {report}")
        dataset = self.datasets["train"]
        show(
            f"{dataset.steps_per_epoch} steps per epoch, shapes {dataset.shapes}, "
            f"{dataset.real_token_share:.1%} real tokens"
        )
        advice = warmup_advice(self.recipe.training, dataset)
        if advice is not None:
            show(advice)
        named_pairs = corpus.first_validation_pairs()
        names, self.validation = map(list, zip(*named_pairs, strict=True))
        has_several = len(self.recipe.data.corpora("validation")) > 1
        self._validation_names = names if has_several else []
        if not self.recipe.with_sources:  # Samples continue a few words.
            words = (text.split()[:_PROMPT_WORDS] for _, text in self.validation)
            prompts = zip(map(" ".join, words), self.validation, strict=True)
            self.validation = [(prompt, text) for prompt, (_, text) in prompts]

    def begin(self) -> None:
        """Makes the model or reads the last checkpoint, and prepares the folder for epochs."""
        self.model, self.start = self._model_and_start()
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
        show(f"{self.model.count_params():,} parameters{part}")
        if self._is_resumed:
            self.folder.remove_partial_files()
            self.folder.write_recipe(self.recipe)
            self.folder.settle(self.start.epoch, self.recipe.training)
            self._complete(self.folder)
        else:
            with self.folder.replaced(self._overwrites, self._check_replaceable) as new_folder:
                new_folder.create(self.recipe, self.tokenizers, self.digests)
                self._complete(new_folder)
        self.history = self.folder.history()
        options = self.recipe.engine_options
        self.engine = self.host.engine(self.model, *self.tokenizers, **options)

    def _complete(self, folder):
        """Writes the files of a run's start that `folder` lacks."""
        if self.recipe.training.lora_rank is not None and not folder.base_file.exists():
            save_without_optimizer(self.model, folder.base_file)
        if not folder.sample_pairs_file.exists():
            folder.write_sample_pairs(self.validation[:SAMPLE_PAIRS])

    def _model_and_start(self):
        checkpoint = last_checkpoint(self.folder, self._new_model) if self._is_resumed else None
        return checkpoint or (self._new_model(), MidEpochState())

    def _new_model(self):
        recipe, (source, target) = self.recipe, self.tokenizers
        keras.utils.set_random_seed(recipe.training.seed)
        target_size = None if source == target else target.vocabulary_size
        config = recipe.model_config(source.vocabulary_size, target_size, source.turn_id)
        model = model_of(config, dtype=recipe.training.dtype_policy)
        compile_model(model, recipe.training)
        # LoRA's checkpoints belong to a copy of the origin's weights, as the origin may change.
        file = self.folder.base_file if self._is_resumed else None
        if file is not None and file.exists():
            model.set_weights(load_model(file, compile=False).get_weights())
        elif (origin := _origin(recipe)) is not None:
            start_model = origin.model()
            origin_fields, recipe_fields = (
                {name: value for name, value in fields.to_dict().items() if "dropout" not in name}
                for fields in (start_model.config, config)
            )
            if origin_fields != recipe_fields:
                raise InputError(f"{origin.path}: its model is not the one of the recipe.")
            model.set_weights(start_model.get_weights())
        if recipe.training.lora_rank is not None:
            enable_lora(model, recipe.training.lora_rank)
        return model

    def fit(self) -> None:
        """Trains to the last epoch or until early stopping; first completes a started epoch."""
        if self._is_resumed and not self.start.step and self._is_over():
            reason = f"{self.start.epoch} of {self.recipe.training.epochs} epochs are trained"
            if self.has_stopped():
                reason += " and `training.early_stopping_patience` is over"
            show(
                f"{self.folder.path}: nothing was left to train: {reason}. To train longer, give "
                "a larger number: --set training.epochs=N"
            )
        if self.start.step:
            self._fit(self.start.epoch + 1)
            self.start = MidEpochState(self.start.epoch + 1)
        self._fit(self.recipe.training.epochs)

    def _is_over(self):
        return self.start.epoch >= self.recipe.training.epochs or self.has_stopped()

    def _fit(self, epochs):
        if self._is_over():
            return
        # Keras draws its progress bar on stdout, which is for results.
        with contextlib.redirect_stdout(sys.stderr):
            self.model.fit(
                for_fit(self.datasets["train"], self.start.step),
                validation_data=for_fit(self.datasets["validation"]),
                epochs=epochs,
                initial_epoch=self.start.epoch,
                shuffle=False,  # `ParallelDataset` shuffles
                verbose=int(is_terminal(sys.stderr)),
                callbacks=self.callbacks(),
            )

    def callbacks(self) -> list[keras.callbacks.Callback]:
        """Returns the callbacks of the next `fit`, in the order in which an epoch needs them."""
        training = self.recipe.training
        bar = run_callbacks.ProgressBar() if is_terminal(sys.stderr) else None
        callbacks = [
            run_callbacks.EpochSeed(self),
            run_callbacks.FiniteLoss(self),
            run_callbacks.Compilation(self, bar),
            run_callbacks.AveragedValidation(),
            run_callbacks.Throughput(self),
        ]
        if training.selects_by_translations or len(self.datasets) > 2:
            callbacks.append(run_callbacks.TranslationMetrics(self))
        callbacks.append(TensorBoard(self))
        if self.start.step or training.checkpoint_every_minutes is not None:
            callbacks.append(run_callbacks.StepCheckpoints(self))
        if not is_terminal(sys.stderr):
            callbacks.append(run_callbacks.EpochLine())
        if training.sample_translations:
            callbacks.append(run_callbacks.SampleTranslations(self))
        callbacks.append(run_callbacks.CommitEpoch(self))
        if self.start.step:
            callbacks.append(run_callbacks.RestoreRawWeights())
        # The bar is last, as in Keras, because it shows what the other callbacks add to the logs.
        return callbacks if bar is None else [*callbacks, bar]

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
        """Averages the models of the last or best `average_epochs`.

        An average of the last epochs becomes the best model. An average of the best epochs becomes
        the best model if it is better. Afterwards the model has the averaged weights.
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
        # The measure of the best of many epochs is partly luck, unlike the measure of an average of
        # the last epochs. So a comparison of both could choose a worse model.
        is_best = training.average_of == "last"
        is_best = is_best or best_row([*self.history, row], training.select_by) is row
        if is_best:
            save_without_optimizer(model, self.folder.model_file)
        values = {key: row[key] for key in row if key.startswith(_NAMED_MEASURES)}
        self.metrics["average"] = {"epochs": epochs, **values, "is_the_best_model": is_best}

    def finish(self) -> None:
        """Writes `metrics.json`."""
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
            "pairs": {part: _counts(report) for part, report in self.reports.items()},
        }
        self.folder.write_metrics(report)


def _counts(report):
    counts = {"total": report.total, "kept": report.kept}
    counts["dropped"] = {reason: drop.count for reason, drop in report.dropped.items()}
    corpora = {name: _counts(corpus_report) for name, corpus_report in report.corpora.items()}
    return {**counts, "corpora": corpora} if corpora else counts


def _origin(recipe):
    """Returns the run of `training.start_from`, or None."""
    if recipe.training.start_from is None:
        return None
    origin = RunFolder.existing(recipe.training.start_from)
    for name in ("kind", "text"):
        if getattr(origin.recipe(), name) != getattr(recipe, name):
            raise InputError(f"{origin.path}: its `{name}` is not that of the recipe.")
    return origin
