"""The classifier: the encoder of a Transformer, pooled, and a dense layer to the labels."""

from typing import Any

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.config import ClassifierConfig
from keras_transformer.layers import (
    LearnedPositionalEmbedding,
    MaskedPooling,
    SinusoidalPositionalEncoding,
    TokenEmbedding,
)
from keras_transformer.models.stacks import Encoder


@keras.saving.register_keras_serializable(package="keras_transformer")
class Classifier(keras.Model):
    """From the ids of a text to the logits of its label.

    A label is a target of one token, so that losses and metrics are those of other models.

    Args:
        config: `ClassifierConfig`.

    Call arguments:
        inputs: `source_ids`, or `(source_ids,)`: integers `(batch, source)`, padded with 0.
        training: Whether dropout is active.

    Returns:
        Logits, float `(batch, 1, target vocabulary)` in the compute dtype; the first four ids are
        no labels.

    Example:

    >>> model = Classifier(ClassifierConfig(vocabulary_size=100, target_vocabulary_size=6))
    >>> model(keras.ops.ones((2, 7), dtype="int32")).shape
    (2, 1, 6)
    """

    def __init__(self, config: ClassifierConfig, **kwargs: Any):
        super().__init__(**kwargs)
        self.autocast = False  # Ids must stay integers; every sublayer casts for itself.
        self.config = config
        policy, width = self.dtype_policy, config.model_dim
        self.source_embedding = TokenEmbedding(
            config.vocabulary_size, width, dtype=policy, name="source_embedding"
        )
        self.word_dropout = keras.layers.Dropout(
            config.word_dropout, noise_shape=(None, None, 1), dtype=policy
        )
        if config.positions == "learned":
            self.source_positions = LearnedPositionalEmbedding(config.max_length, dtype=policy)
        else:
            self.source_positions = SinusoidalPositionalEncoding(dtype=policy)
        self.dropout = keras.layers.Dropout(config.dropout, dtype=policy)
        self.encoder = Encoder(config.encoder, dtype=policy, name="encoder")
        self.pooling = MaskedPooling(config.pooling, dtype=policy, name="pooling")
        self.output_projection = keras.layers.Dense(
            config.output_vocabulary_size, dtype=policy, name="output"
        )
        self.build()

    def build(self, input_shape=None):
        if self.built:
            return
        shape = (None, None, self.config.model_dim)
        self.source_embedding.build((None, None))
        for layer in (self.source_positions, self.encoder, self.pooling, self.output_projection):
            layer.build(shape)
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> keras.KerasTensor:
        source_ids = inputs[0] if isinstance(inputs, (tuple, list)) else inputs
        mask = masks.padding_mask(source_ids)
        embedded = self.word_dropout(self.source_embedding(source_ids), training=training)
        hidden = self.dropout(self.source_positions(embedded), training=training)
        encoded = self.encoder(hidden, padding_mask=mask, training=training)
        pooled = self.dropout(self.pooling(encoded, mask), training=training)
        return ops.expand_dims(self.output_projection(pooled), 1)

    def get_config(self):
        policy = keras.dtype_policies.serialize(self.dtype_policy)
        return {**super().get_config(), "dtype": policy, "config": self.config.to_dict()}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**{**config, "config": ClassifierConfig.from_dict(config["config"])})
