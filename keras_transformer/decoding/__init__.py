"""Decoding: one compiled loop on `keras.ops`, its strategies and constraints."""

from keras_transformer.decoding.beam import Beam
from keras_transformer.decoding.constrained_beam import ConstrainedBeam
from keras_transformer.decoding.constraints import Constraints
from keras_transformer.decoding.engine import ClassifierEngine, ModelEngine, engine_of
from keras_transformer.decoding.loop import decode
from keras_transformer.decoding.results import Hypotheses, length_penalty
from keras_transformer.decoding.sampling import Greedy, Sampling
from keras_transformer.decoding.search import SearchModel, search
from keras_transformer.options import DecodingOptions
from keras_transformer.translation import Translation

__all__ = [
    "Beam",
    "ClassifierEngine",
    "ConstrainedBeam",
    "Constraints",
    "DecodingOptions",
    "Greedy",
    "Hypotheses",
    "ModelEngine",
    "Sampling",
    "SearchModel",
    "Translation",
    "decode",
    "engine_of",
    "length_penalty",
    "search",
]
