"""What happens around an epoch: history, TensorBoard, samples, best model, checkpoint.

The checkpoint comes last: with it the epoch counts. All that is written before is written again
when the epoch has to be repeated.
"""

import contextlib
import json
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.data import ParallelDataset
from keras_transformer.decoding import ModelEngine
from keras_transformer.errors import TrainingError
from keras_transformer.files import write_whole
from keras_transformer.training.recipe import TrainingSection
from keras_transformer.training.run_folder import (
    RunFolder,
    averaged_epochs,
    best_row,
    save_model,
)
from keras_transformer.training.within_epoch import Place, seed_states

Row = dict[str, float]
"""A line of `history.csv`."""


class EpochSeed(keras.callbacks.Callback):
    """Makes an epoch depend on its number alone: the order of its batches and its dropout.

    A run that was stopped and resumed then gives the weights of one that was not. `seed` is the
    run's.
    """

    def __init__(self, dataset: ParallelDataset, seed: int):
        super().__init__()
        self.dataset, self.seed = dataset, seed

    def on_epoch_begin(self, epoch, logs=None):
        self.dataset.epoch = epoch
        states = seed_states(self.model)
        seeds = np.random.SeedSequence((self.seed, epoch)).generate_state(2 * len(states))
        for state, pair in zip(states, seeds.reshape(-1, 2), strict=True):
            state.assign(pair.astype(keras.backend.standardize_dtype(state.dtype)))


class Throughput(keras.callbacks.Callback):
    """Adds learning rate, gradient norm, seconds and real tokens per second to the epoch's logs.

    Rate and norm are those of the last step. `real_tokens` are those of an epoch; `place` is where
    the one epoch of this `fit` goes on.
    """

    def __init__(self, real_tokens: int, place: Place | None = None):
        super().__init__()
        self.real_tokens, self.place = real_tokens, place

    def on_epoch_begin(self, epoch, logs=None):
        self._start = time.perf_counter() - (self.place.seconds if self.place else 0.0)
        self._train_seconds = None

    def on_test_begin(self, logs=None):
        self._train_seconds = time.perf_counter() - self._start

    def on_epoch_end(self, epoch, logs=None):
        now = time.perf_counter() - self._start
        logs["learning_rate"] = float(ops.convert_to_numpy(self.model.optimizer.learning_rate))
        norm = getattr(inner_optimizer(self.model), "gradient_norm", None)
        if norm is not None:  # A run of before has none.
            logs["gradient_norm"] = float(ops.convert_to_numpy(norm))
        logs["seconds"] = now
        logs["tokens_per_second"] = self.real_tokens / (self._train_seconds or now)


class FiniteLoss(keras.callbacks.Callback):
    """Ends a training whose loss is infinite or no number, before anything of it is written.

    Args:
        folder: Whose `bad_batch.json` gets the lines of the batch, and of the one before, whose
            update may be the cause.
        place: Where the one epoch of this `fit` goes on.

    Raises:
        TrainingError: Names the epoch, and the step if it was not in validation.
    """

    # Keras then calls `on_train_batch_end` in another thread, so that no step waits for the loss
    # of the one before it.
    async_safe = True

    def __init__(self, folder: RunFolder, dataset: ParallelDataset, place: Place | None = None):
        super().__init__()
        self.folder, self.dataset, self.place = folder, dataset, place

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if not math.isfinite(logs["loss"]):
            step = batch + (self.place.step if self.place else 0)
            found = {"epoch": self._epoch + 1, "step": step + 1}
            found["lines"] = self.dataset.lines(self._epoch, step)
            before = self.dataset.lines(self._epoch, step - 1) if step else []
            found["lines_of_the_step_before"] = before
            write_whole(self.folder.bad_batch_file, json.dumps(found, indent=2) + "\n")
            file = self.folder.bad_batch_file
            self._check(logs["loss"], f"step {step + 1}, whose lines are in {file}")

    def on_epoch_end(self, epoch, logs=None):
        self._check(logs["val_loss"], "validation")

    def _check(self, loss, place):
        if not math.isfinite(loss):
            raise TrainingError(
                f"training stopped: the loss is {loss} in epoch {self._epoch + 1}, {place}. Begin "
                "anew with a lower `training.learning_rate_scale`, a higher "
                "`training.warmup_steps` or a `training.clip_norm`; the best model and the "
                "checkpoints of the epochs before stay."
            )


