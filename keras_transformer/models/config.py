"""Configurations of all kinds of models: a flat dataclass for each kind."""

import dataclasses
from dataclasses import KW_ONLY
from typing import Annotated, Any, ClassVar, Literal, Self

import pydantic

from keras_transformer.base.ids import NO_LABEL
from keras_transformer.base.options import (
    check_activation,
    check_attention,
    check_choice,
    check_divides,
    option,
    options_base,
    options_class,
)


def _sizes(model_dim, num_heads, intermediate_dim, layers, dropout):
    return dict(
        model_dim=model_dim,
        num_heads=num_heads,
        intermediate_dim=intermediate_dim,
        num_encoder_layers=layers,
        num_decoder_layers=layers,
        dropout=dropout,
    )


PRESETS = {
    # Wu et al. 2021 (arXiv:2105.14462): the small model for Multi30k.
    "transformer_tiny": _sizes(128, 4, 256, layers=4, dropout=0.3),
    # Vaswani et al. 2017 (arXiv:1706.03762), table 3, rows "base" and "big".
    "transformer_base": _sizes(512, 8, 2048, layers=6, dropout=0.1),
    "transformer_big": _sizes(1024, 16, 4096, layers=6, dropout=0.3),
}


@options_base
class ModelConfig:
    """Sizes, rates and switches of a model.

    Attributes:
        kind: Name of the model in recipes.
        ignore_id: Target id that losses and metrics leave out.
        writes_text: False for a model that gives labels.
        reads_sources: False for a model that has only targets (a language model).
    """

    vocabulary_size: int = option(..., "Ids, of the source side or of both.", ge=1)

    kind: ClassVar[str]
    ignore_id: ClassVar[int] = 0
    writes_text: ClassVar[bool] = True
    reads_sources: ClassVar[bool] = True

    def __post_init__(self):
        self.check()

    def check(self) -> None:
        """Raises `ValueError` where two fields contradict each other."""

    @property
    def output_vocabulary_size(self) -> int:
        """Number of target ids, whether the vocabulary is shared or not."""
        return getattr(self, "target_vocabulary_size", None) or self.vocabulary_size

    @property
    def position_limit(self) -> int | None:
        """Number of positions that the model has vectors for; None: any number."""
        return None

    def heads_of(self, attention: str) -> tuple[int, ...]:
        """Heads of an attention in each block: `"encoder"`, `"decoder"` or `"cross"`."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Only plain values, fit for JSON and YAML."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Inverse of `to_dict`; an unknown field is a `ValueError`."""
        return cls(**fields)


# Fields of several kinds, which have defaults of their own.
def _model_dim(default):
    return option(default, "Width of the residual stream (d_model in the paper).", ge=1)


def _num_heads(default):
    return option(default, "Attention heads; must divide model_dim.", ge=1)


def _intermediate_dim(default):
    return option(default, "Inner width of the feed-forward sublayer (d_ff in the paper).", ge=1)


def _num_encoder_layers(default):
    return option(default, "Blocks of the encoder.", ge=1)


def _num_decoder_layers(default):
    return option(default, "Blocks of the decoder.", ge=1)


def _normalize_first(default):
    return option(
        default,
        "Normalize before each sublayer (pre-norm, with one more normalization after the last "
        "block) instead of after it.",
    )


_Heads = tuple[Annotated[int, pydantic.Field(strict=True, ge=1)], ...] | None


def _heads(attention):
    meaning = f"Heads of each block's attention {attention} where some were pruned"
    return option(None, f"{meaning}; null: num_heads in each.", strict=False)


def _output_bias():
    return option(False, "Add a trained bias to the logits.")


_TieEmbeddings = Literal["all", "decoder", "none"]


def _tie_embeddings():
    return option(
        "all",
        "Share one matrix: all, of source embedding, target embedding and output projection; "
        "decoder, of the last two; none.",
        strict=None,
    )


def _target_vocabulary_size():
    return option(None, "Ids of the target side, where it has a vocabulary of its own.", ge=1)


# Fields with the number of blocks of each kind of attention.
_LAYERS = {
    "encoder": "num_encoder_layers",
    "decoder": "num_decoder_layers",
    "cross": "num_decoder_layers",
}


