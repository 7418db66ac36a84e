"""The configuration of a classifier: an encoder, and how its output becomes one label."""

import dataclasses
from typing import ClassVar, Literal

from keras_transformer.config.checks import check_choice, check_rate
from keras_transformer.config.transformer import TransformerConfig

NO_LABEL = -1
"""The label of a row of padding, which does not count."""
POOLINGS = ("mean", "max", "attention")
"""Names of the ways of `layers.MaskedPooling`."""


@dataclasses.dataclass(frozen=True)
class ClassifierConfig(TransformerConfig):
    """A Transformer's encoder that gives a text one of some labels.

    Args:
        target_vocabulary_size: Number of labels.
        pooling: What makes one vector of a text's: the `"mean"` of its tokens' or their `"max"`
            (of each feature), or their sum weighted by a learned `"attention"`.
        dropout: Rate on each sublayer's output, on the embedded input and on the pooled vector.
        word_dropout: Rate of whole tokens whose embedding is left out.
        **fields: As of `TransformerConfig`; those of a decoder stay as they are.

    Raises:
        ValueError: As `TransformerConfig`, or a field of a decoder is given.
    """

    target_vocabulary_size: int | None = 2
    model_dim: int = 128
    num_heads: int = 4
    intermediate_dim: int = 256
    num_encoder_layers: int = 1
    num_decoder_layers: int = 0
    dropout: float = 0.3
    normalize_first: bool = True
    tie_embeddings: Literal["all", "decoder", "none"] = "none"
    pooling: Literal["mean", "max", "attention"] = "mean"
    word_dropout: float = 0.0

    kind: ClassVar[str] = "classifier"
    ignore_id: ClassVar[int] = NO_LABEL
    without: ClassVar[tuple[str, ...]] = (
        "num_decoder_layers",
        "decoder_heads",
        "cross_heads",
        "tie_embeddings",
        "turn_layers",
        "turn_id",
    )

    def __post_init__(self):
        super().__post_init__()
        check_choice("pooling", self.pooling, POOLINGS)
        check_rate("word_dropout", self.word_dropout)
