"""TensorBoard of a run: curves, the recipe, and heat maps of attention."""

import time
from typing import Any

import numpy as np

from keras_transformer.errors import writing
from keras_transformer.formats import ATTENTION_IMAGES, load
from keras_transformer.training.callbacks import RunCallback
from keras_transformer.training.optimizer import averaged_weights
from keras_transformer.training.run import Run


class TensorBoard(RunCallback):
    """Writes the numbers of an epoch's logs, the recipe, and heat maps, for TensorBoard.

    Keras' own callback would trace the graph and write weights. This callback writes `train/` and
    `validation/` curves: loss, accuracy, perplexity, BLEU, learning rate, gradient norm, tokens per
    second, share of padding. With `training.attention_images` it plots heat maps of all layers and
    heads for the first validation pair, every few epochs. A resumed run rewrites the curves
    from its history, so that they contain each epoch once.
    """

    def __init__(self, run: Run):
        super().__init__(run)
        self._folder = run.folder.tensorboard
        self._writers: dict[str, Any] = {}

    def on_train_begin(self, logs=None):
        from tensorboard.plugins.text.summary_v2 import text_pb

        folder, rows = self.run.folder, self.run.history
        for part in ("train", "validation"):
            for file in self._folder.glob(f"{part}/events.out.tfevents.*"):
                file.unlink()
        text = folder.recipe_file.read_text(encoding="utf-8")
        indented = "".join(f"    {line}\n" for line in text.splitlines())  # code, in Markdown
        self._add("train", text_pb("recipe", indented), 0)
        # Times as if this run had followed the earlier epochs without a pause.
        ends = time.time() - np.cumsum([0.0, *(row["seconds"] for row in rows[:0:-1])])[::-1]
        for row, end in zip(rows, ends, strict=False):
            values = {key: value for key, value in row.items() if key != "epoch"}
            self._add_curves(int(row["epoch"]), values, end)

    def on_epoch_end(self, epoch, logs=None):
        interval = self.run.recipe.training.attention_images
        if interval and (epoch + 1) % interval == 0:
            with averaged_weights(self.model):
                summary = load(ATTENTION_IMAGES)(
                    self.model, self.run.tokenizers, self.run.validation[0]
                )
            self._add("attention", summary, epoch + 1)
        self._add_curves(epoch + 1, logs)

    def on_train_end(self, logs=None):
        for name, writer in self._writers.items():
            with writing(self._folder / name):
                writer.close()
        self._writers = {}

    def _add(self, name, summary, epoch, wall_time=None):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        wall_time = time.time() if wall_time is None else wall_time
        event, folder = Event(wall_time=wall_time, step=epoch, summary=summary), self._folder / name
        with writing(folder):
            if name not in self._writers:
                self._writers[name] = EventFileWriter(str(folder))
            self._writers[name].add_event(event)

    def _add_curves(self, epoch, values, wall_time=None):
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        padding_share = 1 - self.run.datasets["train"].real_token_share
        for key, value in {**values, "padding_share": padding_share}.items():
            name = "validation" if key.startswith("val_") else "train"
            summary = scalar_pb(key.removeprefix("val_"), float(value))
            self._add(name, summary, epoch, wall_time)
        for name, writer in self._writers.items():
            with writing(self._folder / name):
                writer.flush()
