"""The decoder: a stack of blocks over embedded target tokens."""

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.layers import DecoderBlock
from keras_transformer.models.encoder import block_arguments


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(keras.layers.Layer):
    """`num_decoder_layers` blocks; a pre-norm stack ends with a normalization.

    Args:
        config: `TransformerConfig`.

    Call arguments:
        inputs: Float `(batch, target, model_dim)`, embedded tokens.
        encoder_sequence: Float `(batch, source, model_dim)`.
        decoder_padding_mask: Bool `(batch, target)`, True = a real token.
        encoder_padding_mask: Bool `(batch, source)`, True = a real token.
        training: Whether dropout is active.

    Returns:
        Float `(batch, target, model_dim)` in the compute dtype.
    """

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.supports_masking = True
        self.blocks = [
            DecoderBlock(**block_arguments(config), dtype=self.dtype_policy, name=f"block_{i}")
            for i in range(config.num_decoder_layers)
        ]
        self.final_norm = None
        if config.normalize_first:
            self.final_norm = keras.layers.LayerNormalization(
                epsilon=config.layer_norm_epsilon, dtype=self.dtype_policy, name="final_norm"
            )

    def build(self, inputs_shape, encoder_sequence_shape):
        for block in self.blocks:
            block.build(inputs_shape, encoder_sequence_shape)
        if self.final_norm is not None:
            self.final_norm.build(inputs_shape)

    def call(
        self,
        inputs,
        encoder_sequence,
        decoder_padding_mask=None,
        encoder_padding_mask=None,
        training=None,
    ):
        hidden = inputs
        for block in self.blocks:
            hidden = block(
                hidden,
                encoder_sequence,
                decoder_padding_mask=decoder_padding_mask,
                encoder_padding_mask=encoder_padding_mask,
                training=training,
            )
        return self._finish(hidden)

    def project_memory(self, encoder_sequence):
        """Keys and values of the encoder's sequence for each block, projected once."""
        return tuple(
            block.cross_attention.project_key_value(encoder_sequence) for block in self.blocks
        )

    def step(self, inputs, caches, position, mask, memory, memory_mask):
        """One step of every block; see `DecoderBlock.step`.

        Returns:
            Float `(batch, new, model_dim)` and the tuple of written caches.
        """
        hidden, written = inputs, []
        for block, cache, key_value in zip(self.blocks, caches, memory, strict=True):
            hidden, cache = block.step(hidden, cache, position, mask, key_value, memory_mask)
            written.append(cache)
        return self._finish(hidden), tuple(written)

    def _finish(self, hidden):
        return hidden if self.final_norm is None else self.final_norm(hidden)

    def get_config(self):
        return {**super().get_config(), "config": self.config.to_dict()}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "config": TransformerConfig.from_dict(config["config"])})
