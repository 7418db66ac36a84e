"""Checks that a model is one that a format or a report supports."""

from keras_transformer.base.errors import InputError
from keras_transformer.models.config import BlockConfig, ModelConfig, TransformerConfig


def check_transformer(config: ModelConfig, purpose: str) -> None:
    """Raises `InputError` unless the configuration is a Transformer's; `purpose` needs one."""
    if not isinstance(config, TransformerConfig):
        raise InputError(f"{purpose} needs a Transformer. Received: model.kind={config.kind!r}.")
    if config.turn_layers:
        received = f"model.turn_layers={config.turn_layers}"
        raise InputError(
            f"{purpose} needs an encoder without layers over turns. Received: {received}."
        )


def check_portable(config: BlockConfig, purpose: str) -> None:
    """Raises `InputError` for fields that engines with a search of their own do not support.

    These are positions that are more than vectors added to the embedded tokens, and sources that
    are conversations, whose separator no search may choose.
    """
    if config.attention_positions or config.combine_positions != "add":
        raise InputError(
            f"{purpose} has sinusoidal, learned or no positions, added. Received: "
            f"model.positions={config.positions!r}, combine_positions={config.combine_positions!r}."
        )
    if isinstance(config, TransformerConfig) and config.turn_id is not None:
        raise InputError(
            f"{purpose} does not read conversations; a SavedModel does. "
            "Received: a run with `text.turn_separator`."
        )
