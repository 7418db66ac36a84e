"""The encoder-decoder Transformer, for training and for step-wise decoding."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.cache import DecodingCache, KeyValue, mean_of_heads
from keras_transformer.config import TransformerConfig
from keras_transformer.layers import (
    ConcatenatedPositions,
    LearnedPositionalEmbedding,
    SinusoidalPositionalEncoding,
)
from keras_transformer.models.sequence_model import SequenceModel, two_sequences
from keras_transformer.models.stacks import Decoder, Encoder
from keras_transformer.models.step_weights import StepWeights, bind, lay_out
from keras_transformer.models.turns import TurnEncoder, same_turn, turn_numbers


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(SequenceModel):
    """Encoder-decoder Transformer from ids to logits.

    Args:
        config: `TransformerConfig`.

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
    >>> model((ids, ids)).shape
    (2, 7, 100)
    """

    config_class = TransformerConfig
    config: TransformerConfig

    def _make_layers(self):
        super()._make_layers()
        config, policy = self.config, self.dtype_policy
        encodes, decodes = config.num_encoder_layers > 0, config.num_decoder_layers > 0
        self.source_positions = self._position_layer("source_positions") if encodes else None
        self.target_positions = self._position_layer("target_positions") if decodes else None
        self.embedding_dropout = keras.layers.Dropout(config.dropout, dtype=policy)
        self.encoder = Encoder(config, dtype=policy, name="encoder") if encodes else None
        self.decoder = Decoder(config, dtype=policy, name="decoder") if decodes else None
        self.turns = TurnEncoder(config, dtype=policy, name="turns") if config.turn_layers else None

    def _position_layer(self, name):
        config, policy = self.config, self.dtype_policy
        if config.positions not in ("sinusoidal", "learned"):
            return None
        joined = config.combine_positions == "concatenate"
        own = {"dtype": policy, "name": "positions" if joined else name}
        if config.positions == "learned":
            layer = LearnedPositionalEmbedding(config.max_length, **own)
        else:
            layer = SinusoidalPositionalEncoding(**own)
        return ConcatenatedPositions(layer, dtype=policy, name=name) if joined else layer

    @classmethod
    def from_preset(cls, preset: str, vocabulary_size: int, **fields: Any) -> "Transformer":
        """A freshly initialized model of a named size; see `TransformerConfig.from_preset`."""
        return cls(TransformerConfig.from_preset(preset, vocabulary_size, **fields))

    def build(self, input_shape=None):
        if self.built:
            return
        shape = (None, None, self.config.model_dim)
        self._build_layers()
        for layer in (self.source_positions, self.encoder, self.turns, self.target_positions):
            if layer is not None:
                layer.build(shape)
        if self.decoder is not None:
            self.decoder.build(shape, None if self.encoder is None else shape)
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> keras.KerasTensor:
        source_ids, target_ids = two_sequences(inputs)
        encoded, source_mask = self.encode(source_ids, training=training)
        hidden = self.decoder(
            self._embed(target_ids, self.target_embedding, self.target_positions, training),
            encoded,
            decoder_padding_mask=masks.padding_mask(target_ids),
            encoder_padding_mask=source_mask,
            training=training,
        )
        return self._logits(hidden)

    def encode(
        self, source_ids: keras.KerasTensor, training: bool | None = None
    ) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        """The encoder's output, float `(batch, source, model_dim)`, and the mask of real tokens."""
        mask = masks.padding_mask(source_ids)
        embedded = self._embed(source_ids, self.source_embedding, self.source_positions, training)
        if self.turns is None:
            return self.encoder(embedded, padding_mask=mask, training=training), mask
        turn = turn_numbers(source_ids, self.config.turn_id)
        encoded = self.encoder(embedded, mask, training=training, attention_mask=same_turn(turn))
        return self.turns(encoded, turn, mask, training=training), mask

    def _embed(self, ids, embedding, positions, training=None, start_index=0):
        embedded = self._embedded(ids, embedding, training)
        if positions is not None:
            embedded = positions(embedded, start_index=start_index)
        return self.embedding_dropout(embedded, training=training)

    def _embedded(self, ids, embedding, training):
        return embedding(ids)

    def start_decoding(
        self,
        source_ids: keras.KerasTensor,
        max_length: int | keras.KerasTensor,
        num_beams: int = 1,
        with_attention: bool = False,
    ) -> DecodingCache:
        """Encodes once and makes the cache that `step` goes on from.

        Args:
            source_ids: Integer `(batch, source)`.
            max_length: Steps that the cache has capacity for.
            num_beams: Hypotheses for each sentence.
            with_attention: Whether each step leaves its attention to the source in the cache.
        """
        config = self.config
        limit = config.position_limit
        if limit is not None and isinstance(max_length, int) and max_length > limit:
            raise ValueError(
                "Decoding must end within the learned positions. Received: "
                f"max_length={max_length}, the model's max_length={limit}."
            )
        encoded, source_mask = self.encode(source_ids)
        batch, slots = ops.shape(source_ids)[0], max_length * num_beams
        widths = slots, config.key_dim, config.key_dim
        layers = tuple(
            KeyValue.empty(batch, config.num_kv_heads or heads, *widths, self.compute_dtype)
            for heads in config.heads_of("decoder")
        )
        attention = ()
        if with_attention:
            attention = ops.zeros((batch, num_beams, ops.shape(source_ids)[1]), "float32")
        return DecodingCache(
            layers=layers,
            cross_key_values=self.decoder.project_encoder_sequence(encoded),
            cross_mask=() if source_mask is None else masks.key_mask(source_mask),
            lineage=ops.zeros((batch, num_beams, slots), "bool"),
            position=ops.zeros((), "int32"),
            attention=attention,
        )

    def step(
        self, ids: keras.KerasTensor, cache: DecodingCache
    ) -> tuple[keras.KerasTensor, DecodingCache]:
        """Scores what follows one more token of each hypothesis.

        Args:
            ids: Integer `(batch, beams)`, the newest token of each hypothesis.
            cache: `DecodingCache`.

        Returns:
            Logits, float32 `(batch, beams, target vocabulary)`, and the next `DecodingCache`.
        """
        return self.step_function()(ids, cache)

    def step_weights(self, one_row: bool = False, kept: bool = False) -> StepWeights:
        """The weights laid out for a loop of steps; see `models.step_weights.lay_out`."""
        return lay_out(self, one_row, kept)

    def step_function(
        self,
        attention_layer: int = -1,
        attention_heads: tuple[int, ...] | None = None,
        weights: StepWeights | None = None,
    ) -> Callable[[keras.KerasTensor, DecodingCache], tuple[keras.KerasTensor, DecodingCache]]:
        """`step` for a loop.

        Args:
            attention_layer: The block whose attention to the source is left in the cache, where
                the cache was made for it; counted from 0, negative from the last.
            attention_heads: A tuple of the heads whose mean that is; all by default.
            weights: What `step_weights` gave, before the loop; by default the layers' own.
        """
        sublayers, project = (None, self._logits) if weights is None else bind(self, weights)

        def step(ids, cache):
            beams, width = cache.lineage.shape[1], self.config.model_dim
            embedded = self._embed(
                ops.reshape(ids, (-1, 1)),
                self.target_embedding,
                self.target_positions,
                start_index=cache.position,
            )
            slot = cache.position * beams
            own = ops.broadcast_to(ops.eye(beams, dtype="bool"), (ops.shape(ids)[0], beams, beams))
            lineage = ops.slice_update(cache.lineage, (0, 0, slot), own)
            # All entries of a step have its number as their position.
            positions = (
                ops.repeat(ops.expand_dims(cache.position, 0), beams),
                ops.arange(ops.shape(lineage)[2]) // beams,
            )
            hidden, layers, attention = self.decoder.step(
                ops.reshape(embedded, (-1, beams, width)),
                cache.layers,
                slot,
                ops.expand_dims(lineage, 1),
                cache.cross_key_values,
                cache.cross_mask,
                sublayers,
                positions,
            )
            if not isinstance(cache.attention, tuple):
                cache = cache._replace(
                    attention=mean_of_heads(attention[attention_layer], attention_heads)
                )
            logits = project(hidden)
            cache = cache._replace(layers=layers, lineage=lineage, position=cache.position + 1)
            return ops.cast(logits, "float32"), cache

        return step

    def call_with_attention(
        self, source_ids: keras.KerasTensor, target_ids: keras.KerasTensor
    ) -> tuple[keras.KerasTensor, tuple[keras.KerasTensor, ...]]:
        """As `call`, with the attention of each block to the source.

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
