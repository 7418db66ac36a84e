"""A matrix product over one or several axes."""

import math
from typing import NamedTuple

import keras
from keras import ops

# Below anything that a product can be, and finite in float32.
_LOWEST = -3e38

_BLOCKS = 4
# Of 256 x 1024 a half each is faster, of 256 x 256 it depends.
_LEAST_SPLIT = 2**17


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

    def laid_out(self, layout):
        """The same, as `DecoderBlock.step_weights` describes the layouts."""
        inputs, outputs = self.matrix.shape
        if layout == "many, kept" and inputs * outputs >= _LEAST_SPLIT and _on_cpu():
            return SplitLinear(tuple(ops.split(self.matrix, [outputs // 2], axis=1)), self.bias)
        if layout == "one, kept":
            blocks = math.gcd(outputs, _BLOCKS)
            matrix = ops.reshape(self.matrix, (-1, blocks, outputs // blocks))
            return StackedLinear(ops.transpose(matrix, (1, 0, 2)), self.bias)
        return self

    def __call__(self, inputs):
        """From `(rows, inputs)` to `(rows, outputs)`."""
        return _biased(ops.matmul(inputs, self.matrix), self.bias)


class SplitLinear(NamedTuple):
    """A `Linear` whose matrix is cut in two, to be kept for products of many rows.

    XLA on a CPU computes products that do not depend on one another at once, each on a thread of
    its own: 32 rows take 0.7 of the time that two threads need for one product together.

    Attributes:
        matrices: Tuple of float `(inputs, …)`, which together have all outputs.
        bias: Float `(outputs,)`, or `None`.
    """

    matrices: tuple
    bias: object

    def __call__(self, inputs):
        """From `(rows, inputs)` to `(rows, outputs)`."""
        outputs = [ops.matmul(inputs, matrix) for matrix in self.matrices]
        return _biased(ops.concatenate(outputs, axis=1), self.bias)


class StackedLinear(NamedTuple):
    """A `Linear` whose matrix is cut into blocks of columns, to be kept for products of one row.

    XLA on a CPU gives each thread blocks of its own: a product then runs at the speed of memory.

    Attributes:
        matrix: Float `(blocks, inputs, outputs / blocks)`.
        bias: Float `(outputs,)`, or `None`.
    """

    matrix: object
    bias: object

    def __call__(self, inputs):
        """From `(rows, inputs)` to `(rows, outputs)`."""
        shape = ops.shape(inputs)
        inputs = ops.broadcast_to(inputs, (self.matrix.shape[0], *shape))
        outputs = ops.transpose(ops.matmul(inputs, self.matrix), (1, 0, 2))
        return _biased(ops.reshape(outputs, (shape[0], -1)), self.bias)


class TableLinear(NamedTuple):
    """Products with the rows of a table as they lie there: the logits of tied embeddings.

    Attributes:
        table: Float `(outputs, inputs)`.
    """

    table: object

    def __call__(self, inputs):
        """From `(rows, inputs)` to `(rows, outputs)`."""
        # The table first: XLA would copy a transposed second matrix at each product.
        return ops.transpose(ops.matmul(self.table, ops.transpose(inputs)))


def _on_cpu():
    return all(name.startswith("cpu") for name in keras.distribution.list_devices())


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
