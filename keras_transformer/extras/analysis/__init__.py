"""See inside a trained model, and check a decoder: arrays first, pictures second."""

from keras_transformer.extras.analysis.attention import Attention, attention
from keras_transformer.extras.analysis.decoder_check import (
    DecoderCheck,
    DecoderReport,
    check_decoder,
)
from keras_transformer.extras.analysis.pruning import heads_off, prune_heads

__all__ = [
    "Attention",
    "DecoderCheck",
    "DecoderReport",
    "attention",
    "check_decoder",
    "heads_off",
    "prune_heads",
]
