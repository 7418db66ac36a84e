"""The configuration of a Transformer, and its presets."""

import dataclasses
from typing import Any, ClassVar, Literal

import numpy as np

from keras_transformer.config.checks import (
    check,
    check_activation,
    check_choice,
    check_divides,
    check_rate,
)
from keras_transformer.config.model_config import ModelConfig


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


@dataclasses.dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """Sizes and switches of an encoder-decoder Transformer.

    Args:
        vocabulary_size: Number of ids, of the source side or of both.
        model_dim: Width of the residual stream (`d_model` in the paper).
        num_heads: Attention heads; must divide `model_dim`.
        intermediate_dim: Inner width of the feed-forward sublayer (`d_ff`).
        num_encoder_layers: Encoder blocks.
        num_decoder_layers: Decoder blocks.
        dropout: Rate on each sublayer's output and on the embedded input.
        normalize_first: Normalize before each sublayer (pre-norm, with one more
            normalization after the last block) instead of after it.
        activation: Feed-forward activation, any name that Keras knows.
        tie_embeddings: `"all"` shares one matrix between source embedding, target
            embedding and output projection (section 3.4); `"decoder"` shares the target
            embedding and the output projection; `"none"` shares nothing.
        positions: `"sinusoidal"` or `"learned"`: vectors at the embedded tokens; `"rotary"` or
            `"relative"`: what self-attention knows (see `layers.MultiHeadAttention`); `"none"`.
        target_vocabulary_size: Number of target ids, when it is a vocabulary of its own.
        attention_dropout: Rate on the attention weights.
        feed_forward_dropout: Rate on the feed-forward sublayer's inner units.
        max_length: Positions that a learned embedding has, in tokens. Sinusoidal
            positions know no limit.
        layer_norm_epsilon: Added to the variance in each normalization.
        encoder_heads: Heads of each encoder block where some were pruned, from 1 to `num_heads`;
            `None`: `num_heads` in each. A head is `model_dim / num_heads` wide all the same.
        decoder_heads: The same of the decoder's self-attention.
        cross_heads: The same of the decoder's attention to the source.
        combine_positions: Whether sinusoidal or learned positions are added to the embedded
            tokens, or put beside them and projected (`"concatenate"`).
        num_kv_heads: Heads of keys and values in every attention; `None`: `num_heads`.
        sliding_window: Self-attention sees the tokens within `sliding_window` - 1; `None`: all.
        max_distance: Farthest distance that relative positions tell apart, in tokens.
        turn_layers: Blocks over the turns of a source that is a conversation: a token attends
            within its own turn alone, and gets what these blocks make of the turns' means. 0: a
            source is one sequence.
        turn_id: Id of the token between two turns, which no target has; None without turns.

    Raises:
        ValueError: A field is out of range or two fields contradict each other.

    Example:

    >>> TransformerConfig(vocabulary_size=8000, model_dim=256, num_heads=4).key_dim
    64
    """

    vocabulary_size: int
    model_dim: int = 512
    num_heads: int = 8
    intermediate_dim: int = 2048
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    dropout: float = 0.1
    normalize_first: bool = False
    activation: str = "relu"
    tie_embeddings: Literal["all", "decoder", "none"] = "all"
    positions: Literal["sinusoidal", "learned", "rotary", "relative", "none"] = "sinusoidal"
    target_vocabulary_size: int | None = None
    attention_dropout: float = 0.0
    feed_forward_dropout: float = 0.0
    max_length: int = 1024
    layer_norm_epsilon: float = 1e-5
    encoder_heads: tuple[int, ...] | None = None
    decoder_heads: tuple[int, ...] | None = None
    cross_heads: tuple[int, ...] | None = None
    combine_positions: Literal["add", "concatenate"] = "add"
    num_kv_heads: int | None = None
    sliding_window: int | None = None
    max_distance: int = 16
    turn_layers: int = 0
    turn_id: int | None = None

    kind: ClassVar[str] = "transformer"
    # Fields of a part that this kind of model does not have.
    without: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if field.name in self.without and getattr(self, field.name) != field.default:
                raise ValueError(
                    f"A {self.kind} has no `{field.name}`. "
                    f"Received: {field.name}={getattr(self, field.name)!r}."
                )
        sizes = ["vocabulary_size", "model_dim", "num_heads", "intermediate_dim"]
        sizes += ["num_encoder_layers", "num_decoder_layers", "max_length", "max_distance"]
        optional = ("num_kv_heads", "sliding_window")
        sizes += [name for name in optional if getattr(self, name) is not None]
        for name in sizes:
            if name not in self.without:
                check(name, getattr(self, name), "a positive integer", int)
        for name in ("dropout", "attention_dropout", "feed_forward_dropout"):
            check_rate(name, getattr(self, name))
        check("normalize_first", self.normalize_first, "true or false", bool)
        absolute, in_attention = ("sinusoidal", "learned"), ("rotary", "relative")
        check_choice("positions", self.positions, (*absolute, *in_attention, "none"))
        check_choice("combine_positions", self.combine_positions, ("add", "concatenate"))
        check_activation(self.activation)
        epsilon = self.layer_norm_epsilon
        check("layer_norm_epsilon", epsilon, "a positive number", (int, float))
        check_divides("num_heads", self.num_heads, "model_dim", self.model_dim)
        if self.combine_positions == "concatenate" and self.positions not in absolute:
            raise ValueError(
                "Only sinusoidal and learned positions can be concatenated. "
                f"Received: positions={self.positions!r}."
            )
        if self.positions == "rotary" and self.key_dim % 2:
            raise ValueError(
                "Rotary positions need heads of an even width. "
                f"Received: model_dim={self.model_dim}, num_heads={self.num_heads}."
            )
        shared = self.num_kv_heads or self.num_heads
        check_divides("num_kv_heads", shared, "num_heads", self.num_heads)
        for name in ("encoder_heads", "decoder_heads", "cross_heads"):
            self._check_heads(name)
        self.check_vocabularies()
        if self.turn_layers != 0:
            check("turn_layers", self.turn_layers, "0 or a positive integer", int)
            if self.turn_id is None:
                raise ValueError(
                    "`turn_layers` needs sources whose turns a token separates: "
                    f"`text.turn_separator` of a recipe. Received: turn_layers={self.turn_layers}."
                )

    def _check_heads(self, name):
        heads = getattr(self, name)
        if heads is None:
            return
        if self.num_kv_heads is not None:
            raise ValueError(
                "Heads that share keys and values are not pruned. Received: "
                f"{name}={heads!r}, num_kv_heads={self.num_kv_heads}."
            )
        blocks = self.num_encoder_layers if name == "encoder_heads" else self.num_decoder_layers
        known = isinstance(heads, (list, tuple)) and len(heads) == blocks
        if not known or not all(type(n) is int and 0 < n <= self.num_heads for n in heads):
            raise ValueError(
                f"`{name}` must give each of the {blocks} blocks from 1 to {self.num_heads} heads. "
                f"Received: {name}={heads!r}."
            )
        object.__setattr__(self, name, tuple(heads))

    def heads_of(self, kind: Literal["encoder", "decoder", "cross"]) -> tuple[int, ...]:
        """Heads of each block's attention of a kind."""
        blocks = self.num_encoder_layers if kind == "encoder" else self.num_decoder_layers
        if kind == "cross" and not self.num_encoder_layers:
            return ()
        return getattr(self, f"{kind}_heads") or (self.num_heads,) * blocks

    @property
    def key_dim(self) -> int:
        """Width of one attention head."""
        return self.model_dim // self.num_heads

    @property
    def position_limit(self) -> int | None:
        """The most positions that the model has vectors for; None: any number."""
        return self.max_length if self.positions == "learned" else None

    @property
    def attention_positions(self) -> str | None:
        """What self-attention itself knows of positions, as `layers.MultiHeadAttention` says."""
        return self.positions if self.positions in ("rotary", "relative") else None

    def multiply_adds(self, source_length: Any, target_length: Any) -> Any:
        """Multiply-adds of the matrix products of a pass forwards over one pair.

        Target token `t` attends to `t` tokens: padding, and what attention computes and then
        masks, do not count. Two floating-point operations each; a training step takes three
        passes' worth.

        Args:
            source_length: Tokens, a number or an array of them, like `target_length`.
        """
        width, source, target = self.model_dim, source_length, target_length
        # Features of all heads together, over all blocks.
        features, own, cross = (
            self.key_dim * sum(self.heads_of(kind)) for kind in ("encoder", "decoder", "cross")
        )
        feed_forward = 2 * width * self.intermediate_dim
        # Query and output of all heads, keys and values of those that there are.
        shared = width * (self.num_kv_heads or self.num_heads) // self.num_heads
        projections, of_source = 2 * (width + shared), 2 * shared
        # Scores and weighted sums of each pair; relative positions have scores of their own.
        pair = 2 + (self.positions == "relative")
        blocks = self.num_encoder_layers + self.turn_layers
        features += self.turn_layers * width
        encoder = source * (projections * features + blocks * feed_forward)
        encoder = encoder + pair * (2 * self._pairs(source) - source) * features
        # Of cross-attention the query and the output, and the keys and values of the source.
        step = projections * own + 2 * width * cross + 2 * source * cross
        decoder = target * (step + self.num_decoder_layers * feed_forward)
        decoder = decoder + pair * self._pairs(target) * own + source * of_source * cross
        joined = width**2 * 2 * (self.combine_positions == "concatenate") * (source + target)
        return encoder + decoder + joined + target * width * self.output_vocabulary_size

    def _pairs(self, length):
        """Pairs of a token and one that it sees at or before its own place."""
        if self.sliding_window is None:
            return length * (length + 1) // 2
        seen = np.minimum(length, self.sliding_window)
        return seen * (seen + 1) // 2 + (length - seen) * seen

    def activations(self, length: int) -> int:
        """Numbers that a position of sequences of a length keeps for the way back, roughly."""
        blocks = self.num_encoder_layers + self.turn_layers + self.num_decoder_layers
        block = 12 * self.model_dim + 2 * self.intermediate_dim + 3 * self.num_heads * length
        # And logits with their gradient.
        return blocks * block + 3 * self.output_vocabulary_size

    @classmethod
    def from_preset(cls, preset: str, vocabulary_size: int, **fields: Any) -> "TransformerConfig":
        """The configuration of one of `PRESETS`, with any field replaced by name."""
        check_choice("preset", preset, tuple(PRESETS))
        return cls(vocabulary_size=vocabulary_size, **{**PRESETS[preset], **fields})
