"""Callbacks of a training: throughput, BLEU, samples, and checkpoints to resume from."""

import math
import time

import keras
import numpy as np
from keras import ops

from keras_transformer.base.errors import TrainingError, print_lines
from keras_transformer.runs.history import averaged_epochs, best_row
from keras_transformer.training.checkpoints import (
    roll_back,
    save_checkpoint,
    save_without_optimizer,
)
from keras_transformer.training.optimizer import averaged_weights, inner_optimizer
from keras_transformer.training.training import Training, for_fit


class TrainingCallback(keras.callbacks.Callback):
    """Base class of callbacks that read and write the state of a training."""

    def __init__(self, training: Training):
        super().__init__()
        self.training = training


class EpochSeed(TrainingCallback):
    """Makes an epoch depend only on its number: the order of its batches and its dropout.

    A run that was stopped and resumed then gives the weights of an uninterrupted run.
    """

    def on_epoch_begin(self, epoch, logs=None):
        self.training.datasets["train"].epoch = epoch
        states = seed_states(self.model)
        sequence = np.random.SeedSequence((self.training.recipe.training.seed, epoch))
        seeds = sequence.generate_state(2 * len(states)).reshape(-1, 2)
        for state, pair in zip(states, seeds, strict=True):
            state.assign(pair.astype(keras.backend.standardize_dtype(state.dtype)))


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """Returns the states of a model's random generators."""
    return [
        variable for variable in model.variables if variable.path.endswith("seed_generator_state")
    ]


class FiniteLoss(TrainingCallback):
    """Stops the training when the loss is NaN or infinite, before the epoch is saved.

    `bad_batch.json` gets the lines of the batch, and of the previous batch, whose update may be the
    cause.

    Raises:
        TrainingError: Names the epoch, and the step if it was not in validation.
    """

    # Keras then calls `on_train_batch_end` in another thread, so that no step waits for the loss of
    # the previous step.
    async_safe = True

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if not math.isfinite(logs["loss"]):
            dataset = self.training.datasets["train"]
            report = {"epoch": self._epoch + 1, "step": batch + 1}
            report["lines"] = dataset.lines(self._epoch, batch)
            lines_before = dataset.lines(self._epoch, batch - 1) if batch else []
            report["lines_of_the_step_before"] = lines_before
            self.training.folder.write_bad_batch(report)
            where = f"step {batch + 1}, whose lines are in {self.training.folder.bad_batch_file}"
            self._check(logs["loss"], where)

    def on_epoch_end(self, epoch, logs=None):
        self._check(logs["val_loss"], "validation")

    def _check(self, loss, index):
        if not math.isfinite(loss):
            raise TrainingError(
                f"training stopped: the loss is {loss} in epoch {self._epoch + 1}, {index}. Start "
                "again with a lower `training.learning_rate`, a higher "
                "`training.warmup_steps` or a `training.clip_norm`. The best model and the "
                "checkpoints of earlier epochs remain."
            )


class Compilation(TrainingCallback):
    """Writes a line before each step that XLA compiles: the first step of each bucket shape.

    Args:
        has_bar: Whether Keras draws its progress bar, below which the lines are written.
    """

    async_safe = True  # as `FiniteLoss`

    def __init__(self, training: Training, has_bar: bool):
        super().__init__(training)
        self._has_bar = has_bar

    def on_epoch_begin(self, epoch, logs=None):
        self._steps = self._new_shapes("train", epoch)

    def on_test_begin(self, logs=None):
        self._steps = self._new_shapes("validation", 0)

    def on_train_batch_begin(self, batch, logs=None):
        self._announce(batch, "train", "bucket")

    def on_test_batch_begin(self, batch, logs=None):
        self._announce(batch, "validation", "validation bucket")

    def _new_shapes(self, part, epoch):
        """Returns the shapes of an epoch's batches, or None if all are compiled."""
        dataset = self.training.datasets[part]
        compiled_shapes = self.training.compiled_shapes[part]
        if not self.model.jit_compile or compiled_shapes.issuperset(dataset.shapes):
            return None
        return dataset.step_shapes(epoch)

    def _announce(self, batch, part, noun):
        compiled_shapes = self.training.compiled_shapes[part]
        if self._steps is None or (shape := self._steps[batch]) in compiled_shapes:
            return
        compiled_shapes.add(shape)
        is_below_a_bar = self._has_bar and (batch > 0 or part == "validation")
        index = f"{len(compiled_shapes)} of {len(self.training.datasets[part].shapes)}"
        rows, length = shape
        line = f"compiling {noun} {index}: {rows} sentences of up to {length} tokens"
        print_lines(f"\n{line}" if is_below_a_bar else line)


