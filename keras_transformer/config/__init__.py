"""Configurations of the models: sizes, rates and switches, declared once."""

from keras_transformer.config.checks import check_choice, check_positive, check_rate
from keras_transformer.config.models import (
    NO_LABEL,
    POOLINGS,
    PRESETS,
    BlockFields,
    ClassifierConfig,
    LanguageModelConfig,
    ModelConfig,
    TransformerConfig,
)
from keras_transformer.config.recurrent import ATTENTION_SCORES, RecurrentConfig
from keras_transformer.errors import InputError

PAD_ID, BOS_ID, EOS_ID, UNK_ID = 0, 1, 2, 3
"""Ids that every tokenizer, loss and search of this package agrees on."""

CONFIGURATIONS = {
    each.kind: each
    for each in (TransformerConfig, RecurrentConfig, ClassifierConfig, LanguageModelConfig)
}
"""Configurations by their kind, which a recipe names."""


def check_transformer(config: ModelConfig, what: str) -> None:
    """Raises `InputError` unless it is a Transformer's, for a purpose that needs one."""
    if not isinstance(config, TransformerConfig):
        raise InputError(f"{what} needs a Transformer. Received: model.kind={config.kind!r}.")
    if config.turn_layers:
        given = f"model.turn_layers={config.turn_layers}"
        raise InputError(f"{what} needs an encoder without layers over turns. Received: {given}.")


def check_portable(config: BlockFields, what: str) -> None:
    """Raises `InputError` for fields that engines with a search of their own do not support.

    These are positions that are more than vectors added to the embedded tokens, and sources that
    are conversations, whose separator no search may choose.
    """
    if config.attention_positions or config.combine_positions != "add":
        raise InputError(
            f"{what} has sinusoidal, learned or no positions, added. Received: "
            f"model.positions={config.positions!r}, combine_positions={config.combine_positions!r}."
        )
    if isinstance(config, TransformerConfig) and config.decoder == "ssru":
        raise InputError(
            f"{what} has self-attention in the decoder; a SavedModel may have SSRU. "
            "Received: model.decoder='ssru'."
        )
    if isinstance(config, TransformerConfig) and config.turn_id is not None:
        raise InputError(
            f"{what} does not read conversations; a SavedModel does. "
            "Received: a run with `text.turn_separator`."
        )


__all__ = [
    "ATTENTION_SCORES",
    "BOS_ID",
    "CONFIGURATIONS",
    "ClassifierConfig",
    "EOS_ID",
    "ModelConfig",
    "NO_LABEL",
    "PAD_ID",
    "POOLINGS",
    "PRESETS",
    "UNK_ID",
    "LanguageModelConfig",
    "RecurrentConfig",
    "TransformerConfig",
    "check_choice",
    "check_portable",
    "check_positive",
    "check_rate",
    "check_transformer",
]
