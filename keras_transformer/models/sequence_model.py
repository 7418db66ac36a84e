"""What all models share: ids in, logits out, the tables that both may read, and a configuration."""

from typing import Any

import keras

from keras_transformer.config import ModelConfig
from keras_transformer.layers import TokenEmbedding


class SequenceModel(keras.Model):
    """A model that its configuration describes whole; a subclass makes and builds its layers.

    Args:
        config: Of the subclass' `config_class`.
    """

    config_class: type[ModelConfig]

    def __init__(self, config: ModelConfig, **kwargs: Any):
        super().__init__(**kwargs)
        # Ids must stay integers; every sublayer casts for itself.
        self.autocast = False
        self.config = config
        self._make_layers()
        self.build()

    def _make_layers(self):
        """Embeddings, of each side that there is, and the logits' projection."""
        config, policy, width = self.config, self.dtype_policy, self.config.model_dim
        sizes = config.vocabulary_size, config.output_vocabulary_size
        encodes, decodes = config.num_encoder_layers > 0, config.num_decoder_layers > 0
        options = {"model_dim": width, "dtype": policy}
        if decodes:
            self.target_embedding = TokenEmbedding(sizes[1], name="target_embedding", **options)
        if decodes and config.tie_embeddings == "all":
            self.source_embedding = self.target_embedding
        elif encodes:
            self.source_embedding = TokenEmbedding(sizes[0], name="source_embedding", **options)
        self.output_projection = None
        if config.tie_embeddings == "none":
            self.output_projection = keras.layers.Dense(
                sizes[1], use_bias=not decodes, dtype=policy, name="output"
            )

    def _build_layers(self):
        for name in ("source_embedding", "target_embedding"):
            layer = getattr(self, name, None)
            if layer is not None and not layer.built:
                layer.build((None, None))
        if self.output_projection is not None:
            self.output_projection.build((None, None, self.config.model_dim))

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
            # What Keras loads a model from must say which layers are quantized.
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
    """`source_ids` and `target_ids`, as a pair or a dict with these keys; others are an error."""
    if isinstance(inputs, dict):
        missing = {"source_ids", "target_ids"} - set(inputs)
        if missing:
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


def _description(inputs):
    name = type(inputs).__name__
    if isinstance(inputs, (tuple, list)):
        return f"{name} of {len(inputs)}"
    return f"{name} of shape {tuple(inputs.shape)}" if hasattr(inputs, "shape") else name
