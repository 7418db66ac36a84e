"""The configuration of a decoder-only language model."""

import dataclasses
from typing import ClassVar

from keras_transformer.config.checks import check_choice
from keras_transformer.config.transformer import TransformerConfig


@dataclasses.dataclass(frozen=True)
class LanguageModelConfig(TransformerConfig):
    """A Transformer's decoder without an encoder: the fields of `TransformerConfig` that it has.

    Args:
        num_decoder_layers: Its blocks.
        tie_embeddings: `"all"`: the embedding is the output projection, too; or `"none"`.
        **fields: As of `TransformerConfig`; those of an encoder, of attention to it and of a second
            vocabulary stay as they are.

    Raises:
        ValueError: As `TransformerConfig`, or one of those fields is given.
    """

    num_encoder_layers: int = 0

    kind: ClassVar[str] = "language_model"
    without: ClassVar[tuple[str, ...]] = (
        "num_encoder_layers",
        "encoder_heads",
        "cross_heads",
        "target_vocabulary_size",
        "turn_layers",
        "turn_id",
    )

    def __post_init__(self):
        super().__post_init__()
        check_choice("tie_embeddings", self.tie_embeddings, ("all", "none"))
