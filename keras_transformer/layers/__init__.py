"""Layers of the Transformer, each usable by itself in any Keras model."""

# ruff: noqa: E402 (modules that import Keras follow)
from keras_transformer.base.imports import import_keras

import_keras()

from keras_transformer.layers.attention import Attention
from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock, SSRUDecoderBlock
from keras_transformer.layers.embeddings import TokenEmbedding
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.pooling import MaskedPooling
from keras_transformer.layers.positions import (
    ConcatenatedPositions,
    LearnedPositionalEmbedding,
    SinusoidalPositionalEncoding,
)
from keras_transformer.layers.ssru import SSRU, SSRUState

__all__ = [
    "Attention",
    "ConcatenatedPositions",
    "DecoderBlock",
    "EncoderBlock",
    "FeedForward",
    "LearnedPositionalEmbedding",
    "MaskedPooling",
    "MultiHeadAttention",
    "SSRU",
    "SSRUDecoderBlock",
    "SSRUState",
    "SinusoidalPositionalEncoding",
    "TokenEmbedding",
]
