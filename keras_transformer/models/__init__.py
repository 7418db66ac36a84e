"""Whole models."""

from keras_transformer.config import RecurrentConfig, TransformerConfig
from keras_transformer.models.recurrent import RecurrentTranslator
from keras_transformer.models.transformer import Transformer

__all__ = ["KINDS", "RecurrentTranslator", "Transformer", "model_of"]

KINDS = {TransformerConfig: Transformer, RecurrentConfig: RecurrentTranslator}
"""The model of each kind of configuration."""


def model_of(config: TransformerConfig | RecurrentConfig, **options):
    """A freshly initialized model of a configuration; the options are those of `keras.Model`."""
    return KINDS[type(config)](config, **options)
