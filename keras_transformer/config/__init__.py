"""The configurations of the models: sizes, rates and switches, checked once."""

from keras_transformer.config.checks import check_choice, check_positive, check_rate
from keras_transformer.config.language_model import LanguageModelConfig
from keras_transformer.config.recurrent import ATTENTION_SCORES, RecurrentConfig
from keras_transformer.config.transformer import PRESETS, TransformerConfig
from keras_transformer.errors import InputError

PAD_ID, BOS_ID, EOS_ID, UNK_ID = 0, 1, 2, 3
"""Ids that every tokenizer, loss and search of this package agrees on."""

CONFIGURATIONS = {
    each.kind: each for each in (TransformerConfig, RecurrentConfig, LanguageModelConfig)
}
"""The configurations by their kind, which a recipe names."""


def check_transformer(config: TransformerConfig | RecurrentConfig, what: str) -> None:
    """Raises `InputError` unless it is a Transformer's, for what no other model has."""
    if config.kind != "transformer":
        raise InputError(f"{what} needs a Transformer. Received: model.kind={config.kind!r}.")
    if turn_layers := getattr(config, "turn_layers", 0):
        given = f"model.turn_layers={turn_layers}"
        raise InputError(f"{what} needs an encoder without layers over turns. Received: {given}.")


__all__ = [
    "ATTENTION_SCORES",
    "BOS_ID",
    "CONFIGURATIONS",
    "EOS_ID",
    "PAD_ID",
    "PRESETS",
    "UNK_ID",
    "LanguageModelConfig",
    "RecurrentConfig",
    "TransformerConfig",
    "check_choice",
    "check_positive",
    "check_rate",
    "check_transformer",
]
