"""What happens around an epoch: checkpoints, history, TensorBoard, samples."""

import csv
import io
import sys
import time

import keras
import numpy as np

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


class Checkpoints(keras.callbacks.Callback):
    """Saves the whole state after each epoch and keeps the last few.

    It must come before `keras.callbacks.SwapEMAWeights`, so that it saves the weights that
    training goes on with and their average, not one in the place of the other.

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
        for old in self.folder.checkpoint_epochs()[: -self.keep]:
            self.folder.checkpoint_file(old).unlink()


class BestModel(keras.callbacks.Callback):
    """Saves `model.keras` whenever the validation loss is the lowest so far.

    Args:
        folder: `RunFolder`.
        best: The lowest loss of the epochs before, when training is resumed.
    """

    def __init__(self, folder, best=float("inf")):
        super().__init__()
        self.folder = folder
        self.best = best

    def on_epoch_end(self, epoch, logs=None):
        if logs["val_loss"] < self.best:
            self.best = logs["val_loss"]
            # A copy without the optimizer, whose state is three times as large as the weights.
            copy = type(self.model).from_config(self.model.get_config())
            copy.set_weights(self.model.get_weights())
            save_model(copy, self.folder.model_file)


class History(keras.callbacks.Callback):
    """Writes `history.csv` anew after each epoch.

    Args:
        folder: `RunFolder`.
        rows: The lines of the epochs before, when training is resumed.
    """

    def __init__(self, folder, rows=()):
        super().__init__()
        self.folder = folder
        self.rows = list(rows)

    def on_epoch_end(self, epoch, logs=None):
        self.rows.append({"epoch": epoch + 1, **{key: float(value) for key, value in logs.items()}})
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(self.rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_whole(self.folder.history_file, text.getvalue())


class TensorBoard(keras.callbacks.Callback):
    """Writes every number of an epoch's logs, one event file a run.

    Keras' own callback would trace the graph and write weights; this writes what a person looks
    at: `train/` and `validation/` curves of loss, accuracy and perplexity, learning rate, tokens
    per second, and sample translations as text.

    Args:
        folder: `RunFolder`.
    """

    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        self._writers = {}

    def _writer(self, name):
        from tensorboard.summary import Writer

        if name not in self._writers:
            self._writers[name] = Writer(str(self.folder.tensorboard / name))
        return self._writers[name]

    def on_epoch_end(self, epoch, logs=None):
        for key, value in logs.items():
            name = "validation" if key.startswith("val_") else "train"
            self._writer(name).add_scalar(key.removeprefix("val_"), float(value), epoch + 1)
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
        self.file = folder.path / "samples.txt"
        self.engine = engine
        self.sources = list(sources)
        self.references = list(references)

    def on_epoch_end(self, epoch, logs=None):
        translations = self.engine.translate(self.sources, beam_size=1, long_input="truncate")
        lines = [f"epoch {epoch + 1}"]
        for source, reference, translation in zip(
            self.sources, self.references, translations, strict=True
        ):
            lines += [f"  source:      {source}", f"  reference:   {reference}"]
            lines += [f"  translation: {translation.text}"]
        text = "\n".join(lines) + "\n"
        print("\n" + text, end="", file=sys.stderr, flush=True)
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(text)