@keras.saving.register_keras_serializable(package="keras_transformer")
class MeasuredAdam(keras.optimizers.Adam):
    """Keras' Adam with the norm of all gradients of its last step, before they are clipped.

    Attributes:
        gradient_norm: Float32 variable. Of accumulated gradients that of their mean.
    """

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.gradient_norm = self.add_variable((), dtype="float32", name="gradient_norm")

    def _clip_gradients(self, grads):
        # Here, and not in `apply`: accumulated gradients are together here, unscaled ones too.
        squares = [ops.sum(ops.square(ops.cast(g, "float32"))) for g in grads if g is not None]
        self.gradient_norm.assign(ops.sqrt(sum(squares)))
        return super()._clip_gradients(grads)


def inner_optimizer(model):
    """A compiled model's optimizer, without the loss scaling around it."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


@contextlib.contextmanager
def averaged_weights(model):
    """Puts the averages that the optimizer keeps in the place of the model's weights for a while.

    The weights of a compiled model come back bit for bit. Without averages (`use_ema`) nothing
    changes.
    """
    optimizer = inner_optimizer(model)
    if not optimizer.use_ema:
        yield
        return
    weights = [ops.convert_to_numpy(weight) for weight in model.trainable_variables]
    try:
        optimizer.finalize_variable_values(model.trainable_variables)
        if keras.backend.backend() == "jax":
            # A step gives its arrays away, which the optimizer's averages now share.
            for variable in model.trainable_variables:
                variable.assign(np.array(ops.convert_to_numpy(variable)))
        yield
    finally:
        for variable, weight in zip(model.trainable_variables, weights, strict=True):
            variable.assign(weight)


class AveragedValidation(keras.callbacks.Callback):
    """Validates with the averages of the weights, which the best model is made of."""

    def on_test_begin(self, logs=None):
        self._averaged = averaged_weights(self.model)
        self._averaged.__enter__()

    def on_test_end(self, logs=None):
        self._averaged.__exit__(None, None, None)


class WeightsOfTheLastStep(keras.callbacks.Callback):
    """Gives the model its own weights back, where Keras ends `fit` with their averages.

    What follows may be another `fit`.
    """

    def on_epoch_end(self, epoch, logs=None):
        self._weights = [ops.convert_to_numpy(v) for v in self.model.trainable_variables]

    def on_train_end(self, logs=None):
        for variable, weight in zip(self.model.trainable_variables, self._weights, strict=True):
            variable.assign(weight)


class History(keras.callbacks.Callback):
    """Writes `history.csv` anew after each epoch.

    Attributes:
        rows: The lines so far, those of the epochs before first when training is resumed.
    """

    def __init__(self, folder: RunFolder, rows: Sequence[Row] = ()):
        super().__init__()
        self.folder, self.rows = folder, list(rows)

    def on_epoch_end(self, epoch, logs=None):
        self.rows.append({"epoch": epoch + 1, **{key: float(value) for key, value in logs.items()}})
        self.folder.write_history(self.rows)


class _Translating(keras.callbacks.Callback):
    """Translates sentences, by greedy search with an engine around the model in training."""

    def __init__(self, engine: ModelEngine, sources: list[str], references: list[str]):
        super().__init__()
        self.engine = engine
        self.sources, self.references = sources, references

    def translations(self) -> list[str]:
        """What the model's weights as they are make of the sources."""
        found = self.engine.translate(self.sources, beam_size=1, long_input="truncate")
        return [each.text for each in found]