@options_base
class BlockConfig(ModelConfig):
    """Fields, rules and derived values of the kinds that are made of a Transformer's blocks.

    A kind declares a field again where it has another default.

    Attributes:
        attentions: Attentions of the kind, each with a field of its heads, such as `encoder_heads`.
    """

    attentions: ClassVar[tuple[str, ...]]

    model_dim: int = _model_dim(512)
    num_heads: int = _num_heads(8)
    intermediate_dim: int = _intermediate_dim(2048)
    _: KW_ONLY
    dropout: float = option(
        0.1, "Rate on each sublayer's output and on the embedded input.", ge=0, lt=1
    )
    attention_dropout: float = option(0.0, "Rate on the attention weights.", ge=0, lt=1)
    feed_forward_dropout: float = option(
        0.0, "Rate on the feed-forward sublayer's inner units.", ge=0, lt=1
    )
    normalize_first: bool = _normalize_first(False)
    layer_norm_epsilon: float = option(1e-5, "Added to the variance in each normalization.", gt=0)
    activation: str = option("relu", "Feed-forward activation, any name that Keras knows.")
    positions: Literal["sinusoidal", "learned", "rotary", "relative", "alibi", "none"] = option(
        "sinusoidal",
        "sinusoidal, learned: vectors at the embedded tokens; rotary, relative, alibi: positions "
        "inside self-attention; none.",
        strict=None,
    )
    combine_positions: Literal["add", "concatenate"] = option(
        "add",
        "add: add sinusoidal or learned positions to the embedded tokens; concatenate: join both "
        "vectors and project them.",
        strict=None,
    )
    position_layout: Literal["interleaved", "halves"] = option(
        "interleaved",
        "Sinusoidal positions: interleaved, a sine before its cosine, as in the paper; halves, all "
        "sines before all cosines, as in Marian.",
        strict=None,
    )
    position_frequencies: Literal["paper", "marian"] = option(
        "paper",
        "Sinusoidal positions: frequency i of a width d is 10000^(-2i/d), or Marian's "
        "10000^(-i/(d/2 - 1)).",
        strict=None,
    )
    position_offset: int = option(
        0,
        "Sinusoidal positions: number added to each position. fairseq's models, such as M2M100, "
        "have 2.",
        ge=0,
    )
    max_length: int = option(1024, "Positions of a learned embedding, in tokens.", ge=1)
    max_distance: int = option(
        16, "Farthest distance that relative positions tell apart, in tokens.", ge=1
    )
    relative_values: bool = option(
        False, "Relative positions also add a trained vector of each distance to the values."
    )
    num_kv_heads: int | None = option(
        None, "Heads of keys and values in every attention; null: num_heads.", ge=1
    )
    sliding_window: int | None = option(
        None, "Self-attention sees the tokens within sliding_window - 1; null: all.", ge=1
    )

    def check(self) -> None:
        check_activation(self.activation)
        check_divides("num_heads", self.num_heads, "model_dim", self.model_dim)
        kv_heads, positions = self.num_kv_heads, self.attention_positions
        check_attention(self.num_heads, kv_heads, self.key_dim, positions, self.relative_values)
        if self.combine_positions == "concatenate" and self.positions not in (
            "sinusoidal",
            "learned",
        ):
            raise ValueError(
                "Only sinusoidal and learned positions can be concatenated. "
                f"Received: positions={self.positions!r}."
            )
        if self.positions == "alibi" and self.num_heads == 1:
            raise ValueError(
                "ALiBi needs at least two heads, which have different slopes. "
                f"Received: num_heads={self.num_heads}."
            )
        for attention in self.attentions:
            heads = getattr(self, f"{attention}_heads")
            if heads is not None:
                self._check_heads(f"{attention}_heads", heads, getattr(self, _LAYERS[attention]))

    def _check_heads(self, name, heads, layers):
        if self.num_kv_heads is not None:
            raise ValueError(
                "Heads that share keys and values are not pruned. Received: "
                f"{name}={heads!r}, num_kv_heads={self.num_kv_heads}."
            )
        if self.positions == "alibi" and name != "cross_heads":
            raise ValueError(
                "ALiBi's slopes depend on the number of heads, so heads of self-attention are not "
                f"pruned. Received: {name}={heads!r}, positions='alibi'."
            )
        if len(heads) != layers or max(heads) > self.num_heads:
            raise ValueError(
                f"`{name}` must give each of the {layers} blocks from 1 to {self.num_heads} heads. "
                f"Received: {name}={heads!r}."
            )

    def heads_of(self, attention: str) -> tuple[int, ...]:
        if attention not in self.attentions:
            return ()
        num_layers = getattr(self, _LAYERS[attention])
        return getattr(self, f"{attention}_heads") or (self.num_heads,) * num_layers

    @property
    def key_dim(self) -> int:
        """Width of one attention head."""
        return self.model_dim // self.num_heads

    @property
    def position_limit(self) -> int | None:
        """Number of positions that the model has vectors for; None: any number."""
        return self.max_length if self.positions == "learned" else None

    @property
    def attention_positions(self) -> str | None:
        """Positions inside self-attention, as `layers.MultiHeadAttention` takes them."""
        return None if self.positions in ("sinusoidal", "learned", "none") else self.positions


