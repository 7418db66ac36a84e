"""Ids to vectors, and vectors back to logits with one matrix."""

import math
from typing import Any

import keras
from keras import ops

from keras_transformer.options import check_positive


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenEmbedding(keras.layers.Layer):
    """Looks ids up in a table and scales them by √model_dim.

    The table, unscaled and transposed, is also the output projection (`project`): that ties
    input and output. Initial values are drawn from N(0, 1/√model_dim), so that a scaled
    embedding has the size of a positional encoding and a logit has unit variance.

    Args:
        vocabulary_size: Number of ids.
        model_dim: Width of a vector.
        output_bias: Whether `project` adds a trained bias.

    Call arguments:
        inputs: Integer `(batch, length)`.

    Masking: none is made; pass `layers.masks.padding_mask(ids)` on explicitly.

    Returns:
        Float `(batch, length, model_dim)` in the compute dtype.

    Raises:
        ValueError: A size is not positive.

    Reference: Vaswani et al. 2017, section 3.4 (arXiv:1706.03762); Press & Wolf 2017
    (arXiv:1608.05859).
    """

    def __init__(
        self, vocabulary_size: int, model_dim: int, output_bias: bool = False, **kwargs: Any
    ):
        # Ids must stay integers: autocast would turn them into the compute dtype.
        super().__init__(autocast=False, **kwargs)
        check_positive(vocabulary_size=vocabulary_size, model_dim=model_dim)
        self.vocabulary_size = vocabulary_size
        self.model_dim = model_dim
        self.has_output_bias, self.output_bias = output_bias, None
        self.supports_masking = True

    def build(self, input_shape=None):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.vocabulary_size, self.model_dim),
            initializer=keras.initializers.RandomNormal(stddev=self.model_dim**-0.5),
        )
        if self.has_output_bias:
            self.output_bias = self.add_weight(
                name="output_bias", shape=(self.vocabulary_size,), initializer="zeros"
            )

    def call(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        table = ops.convert_to_tensor(self.embeddings)
        vectors = ops.take(table, ops.cast(inputs, "int32"), axis=0)
        return ops.cast(vectors, self.compute_dtype) * math.sqrt(self.model_dim)

    def project(self, hidden: keras.KerasTensor) -> keras.KerasTensor:
        """Logits of each id: `hidden · embeddingsᵀ`, plus the output bias.

        From float `(…, model_dim)` to float `(…, vocabulary_size)` in the compute dtype.
        """
        table = ops.cast(ops.convert_to_tensor(self.embeddings), self.compute_dtype)
        logits = ops.matmul(ops.cast(hidden, self.compute_dtype), ops.transpose(table))
        if self.output_bias is None:
            return logits
        return logits + ops.cast(ops.convert_to_tensor(self.output_bias), self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.model_dim)

    def get_config(self):
        arguments = {"vocabulary_size": self.vocabulary_size, "model_dim": self.model_dim}
        return {**super().get_config(), **arguments, "output_bias": self.has_output_bias}
