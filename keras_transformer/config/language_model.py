"""The configuration of a decoder-only language model."""

import dataclasses
from typing import ClassVar, Literal

from keras_transformer.config.checks import check_choice
from keras_transformer.config.transformer import TransformerConfig

_OF_TWO_SIDES = ("encoder_heads", "cross_heads", "target_vocabulary_size", "turn_id")


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

    def __post_init__(self):
        super().__post_init__()
        check_choice("tie_embeddings", self.tie_embeddings, ("all", "none"))
        for name in ("num_encoder_layers", "turn_layers", *_OF_TWO_SIDES):
            if getattr(self, name):
                raise ValueError(
                    f"A language model has no encoder: `{name}` is not given. "
                    f"Received: {name}={getattr(self, name)!r}."
                )

    def heads_of(self, kind: Literal["encoder", "decoder", "cross"]) -> tuple[int, ...]:
        """Heads of each block's attention of a kind: there is none to a source."""
        return super().heads_of(kind) if kind == "decoder" else ()
