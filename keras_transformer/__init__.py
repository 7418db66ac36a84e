"""Transformers in Keras: from parallel text to a fast, verified translator."""

import os
import sys

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


def _is_command():
    """Whether this process is `keras-transformer` or `python -m keras_transformer`."""
    program = os.path.basename(sys.argv[0]) if sys.argv else ""
    as_module = program == "-m" and sys.orig_argv[-len(sys.argv)] == __name__
    # Workers of Ray import what they need as the command does.
    return as_module or program in ("keras-transformer", "default_worker.py")


# The import registers all classes with Keras, so that `keras.models.load_model` finds them. The
# command imports what it needs by itself, and answers `--help` without Keras.
if not _is_command():
    from keras_transformer import layers
    from keras_transformer.config import TransformerConfig
    from keras_transformer.decoding import Translation
    from keras_transformer.losses import SmoothedCrossEntropy
    from keras_transformer.metrics import Perplexity, TokenAccuracy, TokenLoss
    from keras_transformer.models import Transformer
    from keras_transformer.schedules import TransformerSchedule
    from keras_transformer.text import Tokenizer
    from keras_transformer.translator import Translator
