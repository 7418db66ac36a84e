"""Curves of a run for TensorBoard."""

import time

from keras_transformer.base.errors import writing
from keras_transformer.training.callbacks import TrainingCallback


class TensorBoard(TrainingCallback):
    """Writes each epoch's row of the history, as curves of `train/` and `validation/`.

    Keras' own callback needs TensorFlow, which a training on JAX does not load. A resumed run
    writes the curves of its history again, so that they contain each epoch once.
    """

    def on_train_begin(self, logs=None):
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = self.training.folder.tensorboard
        for file in folder.glob("*/events.out.tfevents.*"):
            file.unlink()
        with writing(folder / "train"):
            self._writers = {
                part: EventFileWriter(str(folder / part)) for part in ("train", "validation")
            }
        for row in self.training.history:
            self._add(row)

    def on_epoch_end(self, epoch, logs=None):
        self._add(self.training.history[-1])

    def on_train_end(self, logs=None):
        for part, writer in self._writers.items():
            with writing(self.training.folder.tensorboard / part):
                writer.close()

    def _add(self, row):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        for part, writer in self._writers.items():
            with writing(self.training.folder.tensorboard / part):
                for key, value in row.items():
                    if key.startswith("val_") == (part == "validation") and key != "epoch":
                        summary = scalar_pb(key.removeprefix("val_"), value)
                        event = Event(
                            wall_time=time.time(), step=int(row["epoch"]), summary=summary
                        )
                        writer.add_event(event)
                writer.flush()
