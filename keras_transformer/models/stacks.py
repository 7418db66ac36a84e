"""The encoder and the decoder: stacks of blocks over embedded tokens."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_transformer.cache import KeyValue
from keras_transformer.config import TransformerConfig
from keras_transformer.layers import DecoderBlock, EncoderBlock

# The arguments of a block that are fields of the configuration.
_OF_A_BLOCK = tuple(
    name for name in EncoderBlock.arguments if name not in ("num_heads", "positions")
)


class LayerOfConfig(keras.layers.Layer):
    """A layer that a `TransformerConfig` describes whole."""

    def __init__(self, config: TransformerConfig, **kwargs: Any):
        super().__init__(**kwargs)
        self.config = config

    def get_config(self):
        return {**super().get_config(), "config": self.config.to_dict()}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "config": TransformerConfig.from_dict(config["config"])})


class Stack(LayerOfConfig):
    """Blocks one after the other; a pre-norm stack ends with a normalization."""

    def __init__(
        self,
        config: TransformerConfig,
        block_class: type,
        heads: Sequence[dict[str, int]],
        **kwargs: Any,
    ):
        super().__init__(config, **kwargs)
        self.supports_masking = True
        self.blocks = [
            block_class(
                **{name: getattr(config, name) for name in _OF_A_BLOCK},
                **own,
                positions=config.attention_positions,
                dtype=self.dtype_policy,
                name=f"block_{i}",
            )
            for i, own in enumerate(heads)
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
        padding_mask: Bool `(batch, source)`, True = a real token.
        training: Whether dropout is active.
        attention_mask: As of `EncoderBlock`.

    Returns:
        Float `(batch, source, model_dim)` in the compute dtype.
    """

    def __init__(self, config: TransformerConfig, **kwargs: Any):
        heads = [{"num_heads": heads} for heads in config.heads_of("encoder")]
        super().__init__(config, EncoderBlock, heads, **kwargs)

    def build(self, input_shape):
        self._build(input_shape)

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
        encoder_sequence: Float `(batch, source, model_dim)`, or None where there is no encoder.
        decoder_padding_mask: Bool `(batch, target)`, True = a real token.
        encoder_padding_mask: Bool `(batch, source)`, True = a real token.
        training: Whether dropout is active.
        return_attention_scores: Whether to return the attention to the encoder too.

    Returns:
        Float `(batch, target, model_dim)` in the compute dtype; with
        `return_attention_scores=True` also a tuple of float `(batch, heads, target, source)`,
        one for each block.
    """

    def __init__(self, config: TransformerConfig, **kwargs: Any):
        own = config.heads_of("decoder")
        both = zip(own, config.heads_of("cross") or own, strict=True)
        heads = [{"num_heads": own, "num_cross_heads": cross} for own, cross in both]
        super().__init__(config, DecoderBlock, heads, **kwargs)

    def build(self, inputs_shape, encoder_sequence_shape=None):
        self._build(inputs_shape, encoder_sequence_shape)

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

    def project_encoder_sequence(
        self, encoder_sequence: keras.KerasTensor | None
    ) -> tuple[KeyValue, ...]:
        """The `KeyValue` of the encoder's sequence for each block, projected once; `()` of none."""
        if encoder_sequence is None:
            return ()
        return tuple(
            block.cross_attention.project_key_value(encoder_sequence) for block in self.blocks
        )

    def step(
        self,
        inputs,
        caches,
        position,
        mask,
        cross_key_values,
        cross_mask,
        sublayers=None,
        positions=None,
    ):
        """One `DecoderBlock.step` of every block, with a tuple of each block's own arguments.

        Returns:
            Float `(batch, new, model_dim)`, the tuple of written caches, and the tuple of each
            block's attention to the encoder.
        """
        hidden, written, scores = inputs, [], []
        sublayers = self.blocks if sublayers is None else sublayers
        crosses = cross_key_values or (None,) * len(self.blocks)
        parts = zip(self.blocks, caches, crosses, sublayers, strict=True)
        for block, cache, cross_key_value, own in parts:
            hidden, cache, weights = block.step(
                hidden, cache, position, mask, cross_key_value, cross_mask, own, positions
            )
            written.append(cache)
            scores.append(weights)
        return self._finish(hidden), tuple(written), tuple(scores)
