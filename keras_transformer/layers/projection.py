"""A matrix product over one or several axes."""

import math

import keras
from keras import ops


class Projection(keras.layers.Layer):
    """Maps the last axes of its input to other axes, such as `model_dim` to `(heads, key_dim)`.

    The weights have one axis for each of these, as those of `keras.layers.EinsumDense` do, but
    are multiplied and initialized as the one matrix that they are: XLA's plain matrix product
    takes a third of the time of its general one on a single row, and Keras' Glorot initializer
    would take the first axis of three for a convolution's window.

    Args:
        output_axes: Tuple of the sizes that the last axes of the output have.
        input_axes: How many axes of the input are summed over.
        use_bias: Whether a bias is added.

    Call arguments:
        inputs: Float `(batch, length, …)`.

    Returns:
        Float `(batch, length, *output_axes)` in the compute dtype.
    """

    def __init__(self, output_axes, input_axes=1, use_bias=True, **kwargs):
        super().__init__(**kwargs)
        self.output_axes = tuple(output_axes)
        self.input_axes = input_axes
        self.use_bias = use_bias
        self.supports_masking = True

    def build(self, input_shape):
        summed = tuple(input_shape[-self.input_axes :])
        self._fan_in, self._fan_out = math.prod(summed), math.prod(self.output_axes)
        limit = math.sqrt(6.0 / (self._fan_in + self._fan_out))
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*summed, *self.output_axes),
            initializer=keras.initializers.RandomUniform(-limit, limit),
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(name="bias", shape=self.output_axes, initializer="zeros")

    def call(self, inputs):
        batch, length = ops.shape(inputs)[:2]
        flat = ops.reshape(inputs, (-1, self._fan_in))
        outputs = ops.matmul(flat, ops.reshape(self.kernel, (self._fan_in, self._fan_out)))
        if self.use_bias:
            outputs = outputs + ops.reshape(self.bias, (self._fan_out,))
        return ops.reshape(outputs, (batch, length, *self.output_axes))

    def get_config(self):
        return {
            **super().get_config(),
            "output_axes": self.output_axes,
            "input_axes": self.input_axes,
            "use_bias": self.use_bias,
        }
