"""Transformers in Keras: from parallel text to a fast, verified translator."""

from keras_transformer import layers
from keras_transformer.config import TransformerConfig
from keras_transformer.decoding import Translation
from keras_transformer.losses import SmoothedCrossEntropy
from keras_transformer.metrics import Perplexity, TokenAccuracy, TokenLoss
from keras_transformer.models import Transformer
from keras_transformer.schedules import TransformerSchedule
from keras_transformer.text import Tokenizer
from keras_transformer.translator import Translator

__version__ = "0.1.0"

__all__ = [
    "Perplexity",
    "SmoothedCrossEntropy",
    "TokenAccuracy",
    "TokenLoss",
    "Tokenizer",
    "Transformer",
    "TransformerConfig",
    "TransformerSchedule",
    "Translation",
    "Translator",
    "layers",
]
