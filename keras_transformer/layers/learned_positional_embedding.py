"""Positions as a trained table."""

from typing import Any

import keras
from keras import ops

from keras_transformer.config import check_positive


@keras.saving.register_keras_serializable(package="keras_transformer")
class LearnedPositionalEmbedding(keras.layers.Layer):
    """Adds one trained vector for each position.

    Args:
        max_length: Number of positions that have a vector, in tokens.

    Call arguments:
        inputs: Float `(batch, length, model_dim)`.
        start_index: Position of the first token, an integer or an integer scalar tensor.

    Masking: a Keras mask on `inputs` is passed on; padding gets a position like all else.

    Returns:
        `inputs` + embedding, of the same shape, in the compute dtype.

    Raises:
        ValueError: `max_length` is not positive, or the sequence goes past it. Only a length
            and a start that are known when the graph is built can be checked; past the table
            the outputs of others are NaN, where the processor does not raise an error itself.

    Reference: Gehring et al. 2017, section 3.1 (arXiv:1705.03122); compared with sinusoids in
    Vaswani et al. 2017, table 3 row E (arXiv:1706.03762).
    """

    def __init__(self, max_length: int, **kwargs: Any):
        super().__init__(**kwargs)
        check_positive(max_length=max_length)
        self.max_length = max_length
        self.supports_masking = True
        self._allow_non_tensor_positional_args = True

    def build(self, input_shape):
        width = input_shape[-1]
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_length, width),
            initializer=keras.initializers.RandomNormal(stddev=width**-0.5),
        )

    def call(
        self, inputs: keras.KerasTensor, start_index: int | keras.KerasTensor = 0
    ) -> keras.KerasTensor:
        length = inputs.shape[1]
        known = isinstance(length, int) and isinstance(start_index, int)
        if known and start_index + length > self.max_length:
            raise ValueError(
                "The sequence must end within `max_length`. Received: "
                f"max_length={self.max_length}, start_index={start_index}, length={length}."
            )
        positions = ops.cast(start_index, "int32") + ops.arange(ops.shape(inputs)[1], dtype="int32")
        embedding = ops.take(ops.convert_to_tensor(self.embeddings), positions, axis=0)
        if not known:
            # XLA reads the last row for every place past it: silently wrong, where NaN shows.
            inside = ops.expand_dims(positions < self.max_length, 1)
            embedding = ops.where(inside, embedding, float("nan"))
        return inputs + ops.cast(embedding, inputs.dtype)

    def get_config(self):
        return {**super().get_config(), "max_length": self.max_length}
