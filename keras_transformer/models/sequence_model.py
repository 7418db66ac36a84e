"""The base of all models, and the two sides of a Transformer, which read ids."""

import os
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.base.ids import EOS_ID
from keras_transformer.layers import (
    ConcatenatedPositions,
    LearnedPositionalEmbedding,
    SinusoidalPositionalEncoding,
    TokenEmbedding,
    masks,
)
from keras_transformer.layers.kv_cache import DecodingCache
from keras_transformer.layers.projection import Dense
from keras_transformer.layers.quantization import dtype_config
from keras_transformer.models.config import ModelConfig
from keras_transformer.models.stacks import Decoder, Encoder, same_turn, turn_numbers
from keras_transformer.models.step_weights import (
    StepWeights,
    prepare_step_weights,
    projection_to,
    with_step_weights,
)


def _how_to_make(model_class, received):
    """Returns the message of an error about a model that is made without its configuration."""
    name, config = model_class.__name__, model_class.config_class.__name__
    calls = [f"{name}({config}(vocabulary_size=8000))"]
    if hasattr(model_class, "from_preset"):
        calls.append(f'{name}.from_preset("transformer_tiny", vocabulary_size=8000)')
    received_options = (
        ", ".join(f"{key}={value!r:.200}" for key, value in received.items()) or "nothing"
    )
    return f"`{name}` is made of a `{config}`: {' or '.join(calls)}. Received: {received_options}."