class AveragedValidation(keras.callbacks.Callback):
    """Validates with the averages of the weights, which become the best model."""

    def on_test_begin(self, logs=None):
        self._averaged = averaged_weights(self.model)
        self._averaged.__enter__()

    def on_test_end(self, logs=None):
        self._averaged.__exit__(None, None, None)


class Throughput(TrainingCallback):
    """Adds learning rate, gradient norm, seconds and tokens per second to the epoch's logs.

    Learning rate and norm are the last step's. The throughput does not include validation.
    """

    def on_epoch_begin(self, epoch, logs=None):
        self._start = time.perf_counter()
        self._train_seconds = None

    def on_test_begin(self, logs=None):
        self._train_seconds = time.perf_counter() - self._start

    def on_epoch_end(self, epoch, logs=None):
        seconds = time.perf_counter() - self._start
        optimizer = inner_optimizer(self.model)
        logs["learning_rate"] = float(ops.convert_to_numpy(self.model.optimizer.learning_rate))
        logs["gradient_norm"] = float(ops.convert_to_numpy(optimizer.gradient_norm))
        logs["seconds"] = seconds
        real_tokens = self.training.datasets["train"].real_tokens
        logs["tokens_per_second"] = real_tokens / (self._train_seconds or seconds)


class TranslationMetrics(TrainingCallback):
    """Adds BLEU and chrF, and the measures of each of several corpora, to the epoch's logs.

    They measure the averaged weights: `val_bleu`, `val_chrf` and `val_loss/NAME`.
    """

    def on_epoch_end(self, epoch, logs=None):
        with averaged_weights(self.model):
            logs |= self.training.validate_corpora()
            if self.training.recipe.training.selects_by_translations:
                logs |= self.training.bleu_and_chrf()


class SampleTranslations(TrainingCallback):
    """Writes a few translations after each epoch, to stderr and to `samples.txt`."""

    def on_epoch_end(self, epoch, logs=None):
        samples = self.training.validation[: self.training.recipe.training.sample_translations]
        with averaged_weights(self.model):
            translations = self.training.sample_translations()
        lines = [f"epoch {epoch + 1}"]
        for (source, reference), translation in zip(samples, translations, strict=True):
            lines += [f"  source:      {source}", f"  reference:   {reference}"]
            lines += [f"  translation: {translation}"]
        text = "\n".join(lines)
        print_lines("\n" + text)
        self.training.folder.add_samples(text)


class EpochLine(TrainingCallback):
    """Writes one line per epoch to stderr, for logs without a progress bar."""

    def on_epoch_end(self, epoch, logs=None):
        fields = self.model.config.to_dict()
        has_dropout = any(rate for name, rate in fields.items() if "dropout" in name)
        print_lines(
            f"epoch {epoch + 1}/{self.params['epochs']}: loss {logs['loss']:.4f}, "
            f"val_loss {logs['val_loss']:.4f}, accuracy {logs['token_accuracy']:.4f} in training"
            f"{' with dropout' if has_dropout else ''}, {logs['val_token_accuracy']:.4f} in "
            f"validation, {logs['tokens_per_second']:,.0f} tokens/s, {logs['seconds']:.1f} s"
        )


class StartLine(TrainingCallback):
    """Writes the validation loss and accuracy of the model that a training starts from.

    Args:
        compilation: Callback that announces what XLA compiles.
    """

    def __init__(self, training: Training, compilation: TrainingCallback):
        super().__init__(training)
        self._compilation = compilation

    def on_train_begin(self, logs=None):
        dataset = for_fit(self.training.datasets["validation"])
        callbacks = [self._compilation]
        logs = self.model.evaluate(dataset, verbose=0, return_dict=True, callbacks=callbacks)
        loss, accuracy = logs["loss"], logs["token_accuracy"]
        print_lines(f"before training: val_loss {loss:.4f}, accuracy {accuracy:.4f} in validation")


class CommitEpoch(TrainingCallback):
    """Saves an epoch: its line of the history, its model if it is the best, and its checkpoint.

    The checkpoint is written last. Without it the epoch is repeated, and the other files are
    written again. Stops the training if `Training.has_stopped`.
    """

    def on_epoch_end(self, epoch, logs=None):
        training, number = self.training, epoch + 1
        options = training.recipe.training
        rows = training.history
        rows.append({"epoch": number, **{key: float(value) for key, value in logs.items()}})
        training.folder.write_history(rows)
        is_best = best_row(rows, options.select_by) is rows[-1]
        if is_best or number in averaged_epochs(rows, options):
            with averaged_weights(self.model):
                save_without_optimizer(self.model, training.folder.candidate_file(number))
        self.model.stop_training = training.has_stopped()
        save_checkpoint(self.model, training.folder.checkpoint_file(number))
        roll_back(training.folder, number, options)
