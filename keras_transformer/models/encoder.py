"""The encoder: a stack of blocks over embedded source tokens."""

from typing import Any

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.layers import EncoderBlock
from keras_transformer.models.stack import Stack


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(Stack):
    """`num_encoder_layers` blocks; a pre-norm stack ends with a normalization.

    Args:
        config: `TransformerConfig`.

    Call arguments:
        inputs: Float `(batch, source, model_dim)`, embedded tokens.
        padding_mask: Bool `(batch, source)`, True = a real token.
        training: Whether dropout is active.

    Returns:
        Float `(batch, source, model_dim)` in the compute dtype.
    """

    def __init__(self, config: TransformerConfig, **kwargs: Any):
        super().__init__(config, EncoderBlock, config.num_encoder_layers, **kwargs)

    def build(self, input_shape):
        self._build(input_shape)

    def call(
        self,
        inputs: keras.KerasTensor,
        padding_mask: keras.KerasTensor | None = None,
        training: bool | None = None,
    ) -> keras.KerasTensor:
        hidden = inputs
        for block in self.blocks:
            hidden = block(hidden, padding_mask=padding_mask, training=training)
        return self._finish(hidden)
