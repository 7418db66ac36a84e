"""Heat maps of attention for TensorBoard, which a training with `attention_images` shows."""

import importlib.util
import struct
from collections.abc import Sequence
from typing import Any

import keras

from keras_transformer.analysis import attention, plots
from keras_transformer.errors import missing_package
from keras_transformer.ids import BOS_ID

# Maximum number of tokens of a text in a readable heat map.
_LONGEST = 64


def check_plots() -> None:
    """Raises `InputError` if heat maps cannot be plotted."""
    if importlib.util.find_spec("matplotlib") is None:
        raise missing_package("Matplotlib, for `training.attention_images`,", "matplotlib", "plots")


def attention_summary(model: keras.Model, tokenizers: Sequence[Any], pair: Sequence[str]) -> Any:
    """Returns TensorBoard's `Summary` with heat maps of all layers and heads for one pair.

    Args:
        model: The trained `Transformer`.
        tokenizers: Tokenizers of the source and the target.
        pair: A source and its target, of which the first 64 tokens are shown.
    """
    from tensorboard.compat.proto.summary_pb2 import Summary

    longest = min(_LONGEST, model.config.position_limit or _LONGEST)
    source, target = (
        tokenizer.tokenize(text, add_eos=True)[:longest]
        for tokenizer, text in zip(tokenizers, pair, strict=True)
    )
    tokens = [
        tokenizer.pieces_of(ids)
        for tokenizer, ids in zip(tokenizers, (source, target), strict=True)
    ]
    weights = attention(model, source, [BOS_ID, *target[:-1]])
    summary = Summary()
    for kind, figure in plots.plot_pair(weights, *tokens).items():
        encoded = plots.png(figure, 80)
        width, height = struct.unpack(">II", encoded[16:24])  # the sizes in a PNG's header
        image = Summary.Image(
            encoded_image_string=encoded, width=width, height=height, colorspace=4
        )
        summary.value.add(tag=f"attention/{kind}", image=image)
    return summary
