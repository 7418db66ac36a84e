"""Whole models."""

from keras_transformer.config import (
    ClassifierConfig,
    LanguageModelConfig,
    ModelConfig,
    RecurrentConfig,
    TransformerConfig,
)
from keras_transformer.models.classifier import Classifier
from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.recurrent import RecurrentTranslator
from keras_transformer.models.transformer import Transformer

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
"""The model of each kind of configuration."""


def model_of(config: ModelConfig, **options):
    """A freshly initialized model of a configuration; the options are those of `keras.Model`."""
    return KINDS[type(config)](config, **options)
