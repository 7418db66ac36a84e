"""The decoder: a stack of blocks over embedded target tokens."""

import keras

from keras_transformer.layers import DecoderBlock
from keras_transformer.models.stack import Stack


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(Stack):
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
        super().__init__(config, DecoderBlock, config.num_decoder_layers, **kwargs)

    def build(self, inputs_shape, encoder_sequence_shape):
        self._build(inputs_shape, encoder_sequence_shape)

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

    def step_weights(self, layout="many"):
        """The blocks' weights laid out for `step`, as `DecoderBlock.step_weights` says."""
        return tuple(block.step_weights(layout) for block in self.blocks)

    def step(self, inputs, caches, position, mask, memory, memory_mask, weights):
        """One step of every block; see `DecoderBlock.step`.

        Returns:
            Float `(batch, new, model_dim)`, the tuple of written caches, and the tuple of each
            block's attention to the encoder.
        """
        hidden, written, attention = inputs, [], []
        parts = zip(self.blocks, caches, memory, weights, strict=True)
        for block, cache, key_value, block_weights in parts:
            hidden, cache, seen = block.step(
                hidden, cache, position, mask, key_value, memory_mask, block_weights
            )
            written.append(cache)
            attention.append(seen)
        return self._finish(hidden), tuple(written), tuple(attention)
