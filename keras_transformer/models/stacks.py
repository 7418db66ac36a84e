"""Encoder and decoder: stacks of blocks over embedded tokens, and over the turns of a talk."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.layers import (
    DecoderBlock,
    EncoderBlock,
    SinusoidalPositionalEncoding,
    SSRUDecoderBlock,
    masks,
)
from keras_transformer.layers.blocks import StepSublayers
from keras_transformer.layers.kv_cache import KeyValue, Past
from keras_transformer.layers.quantization import dtype_config
from keras_transformer.models.config import (
    CONFIGURATIONS,
    BlockConfig,
    LanguageModelConfig,
    TransformerConfig,
)

# Arguments of a block that are fields of the configuration.
_OF_A_BLOCK = tuple(
    name for name in EncoderBlock.arguments if name not in ("num_heads", "positions")
)


DECODER_BLOCKS: dict[str, Callable] = {
    "attention": lambda config, **options: DecoderBlock(**options),
    "ssru": lambda config, **options: SSRUDecoderBlock(
        use_projection=config.ssru_projection, **options
    ),
}
"""Makes a block of each kind of decoder; a new `Mixer` is `DecoderBlock(mixer=…, **options)`."""


class LayerOfConfig(keras.layers.Layer):
    """A layer of a configuration of a kind that is made of a Transformer's blocks."""

    def __init__(self, config: BlockConfig, **kwargs: Any):
        super().__init__(**kwargs)
        self.config: Any = config

    def get_config(self):
        config = {"kind": self.config.kind, **self.config.to_dict()}
        return {**super().get_config(), **dtype_config(self), "config": config}

    @classmethod
    def from_config(cls, config):
        fields = dict(config["config"])
        config_class = CONFIGURATIONS[fields.pop("kind", "transformer")]
        return cls(**{**config, "config": config_class.from_dict(fields)})


class Stack(LayerOfConfig):
    """Blocks one after the other; a pre-norm stack ends with a normalization."""

    def __init__(
        self,
        config: BlockConfig,
        make_block: Callable,
        heads: Sequence[dict[str, int]],
        **kwargs: Any,
    ):
        super().__init__(config, **kwargs)
        self.supports_masking = True
        self.blocks = [
            make_block(
                **{name: getattr(config, name) for name in _OF_A_BLOCK},
                **head_counts,
                positions=config.attention_positions,
                dtype=self.dtype_policy,
                name=f"block_{i}",
            )
            for i, head_counts in enumerate(heads)
        ]
        self.final_norm = None
        if config.normalize_first:
            self.final_norm = keras.layers.LayerNormalization(
                epsilon=config.layer_norm_epsilon, dtype=self.dtype_policy, name="final_norm"
            )

    def _build(self, *shapes):
        for block in self.blocks:
            block.build(*shapes)
        if self.final_norm is not None:
            self.final_norm.build(shapes[0])

    def _finish(self, hidden):
        return hidden if self.final_norm is None else self.final_norm(hidden)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(Stack):
    """`num_encoder_layers` blocks; a pre-norm stack ends with a normalization.

    Call arguments:
        inputs: Float `(batch, source, model_dim)`, embedded tokens.
        padding_mask: Bool `(batch, source)`, True = not padding.
        training: Whether dropout is active.
        attention_mask: Bool, True = may attend; see `EncoderBlock`.

    Returns:
        Float `(batch, source, model_dim)` in the compute dtype.
    """

    def __init__(self, config: BlockConfig, **kwargs: Any):
        heads = [{"num_heads": heads} for heads in config.heads_of("encoder")]
        super().__init__(config, EncoderBlock, heads, **kwargs)

    def build(self, input_shape):
        self._build(input_shape)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def call(
        self,
        inputs: keras.KerasTensor,
        padding_mask: keras.KerasTensor | None = None,
        training: bool | None = None,
        attention_mask: keras.KerasTensor | None = None,
    ) -> keras.KerasTensor:
        hidden = inputs
        for block in self.blocks:
            hidden = block(hidden, padding_mask, attention_mask, training=training)
        return self._finish(hidden)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(Stack):
    """`num_decoder_layers` blocks; a pre-norm stack ends with a normalization.

    Call arguments:
        inputs: Float `(batch, target, model_dim)`, embedded tokens.
        encoder_sequence: Float `(batch, source, model_dim)`, or None without an encoder.
        decoder_padding_mask: Bool `(batch, target)`, True = not padding.
        encoder_padding_mask: Bool `(batch, source)`, True = not padding.
        training: Whether dropout is active.
        return_attention_scores: Whether to return the attention to the encoder too.

    Returns:
        Float `(batch, target, model_dim)` in the compute dtype; with
        `return_attention_scores=True` also a tuple of float `(batch, heads, target, source)`,
        one for each block.
    """

    def __init__(self, config: TransformerConfig | LanguageModelConfig, **kwargs: Any):
        self_heads, cross_heads = config.heads_of("decoder"), config.heads_of("cross")
        pairs = zip(self_heads or cross_heads, cross_heads or self_heads, strict=True)
        heads = [
            {"num_heads": self_count, "num_cross_heads": cross_count}
            for self_count, cross_count in pairs
        ]
        make_block = functools.partial(DECODER_BLOCKS[config.decoder], config)
        super().__init__(config, make_block, heads, **kwargs)

    def build(self, inputs_shape, encoder_sequence_shape=None):
        self._build(inputs_shape, encoder_sequence_shape)

    def compute_output_shape(self, inputs_shape, encoder_sequence_shape=None):
        return tuple(inputs_shape)

    def compute_output_spec(self, *args, **kwargs):
        # It may return attention scores, too.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def call(
        self,
        inputs: keras.KerasTensor,
        encoder_sequence: keras.KerasTensor | None = None,
        decoder_padding_mask: keras.KerasTensor | None = None,
        encoder_padding_mask: keras.KerasTensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        hidden, scores = inputs, []
        for block in self.blocks:
            hidden = block(
                hidden,
                encoder_sequence,
                decoder_padding_mask=decoder_padding_mask,
                encoder_padding_mask=encoder_padding_mask,
                training=training,
                return_attention_scores=return_attention_scores,
            )
            if return_attention_scores:
                hidden, _, weights = hidden
                scores.append(weights)
        outputs = self._finish(hidden)
        return (outputs, tuple(scores)) if return_attention_scores else outputs

    def start(
        self, batch: int | keras.KerasTensor, beams: int, capacity: int | keras.KerasTensor
    ) -> tuple[Any, ...]:
        """Makes the state of each block's mixer before the first step."""
        return tuple(block.token_mixer.start(batch, beams, capacity) for block in self.blocks)

    def project_encoder_sequence(self, encoder_sequence: keras.KerasTensor) -> tuple[KeyValue, ...]:
        """Projects the encoder's sequence once to a `KeyValue` for each block."""
        return tuple(
            block.cross_attention.project_key_value(encoder_sequence) for block in self.blocks
        )

    def step(
        self,
        inputs: keras.KerasTensor,
        states: Sequence[Any],
        past: Past,
        cross_key_values: Sequence[KeyValue],
        cross_mask: keras.KerasTensor | None,
        sublayers: Sequence[StepSublayers | None] | None = None,
    ) -> tuple[keras.KerasTensor, tuple[Any, ...]]:
        """Calls `DecoderBlock.step` of every block, with tuples of the blocks' arguments.

        Returns:
            Float `(batch, new, model_dim)`, and the tuple of next states.
        """
        hidden, next_states, count = inputs, [], len(self.blocks)
        crosses = cross_key_values or (None,) * count
        sublayers = sublayers or (None,) * count
        parts = zip(self.blocks, states, crosses, sublayers, strict=True)
        for block, state, cross_key_value, block_sublayers in parts:
            hidden, state, _ = block.step(
                hidden, state, past, cross_key_value, cross_mask, block_sublayers
            )
            next_states.append(state)
        return self._finish(hidden), tuple(next_states)


