"""Text to ids and back. A SavedModel has `export.saved_model.graph_tokenizer` instead."""

from keras_transformer.text.labels import Labels
from keras_transformer.text.tokenizer import Tokenizer

__all__ = ["Labels", "Tokenizer"]