class ValidationBleu(_Translating):
    """Adds `val_bleu` to the epoch's logs: of greedy translations, cased, by sacreBLEU."""

    def on_epoch_end(self, epoch, logs=None):
        with averaged_weights(self.model):
            logs["val_bleu"] = self.bleu()

    def bleu(self):
        """BLEU of the model's weights as they are, 0 … 100."""
        import sacrebleu

        return sacrebleu.corpus_bleu(self.translations(), [self.references]).score


class BestModel(keras.callbacks.Callback):
    """Saves the model if it is the best so far, or one to be averaged, for `RunFolder.settle`.

    `rows` are the lines of the history, this epoch's among them.
    """

    def __init__(self, folder: RunFolder, rows: list[Row], training: TrainingSection):
        super().__init__()
        self.folder, self.rows, self.training = folder, rows, training

    def on_epoch_end(self, epoch, logs=None):
        is_best = best_row(self.rows, self.training.select_by) is self.rows[-1]
        if is_best or epoch + 1 in averaged_epochs(self.rows, self.training):
            with averaged_weights(self.model):
                save_without_optimizer(self.model, self.folder.candidate_file(epoch + 1))


def save_without_optimizer(model, path):
    """Saves a copy of a model: the optimizer's state is three times as large as the weights."""
    copy = type(model).from_config(model.get_config())
    copy.set_weights(model.get_weights())
    save_model(copy, path)


class EarlyStopping(keras.callbacks.Callback):
    """Stops when no epoch has been the best for some epochs.

    What it knows is in the history, `rows` as of `BestModel`, so a resumed run stops where an
    unbroken one does.
    """

    def __init__(self, rows: list[Row], training: TrainingSection):
        super().__init__()
        self.rows, self.training = rows, training

    def has_stopped(self) -> bool:
        """Whether the epochs so far are all."""
        patience = self.training.early_stopping_patience
        if patience is None or not self.rows:
            return False
        best = best_row(self.rows, self.training.select_by)
        return self.rows[-1]["epoch"] - best["epoch"] >= patience

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = self.has_stopped()


class Checkpoints(keras.callbacks.Callback):
    """Saves the whole state after each epoch and keeps the last few."""

    def __init__(self, folder: RunFolder, training: TrainingSection):
        super().__init__()
        self.folder, self.training = folder, training

    def on_epoch_end(self, epoch, logs=None):
        save_model(self.model, self.folder.checkpoint_file(epoch + 1))
        self.folder.settle(epoch + 1, self.training)


class EpochLine(keras.callbacks.Callback):
    """Writes a line an epoch to stderr, where that is no terminal to draw a progress bar on."""

    def on_epoch_end(self, epoch, logs=None):
        print(
            f"epoch {epoch + 1}/{self.params['epochs']}: loss {logs['loss']:.4f}, "
            f"val_loss {logs['val_loss']:.4f}, accuracy {logs['token_accuracy']:.4f}, "
            f"{logs['tokens_per_second']:,.0f} tokens/s, {logs['seconds']:.1f} s",
            file=sys.stderr,
            flush=True,
        )


class SampleTranslations(_Translating):
    """Writes a few translations after each epoch, to stderr and to `samples.txt`."""

    def __init__(self, folder: RunFolder, *arguments: Any):
        super().__init__(*arguments)
        self.folder = folder

    def on_epoch_end(self, epoch, logs=None):
        with averaged_weights(self.model):
            translations = self.translations()
        lines = [f"epoch {epoch + 1}"]
        for source, reference, translation in zip(
            self.sources, self.references, translations, strict=True
        ):
            lines += [f"  source:      {source}", f"  reference:   {reference}"]
            lines += [f"  translation: {translation}"]
        text = "\n".join(lines) + "\n"
        print("\n" + text, end="", file=sys.stderr, flush=True)
        write_whole(self.folder.samples_file, self.folder.samples() + text)
