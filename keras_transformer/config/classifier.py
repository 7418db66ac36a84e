"""The configuration of a classifier: an encoder, and how its output becomes one label."""

import dataclasses
from typing import Any, ClassVar, Literal

from keras_transformer.config.checks import check_choice, check_rate, known_fields
from keras_transformer.config.transformer import TransformerConfig

POOLINGS = ("mean", "max", "attention")
"""Names of the ways of `layers.MaskedPooling`."""


@dataclasses.dataclass(frozen=True)
class ClassifierConfig:
    """Sizes and switches of a Transformer encoder that gives a text one of some labels.

    What is not named here is as for `TransformerConfig`.

    Args:
        vocabulary_size: Number of ids of a text.
        target_vocabulary_size: Number of labels, and four ids more, as of every vocabulary.
        pooling: What makes one vector of a text's: the `"mean"` of its tokens' or their `"max"`
            (of each feature), or their sum weighted by a learned `"attention"`.
        dropout: Rate on each sublayer's output, on the embedded input and on the pooled vector.
        word_dropout: Rate of whole tokens whose embedding is left out.

    Raises:
        ValueError: A field is out of range or two fields contradict each other.
    """

    vocabulary_size: int
    target_vocabulary_size: int = 6
    model_dim: int = 128
    num_heads: int = 4
    intermediate_dim: int = 256
    num_encoder_layers: int = 1
    pooling: Literal["mean", "max", "attention"] = "mean"
    dropout: float = 0.3
    word_dropout: float = 0.0
    attention_dropout: float = 0.0
    feed_forward_dropout: float = 0.0
    normalize_first: bool = True
    activation: str = "relu"
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_length: int = 1024
    layer_norm_epsilon: float = 1e-5

    kind: ClassVar[str] = "classifier"

    def __post_init__(self):
        check_choice("pooling", self.pooling, POOLINGS)
        check_rate("word_dropout", self.word_dropout)
        _ = self.encoder  # which checks the rest

    @property
    def encoder(self) -> TransformerConfig:
        """The configuration of the encoder; what it says of a decoder is of no use."""
        names = {field.name for field in dataclasses.fields(TransformerConfig)}
        own = {name: value for name, value in self.to_dict().items() if name in names}
        return TransformerConfig(**own, num_decoder_layers=1, tie_embeddings="none")

    @property
    def output_vocabulary_size(self) -> int:
        """Number of labels, and four ids more."""
        return self.target_vocabulary_size

    def heads_of(self, kind: Literal["encoder", "decoder", "cross"]) -> tuple[int, ...]:
        """Heads of each block's attention of a kind; there is none but the encoder's."""
        return self.encoder.heads_of("encoder") if kind == "encoder" else ()

    def multiply_adds(self, source_length: Any, target_length: Any) -> Any:
        """Multiply-adds of the matrix products of a pass forwards; as `TransformerConfig`'s."""
        width, source = self.model_dim, source_length
        block = source * (4 * width**2 + 2 * width * self.intermediate_dim) + 2 * source**2 * width
        return self.num_encoder_layers * block + width * self.target_vocabulary_size

    def activations(self, length: int) -> int:
        """Numbers that a position keeps for the way back; as `TransformerConfig`'s."""
        block = 12 * self.model_dim + 2 * self.intermediate_dim + 3 * self.num_heads * length
        return self.num_encoder_layers * block

    def to_dict(self) -> dict[str, Any]:
        """Plain values alone, fit for JSON and YAML."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "ClassifierConfig":
        """The inverse of `to_dict`; an unknown field is a `ValueError`."""
        return cls(**known_fields(cls, fields))