def _check_vocabularies(config):
    target_size = config.target_vocabulary_size
    if config.tie_embeddings == "all" and target_size not in (None, config.vocabulary_size):
        raise ValueError(
            '`tie_embeddings="all"` needs one vocabulary for both sides. Received: '
            f"vocabulary_size={config.vocabulary_size}, target_vocabulary_size={target_size}."
        )


@options_class
class TransformerConfig(BlockConfig):
    """Sizes and switches of an encoder-decoder Transformer.

    Raises:
        ValueError: A field is out of range or two fields contradict each other.

    Example:

    >>> TransformerConfig(vocabulary_size=8000, model_dim=256, num_heads=4).key_dim
    64
    """

    _: KW_ONLY
    num_encoder_layers: int = _num_encoder_layers(6)
    num_decoder_layers: int = _num_decoder_layers(6)
    tie_embeddings: _TieEmbeddings = _tie_embeddings()
    target_vocabulary_size: int | None = _target_vocabulary_size()
    encoder_heads: _Heads = _heads("in the encoder")
    decoder_heads: _Heads = _heads("in the decoder to itself")
    cross_heads: _Heads = _heads("to the source")
    output_bias: bool = _output_bias()
    turn_layers: int = option(
        0,
        "Blocks over the turns of a source that is a conversation. A token attends only within "
        "its turn, and these blocks attend over the means of the turns. 0: a source is one "
        "sequence.",
        ge=0,
    )
    turn_id: int | None = option(None, "Id of the token between two turns; null: no turns.", ge=0)
    decoder: Literal["attention", "ssru"] = option(
        "attention",
        "How each decoder block reads the target so far: attention, self-attention; ssru, a "
        "recurrent unit with a state of constant size.",
        strict=None,
    )
    ssru_projection: bool = option(False, "Project the output of each ssru.")
    source_eos: bool = option(
        True,
        "Attend to the EOS of a source. false: the EOS is masked, as for models of OpenNMT-py, "
        "which read sources without it.",
    )

    kind: ClassVar[str] = "transformer"
    attentions: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "cross")

    def heads_of(self, attention: str) -> tuple[int, ...]:
        is_mixed_otherwise = attention == "decoder" and self.decoder != "attention"
        return () if is_mixed_otherwise else super().heads_of(attention)

    def check(self) -> None:
        super().check()
        _check_vocabularies(self)
        if self.decoder != "attention" and (self.decoder_heads or self.attention_positions):
            raise ValueError(
                f"`decoder: {self.decoder}` has no self-attention in the decoder. Received: "
                f"decoder_heads={self.decoder_heads!r}, positions={self.positions!r}."
            )
        if self.decoder != "ssru" and self.ssru_projection:
            raise ValueError(
                f"`ssru_projection` needs `decoder: ssru`. Received: decoder={self.decoder!r}."
            )
        if self.turn_layers and self.turn_id is None:
            raise ValueError(
                "`turn_layers` needs sources whose turns a token separates: "
                f"`text.turn_separator` of a recipe. Received: turn_layers={self.turn_layers}."
            )

    @classmethod
    def from_preset(cls, preset: str, vocabulary_size: int, **fields: Any) -> "TransformerConfig":
        """Makes the configuration of one of `PRESETS`, with any field replaced by name."""
        check_choice("preset", preset, tuple(PRESETS))
        return cls(vocabulary_size=vocabulary_size, **{**PRESETS[preset], **fields})