class SequenceModel(keras.Model):
    """A model of a configuration; a subclass makes its layers in `_make_layers` and builds them.

    Args:
        config: An instance of the subclass' `config_class`.

    Attributes:
        input_names: Names of the sequences of ids that a call takes, in this order.
    """

    config_class: type[ModelConfig]
    input_names: tuple[str, ...] = ("source_ids", "target_ids")
    embedding_dropout: keras.layers.Dropout
    is_extendable = True  # A decoding cache can grow.
    can_shrink = True  # The batch is the first axis of its tensors.
    has_candidate_logits = False
    has_unknown_id = True

    def __init__(self, config: ModelConfig | None = None, **kwargs: Any):
        if not isinstance(config, self.config_class):
            received = {"config": config, **kwargs} if config is not None else kwargs
            raise ValueError(_how_to_make(type(self), received))
        super().__init__(**kwargs)
        # Ids must stay integers; every sublayer casts for itself.
        self.autocast = False
        self.config: Any = config
        self._make_layers()
        self.build()

    def _make_layers(self):
        raise NotImplementedError

    def _make_translation_tables(self):
        """Makes the embeddings of both sides and the logits' projection, shared as configured."""
        tied = self.config.tie_embeddings
        biased = self.config.output_bias
        size = self.config.output_vocabulary_size
        self.target_embedding = self._embedding("target", size, biased and tied != "none")
        self.source_embedding = self.target_embedding
        if tied != "all":
            self.source_embedding = self._embedding("source", self.config.vocabulary_size)
        self.output_projection = self._projection(biased) if tied == "none" else None

    def _embedding(self, side, vocabulary_size, output_bias=False):
        sizes, name = (vocabulary_size, self.config.model_dim), f"{side}_embedding"
        options = {"mask_zero": False, "dtype": self.dtype_policy, "name": name}
        return TokenEmbedding(*sizes, output_bias, **options)  # The models give masks by hand.

    def _projection(self, use_bias=False):
        size = self.config.output_vocabulary_size
        return Dense(size, use_bias=use_bias, dtype=self.dtype_policy, name="output")

    def _positions(self, side):
        """Makes the layer of vectors of positions, where there are such vectors."""
        config, policy, name = self.config, self.dtype_policy, f"{side}_positions"
        if config.positions not in ("sinusoidal", "learned"):
            return None
        concatenates = config.combine_positions == "concatenate"
        options = {"dtype": policy, "name": "positions" if concatenates else name}
        if config.positions == "learned":
            layer = LearnedPositionalEmbedding(config.max_length, **options)
        else:
            options |= {
                "layout": config.position_layout,
                "frequencies": config.position_frequencies,
                "offset": config.position_offset,
            }
            layer = SinusoidalPositionalEncoding(**options)
        return ConcatenatedPositions(layer, dtype=policy, name=name) if concatenates else layer

    def _dropout(self):
        return keras.layers.Dropout(self.config.dropout, dtype=self.dtype_policy)

    def _embed(self, ids, embedding, positions, training=None, start_index=0):
        embedded = self._embedded(ids, embedding, training)
        if positions is not None:
            embedded = positions(embedded, start_index=start_index)
        return self.embedding_dropout(embedded, training=training)

    def _embedded(self, ids, embedding, training):
        return embedding(ids)

    def _build_for_width(self, *layers):
        """Builds layers that make or read vectors of the model's width.

        Skips None and a shared layer that is built already.
        """
        for layer in layers:
            # A layer without weights is built, too: `summary` shows the shape.
            if layer is not None and not (layer.built and layer.weights):
                width = () if isinstance(layer, TokenEmbedding) else (self.config.model_dim,)
                layer.build((None, None, *width))

    def _logits(self, hidden):
        if self.output_projection is not None:
            return self.output_projection(hidden)
        return self.target_embedding.project(hidden)

    def _sequences(self, inputs):
        """Returns the ids of each of `input_names`, from a tuple in this order or a dict by name.

        Ids without a tuple or a dict are a model's only sequence.
        """
        names = self.input_names
        if isinstance(inputs, dict):
            if set(names) - set(inputs):
                expected_names = " and ".join(f'"{name}"' for name in names)
                raise ValueError(
                    f"The inputs must hold {expected_names}. Received: keys {sorted(inputs)}."
                )
            return tuple(inputs[name] for name in names)
        sequences = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
        if len(sequences) != len(names):
            raise ValueError(
                f"The inputs must be ({', '.join(names)}). Received: {_description(inputs)}."
            )
        return sequences

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Returns the shape of the logits; the shapes of ids are given as `call` takes ids."""
        ids = keras.tree.map_shape_structure(
            lambda shape: keras.KerasTensor(shape, "int32"), input_shape
        )
        return self.compute_output_spec(ids).shape

    def compute_output_spec(self, *args, **kwargs):
        # Keras would call `compute_output_shape`, which calls this.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def export(
        self,
        filepath: str | os.PathLike,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> None:
        """Exports the call from ids to logits, as `keras.Model.export` does.

        By default the artifact takes int32 ids `(batch, length)` of any batch size and length,
        under the names of `input_names`.
        """
        if input_signature is None:
            ids = {
                name: keras.InputSpec(shape=(None, None), dtype="int32", name=name)
                for name in self.input_names
            }
            input_signature = [ids if len(ids) > 1 else ids[self.input_names[0]]]
        super().export(filepath, format, verbose, input_signature, **kwargs)

    @property
    def output_bias(self) -> keras.Variable | None:
        """Bias of the logits, `(target vocabulary,)`, where the model has one."""
        if self.output_projection is not None:
            return self.output_projection.bias
        return self.target_embedding.output_bias

    # A search needs these, and `start_decoding` and `step`: see `decoding.search.SearchModel`.

    @property
    def position_limit(self) -> int | None:
        """Number of target positions that the model has vectors for; None: any number."""
        return self.config.position_limit

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        """Ids that no translation contains: the separator of turns."""
        return () if self.config.turn_id is None else (self.config.turn_id,)

    def extended(self, cache: Any, capacity: int) -> Any:
        """Returns a cache with capacity for `capacity` steps."""
        return cache.extended(capacity)

    def step_weights(self, one_row: bool = False, cached: bool = False) -> StepWeights | None:
        """Prepares the weights for a loop of steps; None where the layers' own are used."""
        return None

    def step_function(self, weights: StepWeights | None = None) -> Callable[..., tuple]:
        """Returns `step` for a loop."""
        return self.step

    def reorder(self, cache: Any, parents: keras.KerasTensor) -> Any:
        """Lets each hypothesis continue its entry of `parents`; see `DecodingCache.reorder`."""
        return cache.reorder(parents)

    def get_config(self):
        own = {"config": self.config.to_dict()}
        return {**super().get_config(), **dtype_config(self), **own}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**{**config, "config": cls.config_class.from_dict(config["config"])})


