"""Text to ids and back. The same inside a TensorFlow graph is `keras_transformer.text.graph`."""

from keras_transformer.text.labels import Labels
from keras_transformer.text.tokenizer import Tokenizer

__all__ = ["Labels", "Tokenizer"]
