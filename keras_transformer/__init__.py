"""Transformers in Keras: from parallel text to a fast, verified translator.

The package's names are imported with their first use, so that the command line and the engines of
exports do without Keras. Keras knows the classes by name from the time when both are imported, in
any order, and imports a class when it loads a file with it.
"""

import importlib
from typing import TYPE_CHECKING

from keras_transformer.base.imports import import_keras, register_with_keras

if TYPE_CHECKING:
    from keras_transformer import decoding as decoding
    from keras_transformer import layers as layers
    from keras_transformer import losses as losses
    from keras_transformer import metrics as metrics
    from keras_transformer import models as models
    from keras_transformer import schedules as schedules
    from keras_transformer.engine.translation import Translation as Translation
    from keras_transformer.engine.translator import Translator as Translator
    from keras_transformer.losses import SmoothedCrossEntropy as SmoothedCrossEntropy
    from keras_transformer.metrics import Perplexity as Perplexity
    from keras_transformer.metrics import TokenAccuracy as TokenAccuracy
    from keras_transformer.metrics import TokenLoss as TokenLoss
    from keras_transformer.models import Transformer as Transformer
    from keras_transformer.models.config import TransformerConfig as TransformerConfig
    from keras_transformer.schedules import TransformerSchedule as TransformerSchedule
    from keras_transformer.text import Tokenizer as Tokenizer

__version__ = "1.0.0"

# Classes that `keras.saving.load_model` looks up, by their modules.
_REGISTERED = {
    "layers.blocks": ("DecoderBlock", "EncoderBlock", "SSRUDecoderBlock"),
    "layers.embeddings": ("TokenEmbedding",),
    "layers.feed_forward": ("FeedForward",),
    "layers.half_precision": ("HalfPrecisionWeights",),
    "layers.multi_head_attention": ("MultiHeadAttention",),
    "layers.pooling": ("MaskedPooling",),
    "layers.positions": (
        "ConcatenatedPositions",
        "LearnedPositionalEmbedding",
        "SinusoidalPositionalEncoding",
    ),
    "layers.attention": ("Attention",),
    "layers.ssru": ("SSRU",),
    "losses": ("SmoothedCrossEntropy",),
    "metrics": ("Perplexity", "TokenAccuracy", "TokenLoss"),
    "models.recurrent": ("RecurrentTranslator",),
    "models.stacks": ("Decoder", "Encoder", "TurnEncoder"),
    "models.transformer": ("Classifier", "LanguageModel", "Transformer"),
    "schedules": ("TransformerSchedule",),
}
_WITHOUT_KERAS = {"Tokenizer", "TransformerConfig", "Translation", "Translator"}
_MODULES = {
    "Perplexity": "metrics",
    "SmoothedCrossEntropy": "losses",
    "TokenAccuracy": "metrics",
    "TokenLoss": "metrics",
    "Tokenizer": "text",
    "Transformer": "models",
    "TransformerConfig": "models.config",
    "TransformerSchedule": "schedules",
    "Translation": "engine.translation",
    "Translator": "engine.translator",
}
_PACKAGES = ("decoding", "layers", "losses", "metrics", "models", "schedules")
__all__ = [*_MODULES, *_PACKAGES]


def __getattr__(name):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _WITHOUT_KERAS:
        import_keras()
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


register_with_keras(__name__, _REGISTERED)
