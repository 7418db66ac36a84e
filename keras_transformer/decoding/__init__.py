"""Decoding: search loops on `keras.ops`, compiled by XLA."""

from keras_transformer.decoding.beam import beam_search
from keras_transformer.decoding.engine import ModelEngine
from keras_transformer.decoding.greedy import greedy_search
from keras_transformer.decoding.hypotheses import Hypotheses, length_penalty
from keras_transformer.decoding.search import search
from keras_transformer.decoding.translation import Translation

__all__ = [
    "Hypotheses",
    "ModelEngine",
    "Translation",
    "beam_search",
    "greedy_search",
    "length_penalty",
    "search",
]