def turn_numbers(source_ids: keras.KerasTensor, turn_id: int | None) -> keras.KerasTensor:
    """Numbers the turn of each token, int32 `(batch, source)`; a separator begins a new turn.

    Turns are counted backwards from the last, 0, so that the turn to be answered has the same
    number in every conversation.
    """
    begins = ops.cast(ops.equal(source_ids, turn_id), "int32")
    numbers = ops.cumsum(begins, axis=1)
    return numbers[:, -1:] - numbers


def same_turn(turn: keras.KerasTensor) -> keras.KerasTensor:
    """Lets each token see the tokens of its own turn: bool `(batch, source, source)`."""
    return ops.equal(ops.expand_dims(turn, 2), ops.expand_dims(turn, 1))


@keras.saving.register_keras_serializable(package="keras_transformer")
class TurnEncoder(LayerOfConfig):
    """Adds the output of `turn_layers` blocks over the means of the turns to each token.

    The first token of a turn represents it. The turn's other tokens compute an equal vector and
    are hidden. So nothing is gathered, and shapes count tokens.

    Call arguments:
        inputs: Float `(batch, source, model_dim)`, encoded tokens.
        turn: Int32 `(batch, source)`, of `turn_numbers`.
        padding_mask: Bool `(batch, source)`, True = not padding.
        training: Whether dropout is active.

    Returns:
        Float `(batch, source, model_dim)` in the compute dtype.

    Reference: Serban et al. 2016 (arXiv:1507.04808), whose recurrent encoders are Transformers
    here.
    """

    def __init__(self, config: TransformerConfig, **kwargs: Any):
        super().__init__(config, **kwargs)
        # Here tokens represent turns: positions of tokens and a window over them mean nothing.
        turn_config = dataclasses.replace(
            config,
            num_encoder_layers=config.turn_layers,
            encoder_heads=None,
            positions="sinusoidal",
            combine_positions="add",
            sliding_window=None,
        )
        self.encoder = Encoder(turn_config, dtype=self.dtype_policy, name="encoder")
        self.positions = SinusoidalPositionalEncoding(dtype=self.dtype_policy, name="positions")

    def build(self, input_shape):
        self.encoder.build(input_shape)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def call(
        self,
        inputs: keras.KerasTensor,
        turn: keras.KerasTensor,
        padding_mask: keras.KerasTensor,
        training: bool | None = None,
    ) -> keras.KerasTensor:
        padding_mask = masks.combine_padding(inputs.shape, padding_mask=padding_mask)
        turn_mask = masks.combine(same_turn(turn), ops.expand_dims(padding_mask, 1))
        share = masks.masked_softmax(ops.zeros_like(turn_mask, "float32"), turn_mask)
        mean = ops.matmul(ops.cast(share, inputs.dtype), inputs)  # --> [batch, source, model_dim]
        table = self.positions(ops.zeros_like(inputs[:1]))[0]  # --> [source, model_dim]
        previous_turn = ops.concatenate([turn[:, :1] + 1, turn[:, :-1]], axis=1)
        is_first = ops.logical_and(ops.not_equal(previous_turn, turn), padding_mask)
        over_turns = self.encoder(mean + ops.take(table, turn, axis=0), is_first, training=training)
        return inputs + over_turns
