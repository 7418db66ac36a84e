"""The encoder: a stack of blocks over embedded source tokens."""

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.layers import EncoderBlock


def block_arguments(config):
    """The arguments that encoder and decoder blocks share, from a `TransformerConfig`."""
    return dict(
        intermediate_dim=config.intermediate_dim,
        num_heads=config.num_heads,
        dropout=config.dropout,
        activation=config.activation,
        normalize_first=config.normalize_first,
        attention_dropout=config.attention_dropout,
        feed_forward_dropout=config.feed_forward_dropout,
        layer_norm_epsilon=config.layer_norm_epsilon,
    )


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(keras.layers.Layer):
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

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.supports_masking = True
        self.blocks = [
            EncoderBlock(**block_arguments(config), dtype=self.dtype_policy, name=f"block_{i}")
            for i in range(config.num_encoder_layers)
        ]
        self.final_norm = None
        if config.normalize_first:
            self.final_norm = keras.layers.LayerNormalization(
                epsilon=config.layer_norm_epsilon, dtype=self.dtype_policy, name="final_norm"
            )

    def build(self, input_shape):
        for block in self.blocks:
            block.build(input_shape)
        if self.final_norm is not None:
            self.final_norm.build(input_shape)

    def call(self, inputs, padding_mask=None, training=None):
        hidden = inputs
        for block in self.blocks:
            hidden = block(hidden, padding_mask=padding_mask, training=training)
        return hidden if self.final_norm is None else self.final_norm(hidden)

    def get_config(self):
        return {**super().get_config(), "config": self.config.to_dict()}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "config": TransformerConfig.from_dict(config["config"])})
