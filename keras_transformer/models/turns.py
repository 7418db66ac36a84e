"""An encoder over the turns of a conversation, above the one over the tokens of each turn."""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.config import TransformerConfig
from keras_transformer.layers import SinusoidalPositionalEncoding
from keras_transformer.models.stacks import Encoder, LayerOfConfig


def turn_numbers(source_ids: keras.KerasTensor, turn_id: int | None) -> keras.KerasTensor:
    """The turn of each token, int32 `(batch, source)`: a separator begins the one after it.

    Counted from the last turn, 0, back to the first: the turn that is answered has one number,
    however many there are.
    """
    begins = ops.cast(ops.equal(source_ids, turn_id), "int32")
    numbers = ops.cumsum(begins, axis=1)
    return numbers[:, -1:] - numbers


def same_turn(turn: keras.KerasTensor) -> keras.KerasTensor:
    """Lets each token see those of its own turn: bool `(batch, source, source)`."""
    return ops.equal(ops.expand_dims(turn, 2), ops.expand_dims(turn, 1))


@keras.saving.register_keras_serializable(package="keras_transformer")
class TurnEncoder(LayerOfConfig):
    """Adds to each token what `turn_layers` blocks make of the means of the turns.

    The first token of a turn stands for it: the others of the turn compute the same and are seen
    by none. So nothing is gathered, and shapes are those of tokens.

    Call arguments:
        inputs: Float `(batch, source, model_dim)`, encoded tokens.
        turn: Int32 `(batch, source)`, the turn of each, of `turn_numbers`.
        padding_mask: Bool `(batch, source)`, True = a real token.
        training: Whether dropout is active.

    Returns:
        Float `(batch, source, model_dim)` in the compute dtype.

    Reference: Serban et al. 2016 (arXiv:1507.04808), whose recurrent encoders are Transformers
    here.
    """

    def __init__(self, config: TransformerConfig, **kwargs: Any):
        super().__init__(config, **kwargs)
        # Tokens stand for turns here: their own positions and a window over them mean nothing.
        own = dataclasses.replace(
            config,
            num_encoder_layers=config.turn_layers,
            encoder_heads=None,
            positions="sinusoidal",
            combine_positions="add",
            sliding_window=None,
        )
        self.encoder = Encoder(own, dtype=self.dtype_policy, name="encoder")
        self.positions = SinusoidalPositionalEncoding(dtype=self.dtype_policy, name="positions")

    def build(self, input_shape):
        self.encoder.build(input_shape)

    def call(
        self,
        inputs: keras.KerasTensor,
        turn: keras.KerasTensor,
        padding_mask: keras.KerasTensor,
        training: bool | None = None,
    ) -> keras.KerasTensor:
        own = masks.combine(same_turn(turn), ops.expand_dims(padding_mask, 1))
        share = masks.masked_softmax(ops.zeros_like(own, "float32"), own)
        mean = ops.matmul(ops.cast(share, inputs.dtype), inputs)  # --> [batch, source, model_dim]
        table = self.positions(ops.zeros_like(inputs[:1]))[0]  # --> [source, model_dim]
        before = ops.concatenate([turn[:, :1] + 1, turn[:, :-1]], axis=1)
        first = ops.logical_and(ops.not_equal(before, turn), padding_mask)
        over_turns = self.encoder(mean + ops.take(table, turn, axis=0), first, training=training)
        return inputs + over_turns
