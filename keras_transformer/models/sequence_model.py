"""The base of all models: ids in, logits out, described whole by a configuration."""

from typing import Any

import keras

from keras_transformer.config import ModelConfig
from keras_transformer.layers import TokenEmbedding


class SequenceModel(keras.Model):
    """A model of a configuration; a subclass makes its layers in `_make_layers` and builds them.

    Args:
        config: Of the subclass' `config_class`.
    """

    config_class: type[ModelConfig]

    def __init__(self, config: ModelConfig, **kwargs: Any):
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
        self.target_embedding = self._embedding("target", self.config.output_vocabulary_size)
        self.source_embedding = self.target_embedding
        if tied != "all":
            self.source_embedding = self._embedding("source", self.config.vocabulary_size)
        self.output_projection = self._projection() if tied == "none" else None

    def _embedding(self, side, vocabulary_size):
        width, name = self.config.model_dim, f"{side}_embedding"
        return TokenEmbedding(vocabulary_size, width, dtype=self.dtype_policy, name=name)

    def _projection(self, use_bias=False):
        size = self.config.output_vocabulary_size
        return keras.layers.Dense(size, use_bias=use_bias, dtype=self.dtype_policy, name="output")

    def _build_for_width(self, *layers):
        """Builds layers over vectors of the model's width; None and built ones are left out."""
        for layer in layers:
            if layer is not None and not layer.built:
                layer.build((None, None, self.config.model_dim))

    def _logits(self, hidden):
        if self.output_projection is not None:
            return self.output_projection(hidden)
        return self.target_embedding.project(hidden)

    def reorder(self, cache: Any, parents: keras.KerasTensor) -> Any:
        """Lets each hypothesis go on from the one of `parents`; see `DecodingCache.reorder`."""
        return cache.reorder(parents)

    def get_config(self):
        policy = self.dtype_policy
        quantized = {
            layer.path: layer.dtype_policy
            for layer in self._flatten_layers()
            if layer.quantization_mode is not None
        }
        if quantized and not isinstance(policy, keras.dtype_policies.DTypePolicyMap):
            # The configuration that Keras loads a model from must say which layers are quantized.
            policy = keras.dtype_policies.DTypePolicyMap(policy.name, quantized)
        return {
            **super().get_config(),
            "dtype": keras.dtype_policies.serialize(policy),
            "config": self.config.to_dict(),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**{**config, "config": cls.config_class.from_dict(config["config"])})


def two_sequences(inputs: Any) -> Any:
    """Returns `source_ids` and `target_ids` of a pair or a dict with these keys."""
    if isinstance(inputs, dict):
        if {"source_ids", "target_ids"} - set(inputs):
            raise ValueError(
                'The inputs must hold "source_ids" and "target_ids". '
                f"Received: keys {sorted(inputs)}."
            )
        return inputs["source_ids"], inputs["target_ids"]
    if not isinstance(inputs, (tuple, list)) or len(inputs) != 2:
        raise ValueError(
            f"The inputs must be (source_ids, target_ids). Received: {_description(inputs)}."
        )
    return inputs


def one_sequence(inputs: Any) -> Any:
    """Returns the ids of `ids` or `(ids,)`."""
    if isinstance(inputs, (tuple, list)):
        if len(inputs) != 1:
            raise ValueError(f"The inputs must be ids. Received: {_description(inputs)}.")
        return inputs[0]
    return inputs


def _description(inputs):
    name = type(inputs).__name__
    if isinstance(inputs, (tuple, list)):
        return f"{name} of {len(inputs)}"
    return f"{name} of shape {tuple(inputs.shape)}" if hasattr(inputs, "shape") else name
