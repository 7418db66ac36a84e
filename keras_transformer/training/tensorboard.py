"""What TensorBoard shows of a run."""

import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.training.recipe import Recipe
from keras_transformer.training.run_folder import RunFolder


class TensorBoard(keras.callbacks.Callback):
    """Writes every number of an epoch's logs, one event file a run.

    Keras' own callback would trace the graph and write weights; this writes what a person looks
    at: `train/` and `validation/` curves of loss, accuracy, perplexity and BLEU, learning rate,
    gradient norm, tokens per second, share of padding; the recipe; histograms of the weights, where
    `training.weight_histograms` asks for them. A resumed run writes the curves anew from the
    history, `rows`: an epoch is in them once.
    """

    def __init__(
        self,
        folder: RunFolder,
        recipe: Recipe,
        padding_share: float,
        rows: Sequence[dict[str, float]] = (),
    ):
        super().__init__()
        self.folder, self.recipe, self.padding_share = folder, recipe, padding_share
        self.rows = list(rows)
        self._writers: dict[str, Any] = {}

    def _add(self, name, summary, epoch, wall_time=None):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if name not in self._writers:
            self._writers[name] = EventFileWriter(str(self.folder.tensorboard / name))
        wall_time = time.time() if wall_time is None else wall_time
        event = Event(wall_time=wall_time, step=epoch, summary=summary)
        self._writers[name].add_event(event)

    def on_train_begin(self, logs=None):
        for part in ("train", "validation"):
            for file in self.folder.tensorboard.glob(f"{part}/events.out.tfevents.*"):
                file.unlink()
        from tensorboard.plugins.text.summary_v2 import text_pb

        text = self.folder.recipe_file.read_text(encoding="utf-8")
        indented = "".join(f"    {line}\n" for line in text.splitlines())  # code, in Markdown
        self._add("train", text_pb("recipe", indented), 0)
        # As if this run had followed the others at once.
        ends = time.time() - np.cumsum([0.0, *(row["seconds"] for row in self.rows[:0:-1])])[::-1]
        for row, end in zip(self.rows, ends, strict=False):
            values = {key: value for key, value in row.items() if key != "epoch"}
            self._write(int(row["epoch"]), values, end)

    def on_epoch_end(self, epoch, logs=None):
        if self.recipe.training.weight_histograms:
            from tensorboard.plugins.histogram.summary_v2 import histogram_pb

            for weight in self.model.trainable_variables:
                values = keras.ops.convert_to_numpy(weight)
                self._add("train", histogram_pb(f"weights/{weight.path}", values), epoch + 1)
        self._write(epoch + 1, logs)

    def _write(self, epoch, values, wall_time=None):
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        for key, value in {**values, "padding_share": self.padding_share}.items():
            name = "validation" if key.startswith("val_") else "train"
            summary = scalar_pb(key.removeprefix("val_"), float(value))
            self._add(name, summary, epoch, wall_time)
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, logs=None):
        for writer in self._writers.values():
            writer.close()
        self._writers = {}
