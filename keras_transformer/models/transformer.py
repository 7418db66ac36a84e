"""The Transformer for translation, and the models that are one side of it."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers import MaskedPooling, masks
from keras_transformer.models.config import (
    ClassifierConfig,
    LanguageModelConfig,
    ModelConfig,
    RecurrentConfig,
    TransformerConfig,
)
from keras_transformer.models.recurrent import RecurrentTranslator
from keras_transformer.models.sequence_model import DecodingModel, EncodingModel
from keras_transformer.models.stacks import Decoder, Encoder, TurnEncoder


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(EncodingModel, DecodingModel):
    """Encoder-decoder Transformer from ids to logits.

    Args:
        config: Sizes and options of the layers, a `TransformerConfig`.

    Call arguments:
        inputs: `(source_ids, target_ids)` or `{"source_ids": …, "target_ids": …}`: integers
            `(batch, source)` and `(batch, target)`, padded with 0. The target begins with the
            id of the beginning of a sentence (1).
        training: Whether dropout is active.

    Returns:
        Logits, float `(batch, target, target vocabulary)` in the compute dtype: position `i`
        scores the token after `target_ids[:, i]`.

    Raises:
        ValueError: The inputs are not two sequences.

    Reference: Vaswani et al. 2017 (arXiv:1706.03762).

    Example:

    >>> model = Transformer.from_preset("transformer_tiny", vocabulary_size=100)
    >>> ids = keras.ops.ones((2, 7), dtype="int32")
    >>> tuple(model((ids, ids)).shape)
    (2, 7, 100)
    """

    config_class = TransformerConfig

    def _make_layers(self):
        config, policy = self.config, self.dtype_policy
        self._make_translation_tables()
        self.source_positions = self._positions("source")
        self.target_positions = self._positions("target")
        self.embedding_dropout = self._dropout()
        self.encoder = Encoder(config, dtype=policy, name="encoder")
        self.decoder = Decoder(config, dtype=policy, name="decoder")
        self.turns = TurnEncoder(config, dtype=policy, name="turns") if config.turn_layers else None

    @classmethod
    def from_preset(cls, preset: str, vocabulary_size: int, **fields: Any) -> "Transformer":
        """Makes a freshly initialized model; see `TransformerConfig.from_preset`."""
        return cls(TransformerConfig.from_preset(preset, vocabulary_size, **fields))

    def build(self, input_shape=None):
        if self.built:
            return
        self._build_for_width(self.source_embedding, self.target_embedding, self.output_projection)
        self._build_for_width(self.source_positions, self.encoder, self.turns)
        self._build_for_width(self.target_positions, self.embedding_dropout)
        shape = (None, None, self.config.model_dim)
        self.decoder.build(shape, shape)
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> keras.KerasTensor:
        source_ids, target_ids = self._sequences(inputs)
        encoded, source_mask = self.encode(source_ids, training=training)
        hidden = self.decoder(
            self._embed(target_ids, self.target_embedding, self.target_positions, training),
            encoded,
            decoder_padding_mask=masks.padding_mask(target_ids),
            encoder_padding_mask=source_mask,
            training=training,
        )
        return self._logits(hidden)

    def _encoded_source(self, source_ids):
        encoded, mask = self.encode(source_ids)
        return self.decoder.project_encoder_sequence(encoded), masks.key_mask(mask)

    def call_with_attention(
        self, source_ids: keras.KerasTensor, target_ids: keras.KerasTensor
    ) -> tuple[keras.KerasTensor, tuple[keras.KerasTensor, ...]]:
        """Calls the model without dropout, and keeps each block's attention to the source.

        Args:
            source_ids: Integer `(batch, source)`.
            target_ids: Integer `(batch, target)`, from the beginning of the sentence, padding
                at the end only.

        Returns:
            Logits, float32 `(batch, target, target vocabulary)`, and for each decoder block float
            `(batch, heads, target, source)`.
        """
        encoded, source_mask = self.encode(source_ids)
        hidden, scores = self.decoder(
            self._embed(target_ids, self.target_embedding, self.target_positions),
            encoded,
            encoder_padding_mask=source_mask,
            return_attention_scores=True,
        )
        return ops.cast(self._logits(hidden), "float32"), scores


@keras.saving.register_keras_serializable(package="keras_transformer")
class LanguageModel(DecodingModel):
    """Decoder without attention to a source, from ids to logits.

    A search gives it `source_ids` only for the number of texts: a text to be continued is the
    prefix of its target.

    Args:
        config: Sizes and options of the layers, a `LanguageModelConfig`.

    Call arguments:
        inputs: `target_ids`, `(target_ids,)` or `{"target_ids": …}`: integers `(batch, target)`,
            padded with 0.
        training: Whether dropout is active.

    Returns:
        Logits, float `(batch, target, vocabulary)` in the compute dtype.

    Reference: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training".

    Example:

    >>> config = LanguageModelConfig(vocabulary_size=100, model_dim=32, num_heads=2)
    >>> tuple(LanguageModel(config)(keras.ops.ones((2, 7), dtype="int32")).shape)
    (2, 7, 100)
    """

    config_class = LanguageModelConfig
    input_names = ("target_ids",)

    def _make_layers(self):
        config = self.config
        is_tied, biased = config.tie_embeddings == "all", config.output_bias
        table = config.vocabulary_size, biased and is_tied
        self.target_embedding = self._embedding("target", *table)
        if is_tied:
            # Saved files of models have this table under this name.
            self.source_embedding = self.target_embedding
        self.output_projection = None if is_tied else self._projection(biased)
        self.target_positions = self._positions("target")
        self.embedding_dropout = self._dropout()
        self.decoder = Decoder(config, dtype=self.dtype_policy, name="decoder")

    def build(self, input_shape=None):
        if not self.built:
            self._build_for_width(self.target_embedding, self.output_projection)
            self._build_for_width(self.target_positions, self.embedding_dropout, self.decoder)
            self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> keras.KerasTensor:
        (ids,) = self._sequences(inputs)
        hidden = self._embed(ids, self.target_embedding, self.target_positions, training)
        mask = masks.padding_mask(ids)
        return self._logits(self.decoder(hidden, decoder_padding_mask=mask, training=training))

    def call_with_attention(
        self, source_ids: keras.KerasTensor, target_ids: keras.KerasTensor
    ) -> tuple[keras.KerasTensor, tuple[()]]:
        """Calls the model for a scorer: float32 logits, and no attention to a source."""
        return ops.cast(self(target_ids), "float32"), ()


@keras.saving.register_keras_serializable(package="keras_transformer")
class Classifier(EncodingModel):
    """Encoder, pooling and a dense layer, from the ids of a text to the logits of its label.

    A label is a target of one token, so that losses and metrics are the same as in other models,
    with `ignore_id=NO_LABEL`: 0 is a label.

    Args:
        config: Sizes and options of the layers, a `ClassifierConfig`.

    Call arguments:
        inputs: `source_ids`, `(source_ids,)` or `{"source_ids": …}`: integers `(batch, source)`,
            padded with 0.
        training: Whether dropout is active.

    Returns:
        Logits, float `(batch, 1, labels)` in the compute dtype.

    Example:

    >>> model = Classifier(ClassifierConfig(vocabulary_size=100, target_vocabulary_size=6))
    >>> tuple(model(keras.ops.ones((2, 7), dtype="int32")).shape)
    (2, 1, 6)
    """

    config_class = ClassifierConfig
    input_names = ("source_ids",)

    def _make_layers(self):
        config, policy = self.config, self.dtype_policy
        self.source_embedding = self._embedding("source", config.vocabulary_size)
        self.output_projection = self._projection(use_bias=True)
        self.source_positions = self._positions("source")
        self.embedding_dropout = self._dropout()
        self.encoder = Encoder(config, dtype=policy, name="encoder")
        self.word_dropout = keras.layers.Dropout(
            config.word_dropout, noise_shape=(None, None, 1), dtype=policy
        )
        self.pooling = MaskedPooling(config.pooling, dtype=policy, name="pooling")

    def build(self, input_shape=None):
        if not self.built:
            self._build_for_width(self.source_embedding, self.word_dropout, self.source_positions)
            self._build_for_width(self.encoder, self.pooling)
            for layer in (self.embedding_dropout, self.output_projection):
                layer.build((None, self.config.model_dim))
            self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> keras.KerasTensor:
        (source_ids,) = self._sequences(inputs)
        encoded, mask = self.encode(source_ids, training=training)
        pooled = self.embedding_dropout(self.pooling(encoded, mask), training=training)
        return ops.expand_dims(self.output_projection(pooled), 1)

    def _embedded(self, ids, embedding, training):
        return self.word_dropout(embedding(ids), training=training)


KINDS = {
    TransformerConfig: Transformer,
    RecurrentConfig: RecurrentTranslator,
    ClassifierConfig: Classifier,
    LanguageModelConfig: LanguageModel,
}
"""Model of each kind of configuration."""


def model_of(config: ModelConfig, **options):
    """Makes a freshly initialized model; the options are `keras.Model`'s."""
    return KINDS[type(config)](config, **options)
