"""See inside a trained model: arrays first, pictures second."""

from keras_transformer.analysis.attention import Attention, attention
from keras_transformer.analysis.pruning import heads_off, prune_heads

__all__ = ["Attention", "attention", "heads_off", "prune_heads"]
