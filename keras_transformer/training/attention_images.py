"""What attention looks at in one fixed pair, as images in TensorBoard during training."""

import importlib.util
import struct
import time

import keras

from keras_transformer.analysis import attention, plots
from keras_transformer.config import BOS_ID
from keras_transformer.decoding import ModelEngine
from keras_transformer.errors import InputError
from keras_transformer.training.callbacks import averaged_weights
from keras_transformer.training.run_folder import RunFolder

# Tokens of a text: of more, nobody can read the picture.
_LONGEST = 64


def check_plots() -> None:
    """Raises `InputError` where pictures cannot be made."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(
            '`training.attention_images` needs: pip install "keras_transformer[plots]".'
        )


class AttentionImages(keras.callbacks.Callback):
    """Writes heat maps of every layer and head to `tensorboard/attention`, every few epochs.

    Args:
        engine: Around the model in training.
        source: A sentence; its first 64 tokens are shown.
        target: Its translation.
        every: Epochs from one picture to the next.
    """

    def __init__(
        self, folder: RunFolder, engine: ModelEngine, source: str, target: str, every: int
    ):
        super().__init__()
        self.folder, self.every = folder, every
        sides = (engine.source_tokenizer, source), (engine.target_tokenizer, target)
        ids = [tokenizer.tokenize(text, add_eos=True)[:_LONGEST] for tokenizer, text in sides]
        self.ids = ids[0], [BOS_ID, *ids[1][:-1]]
        self.tokens = [each.pieces_of(own) for (each, _), own in zip(sides, ids, strict=True)]

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.every:
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        with averaged_weights(self.model):
            found = attention(self.model, *self.ids)
        summary = Summary()
        for kind, figure in plots.plot_pair(found, *self.tokens).items():
            encoded = plots.png(figure, 80)
            width, height = struct.unpack(">II", encoded[16:24])  # A PNG says so there.
            image = Summary.Image(
                encoded_image_string=encoded, width=width, height=height, colorspace=4
            )
            summary.value.add(tag=f"attention/{kind}", image=image)
        writer = EventFileWriter(str(self.folder.tensorboard / "attention"))
        writer.add_event(Event(wall_time=time.time(), step=epoch + 1, summary=summary))
        writer.close()
