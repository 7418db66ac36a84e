"""What happens around an epoch: history, TensorBoard, samples, best model, checkpoint.

The checkpoint comes last: with it the epoch counts. All that is written before is written again
when the epoch has to be repeated.
"""

import contextlib
import math
import sys
import time

import keras
import numpy as np

from keras_transformer.errors import TrainingError
from keras_transformer.files import write_whole
from keras_transformer.training.run_folder import save_model


class EpochSeed(keras.callbacks.Callback):
    """Makes an epoch depend on its number alone: the order of its batches and its dropout.

    A run that was stopped and resumed then gives the weights of one that was not.

    Args:
        dataset: `ParallelDataset`.
        seed: The run's seed.
    """

    def __init__(self, dataset, seed):
        super().__init__()
        self.dataset = dataset
        self.seed = seed

    def on_epoch_begin(self, epoch, logs=None):
        self.dataset.epoch = epoch
        states = [v for v in self.model.variables if v.path.endswith("seed_generator_state")]
        seeds = np.random.SeedSequence((self.seed, epoch)).generate_state(2 * len(states))
        for state, pair in zip(states, seeds.reshape(-1, 2), strict=True):
            state.assign(pair.astype(keras.backend.standardize_dtype(state.dtype)))


class Throughput(keras.callbacks.Callback):
    """Adds learning rate, seconds and real tokens per second to the epoch's logs.

    Args:
        real_tokens: Source and target tokens of an epoch that are not padding.
    """

    def __init__(self, real_tokens):
        super().__init__()
        self.real_tokens = real_tokens

    def on_epoch_begin(self, epoch, logs=None):
        self._start = time.perf_counter()
        self._train_seconds = None

    def on_test_begin(self, logs=None):
        self._train_seconds = time.perf_counter() - self._start

    def on_epoch_end(self, epoch, logs=None):
        now = time.perf_counter() - self._start
        logs["learning_rate"] = float(
            keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)
        )
        logs["seconds"] = now
        logs["tokens_per_second"] = self.real_tokens / (self._train_seconds or now)


class FiniteLoss(keras.callbacks.Callback):
    """Ends a training whose loss is infinite or no number, before anything of it is written.

    Raises:
        TrainingError: Names the epoch, and the step if it was not in validation.
    """

    # Keras then calls `on_train_batch_end` in another thread, so that no step waits for the loss
    # of the one before it.
    async_safe = True

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self._check(logs["loss"], f"step {batch + 1}")

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


@contextlib.contextmanager
def averaged_weights(model):
    """Puts the averages that the optimizer keeps in the place of the model's weights for a while.

    The weights come back bit for bit. Without averages (`use_ema`) nothing changes.

    Args:
        model: Compiled `keras.Model`.
    """
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)  # of loss scaling
    if not optimizer.use_ema:
        yield
        return
    weights = [keras.ops.convert_to_numpy(weight) for weight in model.trainable_variables]
    try:
        optimizer.finalize_variable_values(model.trainable_variables)
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


class History(keras.callbacks.Callback):
    """Writes `history.csv` anew after each epoch.

    Args:
        folder: `RunFolder`.
        rows: The lines of the epochs before, when training is resumed.

    Attributes:
        rows: The lines so far, as dicts of numbers.
    """

    def __init__(self, folder, rows=()):
        super().__init__()
        self.folder = folder
        self.rows = list(rows)

    def on_epoch_end(self, epoch, logs=None):
        self.rows.append({"epoch": epoch + 1, **{key: float(value) for key, value in logs.items()}})
        self.folder.write_history(self.rows)


def best_row(rows):
    """The first line with the lowest validation loss."""
    return min(rows, key=lambda row: row["val_loss"])


class BestModel(keras.callbacks.Callback):
    """Saves the model if its validation loss is the lowest so far, for `RunFolder.settle`.

    Args:
        folder: `RunFolder`.
        rows: The lines of the history, this epoch's among them.
    """

    def __init__(self, folder, rows):
        super().__init__()
        self.folder = folder
        self.rows = rows

    def on_epoch_end(self, epoch, logs=None):
        if best_row(self.rows) is self.rows[-1]:
            # A copy without the optimizer, whose state is three times as large as the weights.
            copy = type(self.model).from_config(self.model.get_config())
            with averaged_weights(self.model):
                copy.set_weights(self.model.get_weights())
            save_model(copy, self.folder.candidate_file(epoch + 1))


