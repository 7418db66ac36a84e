"""The classifier: the encoder of a Transformer, pooled, and a dense layer to the labels."""

from typing import Any

import keras
from keras import ops

from keras_transformer.config import ClassifierConfig
from keras_transformer.layers import MaskedPooling
from keras_transformer.models.transformer import Transformer


@keras.saving.register_keras_serializable(package="keras_transformer")
class Classifier(Transformer):
    """From the ids of a text to the logits of its label: a `Transformer` without a decoder.

    A label is a target of one token, so that losses and metrics are those of other models, with
    `ignore_id=NO_LABEL`: 0 is a label.

    Call arguments:
        inputs: `source_ids`, or `(source_ids,)`: integers `(batch, source)`, padded with 0.
        training: Whether dropout is active.

    Returns:
        Logits, float `(batch, 1, labels)` in the compute dtype.

    Example:

    >>> model = Classifier(ClassifierConfig(vocabulary_size=100, target_vocabulary_size=6))
    >>> model(keras.ops.ones((2, 7), dtype="int32")).shape
    (2, 1, 6)
    """

    config_class = ClassifierConfig

    def _make_layers(self):
        super()._make_layers()
        config, policy = self.config, self.dtype_policy
        self.word_dropout = keras.layers.Dropout(
            config.word_dropout, noise_shape=(None, None, 1), dtype=policy
        )
        self.pooling = MaskedPooling(config.pooling, dtype=policy, name="pooling")

    def build(self, input_shape=None):
        if not self.built:
            self.pooling.build((None, None, self.config.model_dim))
            super().build()

    def call(self, inputs: Any, training: bool | None = None) -> keras.KerasTensor:
        source_ids = inputs[0] if isinstance(inputs, (tuple, list)) else inputs
        encoded, mask = self.encode(source_ids, training=training)
        pooled = self.embedding_dropout(self.pooling(encoded, mask), training=training)
        return ops.expand_dims(self.output_projection(pooled), 1)

    def _embedded(self, ids, embedding, training):
        return self.word_dropout(embedding(ids), training=training)
