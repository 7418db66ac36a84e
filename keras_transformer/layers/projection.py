"""A matrix product over one or several axes."""

import math
from typing import NamedTuple

import keras
from keras import ops

# Below anything that a product can be, and finite in float32.
_LOWEST = -3e38


class Linear(NamedTuple):
    """A projection laid out for decoding: `x · matrix + bias` on rows.

    Made once before a loop (`ops.reshape` of a weight inside it would be fused into each product)
    in the compute dtype.

    Attributes:
        matrix: Float `(inputs, outputs)`.
        bias: Float `(outputs,)`, or `None`.
    """

    matrix: object
    bias: object

    @classmethod
    def beside(cls, *linears):
        """One product for several with the same input: their outputs stand side by side."""
        matrix = ops.concatenate([each.matrix for each in linears], axis=1)
        if linears[0].bias is None:
            return cls(matrix, None)
        return cls(matrix, ops.concatenate([each.bias for each in linears], axis=0))

    @property
    def inputs(self):
        """Width of what goes in."""
        return self.matrix.shape[0]

    def transposed(self):
        """The same, to be kept for products of a single row."""
        return TransposedLinear(ops.transpose(self.matrix), self.bias)

    def __call__(self, inputs):
        """From `(rows, inputs)` to `(rows, outputs)`."""
        return _biased(ops.matmul(inputs, self.matrix), self.bias)


class TransposedLinear(NamedTuple):
    """A `Linear` whose matrix lies the other way round.

    A product with one row then reads it from end to end, a quarter faster. Making one costs more
    than a sentence wins by it: it is for weights that are laid out once and kept.

    Attributes:
        matrix: Float `(outputs, inputs)`.
        bias: Float `(outputs,)`, or `None`.
    """

    matrix: object
    bias: object

    @property
    def inputs(self):
        """Width of what goes in."""
        return self.matrix.shape[1]

    def __call__(self, inputs):
        """From `(rows, inputs)` to `(rows, outputs)`."""
        # The matrix first: XLA would copy a transposed second one at each product.
        outputs = ops.matmul(self.matrix, ops.transpose(inputs))
        return _biased(ops.transpose(outputs), self.bias)


def _biased(outputs, bias):
    if bias is None:
        return outputs
    # XLA on a CPU fuses "product of one row, then add" into a plain loop on one thread, at a
    # third of the speed that memory allows. An operation between the two keeps them apart.
    return ops.maximum(outputs, _LOWEST) + bias


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

    def linear(self):
        """The weights as a `Linear` in the compute dtype."""
        return as_linear(self.kernel, self.bias, self._fan_in, self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "output_axes": self.output_axes,
            "input_axes": self.input_axes,
            "use_bias": self.use_bias,
        }


def as_linear(kernel, bias, inputs, dtype):
    """A kernel of any axes and its bias as a `Linear` of `inputs` rows."""
    matrix = ops.reshape(ops.cast(ops.convert_to_tensor(kernel), dtype), (inputs, -1))
    if bias is None:
        return Linear(matrix, None)
    return Linear(matrix, ops.reshape(ops.cast(ops.convert_to_tensor(bias), dtype), (-1,)))