@options_class
class ClassifierConfig(BlockConfig):
    """Sizes and switches of an encoder with a pooled output, which labels a text.

    Raises:
        ValueError: A field is out of range or two fields contradict each other.
    """

    model_dim: int = _model_dim(128)
    num_heads: int = _num_heads(4)
    intermediate_dim: int = _intermediate_dim(256)
    _: KW_ONLY
    num_encoder_layers: int = _num_encoder_layers(1)
    target_vocabulary_size: int = option(2, "Number of labels.", ge=1)
    dropout: float = option(
        0.3,
        "Rate on each sublayer's output, on the embedded input and on the pooled vector.",
        ge=0,
        lt=1,
    )
    normalize_first: bool = _normalize_first(True)
    encoder_heads: _Heads = _heads("in the encoder")
    pooling: Literal["mean", "max", "attention"] = option(
        "mean",
        "How the vectors of a text's tokens become one: their mean, their maximum in each "
        "feature, or their sum weighted by a learned attention.",
        strict=None,
    )
    word_dropout: float = option(
        0.0, "Rate of tokens whose whole embedding is left out.", ge=0, lt=1
    )

    kind: ClassVar[str] = "classifier"
    attentions: ClassVar[tuple[str, ...]] = ("encoder",)
    ignore_id: ClassVar[int] = NO_LABEL
    writes_text: ClassVar[bool] = False
    num_decoder_layers: ClassVar[int] = 0
    turn_id: ClassVar[None] = None
    source_eos: ClassVar[bool] = True


@options_class
class LanguageModelConfig(BlockConfig):
    """Sizes and switches of a decoder without attention to a source.

    Raises:
        ValueError: A field is out of range or two fields contradict each other.
    """

    _: KW_ONLY
    num_decoder_layers: int = _num_decoder_layers(6)
    tie_embeddings: Literal["all", "none"] = option(
        "all", "all: the embedding is also the output projection; or none.", strict=None
    )
    decoder_heads: _Heads = _heads("in the decoder to itself")
    output_bias: bool = _output_bias()

    kind: ClassVar[str] = "language_model"
    attentions: ClassVar[tuple[str, ...]] = ("decoder",)
    reads_sources: ClassVar[bool] = False
    decoder: ClassVar[str] = "attention"
    turn_id: ClassVar[None] = None


_SCORE_OF = {"bahdanau": "additive", "luong": "general"}


@options_class
class RecurrentConfig(ModelConfig):
    """Sizes and switches of a recurrent encoder-decoder.

    Raises:
        ValueError: A field is out of range or two fields contradict each other.
    """

    model_dim: int = option(
        256,
        "Width of embeddings and states. It is even: each direction of the encoder has half.",
        ge=1,
    )
    _: KW_ONLY
    cell: Literal["gru", "lstm"] = option("gru", "Kind of the cells.", strict=None)
    num_encoder_layers: int = option(1, "Bidirectional layers of the encoder.", ge=1)
    num_decoder_layers: int = option(1, "Cells of the decoder, one above the other.", ge=1)
    attention: Literal["none", "bahdanau", "luong"] = option(
        "bahdanau",
        "none: the decoder reads only the encoder's last state. bahdanau: the state before a step "
        "attends, and the context is an input of the step. luong: the state after the step "
        "attends (Luong's global attention).",
        strict=None,
    )
    attention_score: Literal["dot", "scaled_dot", "general", "additive"] | None = option(
        None,
        "Score of the attention; null: additive for Bahdanau's attention, general for Luong's.",
        strict=None,
    )
    input_feeding: bool = option(
        False,
        "The output of a step is an input of the next one (Luong et al. 2015, section 3.3).",
    )
    dropout: float = option(
        0.1,
        "Rate on embeddings, on the input of each encoder layer, and on outputs.",
        ge=0,
        lt=1,
    )
    tie_embeddings: _TieEmbeddings = _tie_embeddings()
    target_vocabulary_size: int | None = _target_vocabulary_size()

    kind: ClassVar[str] = "recurrent"
    output_bias: ClassVar[bool] = False
    turn_id: ClassVar[None] = None
    source_eos: ClassVar[bool] = True

    def check(self) -> None:
        _check_vocabularies(self)
        if self.attention == "none" and (self.attention_score or self.input_feeding):
            raise ValueError(
                "`attention_score` and `input_feeding` need an attention. Received: "
                f"attention='none', attention_score={self.attention_score!r}, "
                f"input_feeding={self.input_feeding!r}."
            )
        if self.model_dim % 2:
            raise ValueError(f"`model_dim` must be even. Received: model_dim={self.model_dim}.")

    @property
    def score(self) -> str | None:
        """Score of the attention, `None` without attention."""
        return self.attention_score or _SCORE_OF.get(self.attention)

    def heads_of(self, attention: str) -> tuple[int, ...]:
        return (1,) if attention == "cross" and self.attention != "none" else ()


CONFIGURATIONS = {
    config.kind: config
    for config in (TransformerConfig, RecurrentConfig, ClassifierConfig, LanguageModelConfig)
}
"""Configurations by their kind, which a recipe names."""
