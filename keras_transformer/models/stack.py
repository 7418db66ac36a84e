"""The common base of the encoder and the decoder."""

from typing import Any

import keras

from keras_transformer.config import TransformerConfig


class Stack(keras.layers.Layer):
    """Blocks one after the other; a pre-norm stack ends with a normalization."""

    def __init__(
        self, config: TransformerConfig, block_class: type, num_blocks: int, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.config = config
        self.supports_masking = True
        self.blocks = [
            block_class(
                intermediate_dim=config.intermediate_dim,
                num_heads=config.num_heads,
                dropout=config.dropout,
                activation=config.activation,
                normalize_first=config.normalize_first,
                attention_dropout=config.attention_dropout,
                feed_forward_dropout=config.feed_forward_dropout,
                layer_norm_epsilon=config.layer_norm_epsilon,
                dtype=self.dtype_policy,
                name=f"block_{i}",
            )
            for i in range(num_blocks)
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

    def get_config(self):
        return {**super().get_config(), "config": self.config.to_dict()}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "config": TransformerConfig.from_dict(config["config"])})
