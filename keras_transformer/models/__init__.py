"""Whole models."""

from keras_transformer.config import (
    ClassifierConfig,
    LanguageModelConfig,
    ModelConfig,
    RecurrentConfig,
    TransformerConfig,
)
from keras_transformer.models.recurrent import RecurrentTranslator
from keras_transformer.models.transformer import Classifier, LanguageModel, Transformer

__all__ = [
    "KINDS",
    "Classifier",
    "LanguageModel",
    "RecurrentTranslator",
    "Transformer",
    "model_of",
]

KINDS = {
    TransformerConfig: Transformer,
    RecurrentConfig: RecurrentTranslator,
    ClassifierConfig: Classifier,
    LanguageModelConfig: LanguageModel,
}
"""Model of each kind of configuration."""


def model_of(config: ModelConfig, **options):
    """Makes a freshly initialized model; the options are those of `keras.Model`."""
    return KINDS[type(config)](config, **options)
