"""Pooling of a sequence of vectors to one."""

from typing import Any, Literal

import keras
from keras import ops

from keras_transformer.base.options import check_choice
from keras_transformer.layers import masks
from keras_transformer.layers.quantization import dtype_config

POOLINGS = ("mean", "max", "attention")


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedPooling(keras.layers.Layer):
    """The mean, the largest, or a learned weighted sum of the vectors of non-padding tokens.

    Args:
        mode: `"mean"`, `"max"` (of each feature by itself) or `"attention"`: weights are the
            softmax of one learned product with each vector.

    Call arguments:
        inputs: Float `(batch, length, features)`.
        padding_mask: Bool `(batch, length)`, True = not padding; by default all are. Padding has
            no effect; without a non-padding token the result is 0.
        mask, inputs_mask: Bool `(batch, length)`: one of these is the mask that Keras attached to
            `inputs`.

    Masking: all masks are combined. The result has no length and no mask.

    Returns:
        Float `(batch, features)` in the compute dtype. Sums are made in float32.

    Raises:
        ValueError: There is no such mode, or a mask is float or has another shape.

    References: Kim 2014 (arXiv:1408.5882), the largest; Lin et al. 2017 (arXiv:1703.03130),
    attention with one hop.
    """

    def __init__(self, mode: Literal["mean", "max", "attention"] = "mean", **kwargs: Any):
        super().__init__(**kwargs)
        check_choice("mode", mode, POOLINGS)
        self.mode = mode
        self.score: Any = None
        if mode == "attention":
            self.score = keras.layers.Dense(
                1, use_bias=False, dtype=self.dtype_policy, name="score"
            )

    def build(self, input_shape):
        if self.score is not None:
            self.score.build(input_shape)

    def call(
        self,
        inputs: keras.KerasTensor,
        padding_mask: keras.KerasTensor | None = None,
        mask: keras.KerasTensor | None = None,
        inputs_mask: keras.KerasTensor | None = None,
    ) -> keras.KerasTensor:
        real = masks.combine_padding(
            inputs.shape, padding_mask=padding_mask, mask=mask, inputs_mask=inputs_mask
        )
        if real is None:
            real = ops.ones(ops.shape(inputs)[:2], "bool")
        is_real = ops.expand_dims(real, 2)  # --> [batch, length, 1]
        # float32: a bfloat16 sum over a long text keeps two digits.
        values = ops.where(is_real, ops.cast(inputs, "float32"), 0.0)
        if self.mode == "max":
            # Taken by index: the gradient of `max` compares it with its inputs, which XLA may
            # round differently, and divides by the number of equal ones.
            index = ops.argmax(ops.where(is_real, values, -float("inf")), axis=1, keepdims=True)
            pooled = ops.take_along_axis(values, index, axis=1)[:, 0]
        elif self.mode == "attention":
            scores = ops.transpose(self.score(inputs), (0, 2, 1))  # --> [batch, 1, length]
            weights = masks.masked_softmax(scores, ops.expand_dims(real, 1))
            pooled = ops.matmul(weights, values)[:, 0]
        else:
            count = ops.sum(ops.cast(is_real, "float32"), axis=1)
            pooled = ops.divide_no_nan(ops.sum(values, axis=1), count)
        return ops.cast(pooled, self.compute_dtype)

    def compute_mask(self, inputs, previous_mask):
        return None

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[2])

    def get_config(self):
        return {**super().get_config(), **dtype_config(self), "mode": self.mode}