class EncodingModel(SequenceModel):
    """A model with an encoder of source ids."""

    encoder: Encoder
    turns: Any = None

    def encode(
        self, source_ids: keras.KerasTensor, training: bool | None = None
    ) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        """Encodes integers `(batch, source)`, padded with 0.

        Returns:
            Float `(batch, source, model_dim)` and the mask of the tokens that are attended to,
            `(batch, source)`.
        """
        mask = masks.padding_mask(source_ids)
        if not self.config.source_eos:
            mask = ops.logical_and(mask, ops.not_equal(source_ids, EOS_ID))
        embedded = self._embed(source_ids, self.source_embedding, self.source_positions, training)
        if self.turns is None:
            return self.encoder(embedded, padding_mask=mask, training=training), mask
        turn = turn_numbers(source_ids, self.config.turn_id)
        encoded = self.encoder(embedded, mask, training=training, attention_mask=same_turn(turn))
        return self.turns(encoded, turn, mask, training=training), mask


class DecodingModel(SequenceModel):
    """A model with a decoder of target ids, all at once or step by step with a cache."""

    decoder: Decoder
    has_candidate_logits = True

    def _encoded_source(self, source_ids):
        """Returns the keys and values of the source for each block, and their mask."""
        return (), ()

    def start_decoding(
        self,
        source_ids: keras.KerasTensor,
        max_length: int | keras.KerasTensor,
        num_beams: int = 1,
    ) -> DecodingCache:
        """Encodes the source once and makes the cache of the first `step`.

        Args:
            source_ids: Integer `(batch, source)`.
            max_length: Steps that the cache has capacity for.
            num_beams: Hypotheses for each sentence.
        """
        limit = self.config.position_limit
        if limit is not None and isinstance(max_length, int) and max_length > limit:
            raise ValueError(
                "Decoding must end within the learned positions. Received: "
                f"max_length={max_length}, the model's max_length={limit}."
            )
        cross_key_values, cross_mask = self._encoded_source(source_ids)
        batch = ops.shape(source_ids)[0]
        return DecodingCache(
            layers=self.decoder.start(batch, num_beams, max_length),
            cross_key_values=cross_key_values,
            cross_mask=cross_mask,
            lineage=ops.zeros((batch, num_beams, max_length * num_beams), "bool"),
            position=ops.zeros((), "int32"),
        )

    def step(
        self, ids: keras.KerasTensor, cache: DecodingCache
    ) -> tuple[keras.KerasTensor, DecodingCache]:
        """Scores the continuations of each hypothesis after one more token.

        Args:
            ids: Integer `(batch, beams)`, the newest token of each hypothesis.
            cache: `DecodingCache` of the tokens before.

        Returns:
            Logits, float32 `(batch, beams, target vocabulary)`, and the next `DecodingCache`.
        """
        return self.step_function()(ids, cache)

    def step_weights(self, one_row: bool = False, cached: bool = False) -> StepWeights:
        """Prepares the weights for a loop of steps; see `models.step_weights`."""
        return prepare_step_weights(self, one_row, cached)

    def step_function(
        self, weights: StepWeights | None = None, candidates: keras.KerasTensor | None = None
    ) -> Callable[[keras.KerasTensor, DecodingCache], tuple[keras.KerasTensor, DecodingCache]]:
        """Returns `step` for a loop.

        Args:
            weights: Result of `step_weights`, made before the loop; by default the layers' weights.
            candidates: Int32 `(count,)`, the ids whose logits a step returns; by default all ids.
        """
        sublayers, project = None, self._logits
        if weights is not None:
            sublayers, project = with_step_weights(self, weights)
        if candidates is not None:
            project = projection_to(self, candidates, project)

        def step(ids, cache):
            beams, width = cache.num_beams, self.config.model_dim
            embedded = self._embed(
                ops.reshape(ids, (-1, 1)),
                self.target_embedding,
                self.target_positions,
                start_index=cache.position,
            )  # --> [batch * beams, 1, model_dim]
            past, lineage = cache.begin_step()
            hidden, layers = self.decoder.step(
                ops.reshape(embedded, (-1, beams, width)),
                cache.layers,
                past,
                cache.cross_key_values,
                cache.cross_mask,
                sublayers,
            )
            logits = project(hidden)
            cache = cache._replace(layers=layers, lineage=lineage, position=cache.position + 1)
            return ops.cast(logits, "float32"), cache

        return step


def _description(inputs):
    name = type(inputs).__name__
    if isinstance(inputs, (tuple, list)):
        return f"{name} of {len(inputs)}"
    return f"{name} of shape {tuple(inputs.shape)}" if hasattr(inputs, "shape") else name
