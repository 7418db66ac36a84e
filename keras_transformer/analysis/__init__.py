"""See inside a trained model: arrays first, pictures second."""

from keras_transformer.analysis.attention import Attention, attention

__all__ = ["Attention", "attention"]
