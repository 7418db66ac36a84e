"""Positions concatenated to the features of a token."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.projection import Projection


@keras.saving.register_keras_serializable(package="keras_transformer")
class ConcatenatedPositions(keras.layers.Layer):
    """Puts a token's features and its position's side by side and projects both to the width.

    Args:
        positions: A layer that adds vectors of positions to its inputs, as
            `SinusoidalPositionalEncoding` and `LearnedPositionalEmbedding` do. Several layers may
            share one.

    Call arguments: those of `positions`.

    Masking: a Keras mask on `inputs` is passed on.

    Returns:
        Float of the inputs' shape, in the compute dtype.

    The projection of both is the sum of one of each: unlike a plain sum, the model learns which
    directions positions take.
    """

    def __init__(self, positions: keras.layers.Layer, **kwargs: Any):
        super().__init__(**kwargs)
        self.positions = positions
        self.supports_masking = True
        self._allow_non_tensor_positional_args = True

    def build(self, input_shape):
        width = input_shape[-1]
        if not self.positions.built:
            self.positions.build(input_shape)
        self.projection = Projection(
            "btd,du->btu", (None, width), dtype=self.dtype_policy, name="projection"
        )
        self.projection.build((*input_shape[:-1], 2 * width))

    def call(
        self, inputs: keras.KerasTensor, start_index: int | keras.KerasTensor = 0
    ) -> keras.KerasTensor:
        positions = self.positions(ops.zeros_like(inputs), start_index=start_index)
        return self.projection(ops.concatenate([inputs, positions], axis=-1))

    def get_config(self):
        # Twice: in the file of a model, Keras marks what it serializes again as shared.
        keras.saving.serialize_keras_object(self.positions)
        positions = keras.saving.serialize_keras_object(self.positions)
        return {**super().get_config(), "positions": positions}

    @classmethod
    def from_config(cls, config):
        positions = keras.saving.deserialize_keras_object(config["positions"])
        return cls(**{**config, "positions": positions})