class EarlyStopping(keras.callbacks.Callback):
    """Stops when the validation loss has not been lower for some epochs.

    What it knows is in the history, so a resumed run stops where an unbroken one does.

    Args:
        rows: The lines of the history, this epoch's among them.
        patience: How many epochs, or None for no end.
    """

    def __init__(self, rows, patience):
        super().__init__()
        self.rows = rows
        self.patience = patience

    def has_stopped(self):
        """Whether the epochs so far are all."""
        if self.patience is None or not self.rows:
            return False
        return self.rows[-1]["epoch"] - best_row(self.rows)["epoch"] >= self.patience

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = self.has_stopped()


class Checkpoints(keras.callbacks.Callback):
    """Saves the whole state after each epoch and keeps the last few.

    Args:
        folder: `RunFolder`.
        keep: How many checkpoints stay.
    """

    def __init__(self, folder, keep):
        super().__init__()
        self.folder = folder
        self.keep = keep

    def on_epoch_end(self, epoch, logs=None):
        save_model(self.model, self.folder.checkpoint_file(epoch + 1))
        self.folder.settle(epoch + 1, self.keep)


class TensorBoard(keras.callbacks.Callback):
    """Writes every number of an epoch's logs, one event file a run.

    Keras' own callback would trace the graph and write weights; this writes what a person looks
    at: `train/` and `validation/` curves of loss, accuracy and perplexity, learning rate, tokens
    per second. A resumed run writes them anew from the history: an epoch is in them once.

    Args:
        folder: `RunFolder`.
        rows: The lines of the epochs before, when training is resumed.
    """

    def __init__(self, folder, rows=()):
        super().__init__()
        self.folder = folder
        self.rows = list(rows)
        self._writers = {}

    def _writer(self, name):
        from tensorboard.summary import Writer

        if name not in self._writers:
            self._writers[name] = Writer(str(self.folder.tensorboard / name))
        return self._writers[name]

    def on_train_begin(self, logs=None):
        for file in self.folder.tensorboard.glob("*/events.out.tfevents.*"):
            file.unlink()
        # As if this run had followed the others at once.
        ends = time.time() - np.cumsum([0.0, *(row["seconds"] for row in self.rows[:0:-1])])[::-1]
        for row, end in zip(self.rows, ends, strict=False):
            values = {key: value for key, value in row.items() if key != "epoch"}
            self._write(int(row["epoch"]), values, end)

    def on_epoch_end(self, epoch, logs=None):
        self._write(epoch + 1, logs)

    def _write(self, epoch, values, wall_time=None):
        for key, value in values.items():
            name = "validation" if key.startswith("val_") else "train"
            key = key.removeprefix("val_")
            self._writer(name).add_scalar(key, float(value), epoch, wall_time=wall_time)
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, logs=None):
        for writer in self._writers.values():
            writer.close()
        self._writers = {}


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


class SampleTranslations(keras.callbacks.Callback):
    """Translates a few validation sentences after each epoch, by greedy search.

    They go to stderr and to `samples.txt` in the run folder.

    Args:
        folder: `RunFolder`.
        engine: `ModelEngine` around the model in training.
        sources: Sentences.
        references: Their translations.
    """

    def __init__(self, folder, engine, sources, references):
        super().__init__()
        self.folder = folder
        self.engine = engine
        self.sources = list(sources)
        self.references = list(references)

    def on_epoch_end(self, epoch, logs=None):
        with averaged_weights(self.model):
            translations = self.engine.translate(self.sources, beam_size=1, long_input="truncate")
        lines = [f"epoch {epoch + 1}"]
        for source, reference, translation in zip(
            self.sources, self.references, translations, strict=True
        ):
            lines += [f"  source:      {source}", f"  reference:   {reference}"]
            lines += [f"  translation: {translation.text}"]
        text = "\n".join(lines) + "\n"
        print("\n" + text, end="", file=sys.stderr, flush=True)
        write_whole(self.folder.samples_file, self.folder.samples() + text)
