"""The decoder's weights laid out for a loop of decoding steps: the same products, computed faster.

A step multiplies few rows by every matrix of the decoder. The time then depends on how XLA reads a
matrix. So each matrix is brought into the form that XLA reads fastest, once before the loop.

Without these layouts a step of one row takes 3.1 times as long at base size, and 1.3 times at width
128. With 4 to 32 rows it takes up to 1.15 and 1.12 times as long. Without one of the layouts it
takes longer by these factors, at base size and at width 128 (two AMD EPYC cores):

- stacked matrices for one row: 1.19 and 1.04
- joined projections: up to 1.07 and 1.10
- matrices cut in two, only wide ones: up to 1.11
- a transposed table: up to 1.16 and 1.13
"""

import math
from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.layers.kv_cache import KeyValue
from keras_transformer.layers.projection import Projection

_BLOCKS = 4
# Halves of 256 x 1024 are faster than the whole; of 256 x 256 it depends.
_LEAST_SPLIT = 2**17


class BlockWeights(NamedTuple):
    """A decoder block's projections; `()` instead of a pair: the layer itself computes them."""

    self_attention: tuple  # the projections into the heads, one or three, and out of them
    cross_attention: tuple  # the same, with only the query's projection into the heads
    feed_forward: tuple  # the inner and the outer projection


class StepWeights(NamedTuple):
    """All laid-out weights of a step: the argument of `bind`."""

    blocks: tuple[BlockWeights, ...]
    output: tuple  # the projection from rows to logits, or `()` for the layer itself


def lay_out(model, one_row: bool = False, kept: bool = False) -> StepWeights:
    """Lays the weights out, once before a loop.

    A reshape of a weight inside the loop would be fused into each product.

    Args:
        one_row: True if a step has one row (one hypothesis of one sentence): its products read
            each matrix at the speed of memory. For more rows, matrices with the same input are
            joined.
        kept: True if the result is kept for many loops, so that copies of matrices pay.

    Returns:
        `StepWeights`, in the compute dtype. A layer that is more than a product with a matrix of
        that dtype (quantized, or of a dtype policy of its own) computes its steps itself.
    """
    dtype = model.compute_dtype
    blocks = (_block_weights(block, one_row, kept, dtype) for block in model.decoder.blocks)
    return StepWeights(tuple(blocks), _output_weights(model, one_row, kept, dtype))


def _block_weights(block, one_row, kept, dtype):
    def laid_out(*projections, of_one_input=False):
        if not all(_is_plain(projection, dtype) for projection in projections):
            return ()
        *inner, outer = (_linear(projection, dtype) for projection in projections)
        if of_one_input and not one_row:
            inner = [Linear.concat(*inner)]
        if kept:
            inner, outer = [linear.to_kept(one_row) for linear in inner], outer.to_kept(one_row)
        return tuple(inner), outer

    self_attention = cross_attention = ()
    if block.self_attention is not None:
        self_attention = laid_out(*block.self_attention.projections, of_one_input=True)
    if block.cross_attention is not None:
        query, _, _, output = block.cross_attention.projections
        cross_attention = laid_out(query, output)
    return BlockWeights(self_attention, cross_attention, laid_out(*block.feed_forward.projections))


def _output_weights(model, one_row, kept, dtype):
    if model.output_projection is not None:
        if not _is_plain(model.output_projection, dtype):
            return ()
        output = _linear(model.output_projection, dtype)
    else:
        table = ops.cast(ops.convert_to_tensor(model.target_embedding.embeddings), dtype)
        bias = model.target_embedding.output_bias
        if bias is not None:
            bias = ops.cast(ops.convert_to_tensor(bias), dtype)
        output = Linear(ops.transpose(table), bias) if kept else TableLinear(table, bias)
    # Not cut in two for many rows: joining the logits costs more than it saves.
    return output.to_kept(one_row) if kept and one_row else output


def _is_plain(projection, dtype):
    return projection.quantization_mode is None and projection.compute_dtype == dtype


def _linear(projection, dtype):
    """A `Dense` or a `Projection` as a `Linear`."""
    width = (
        math.prod(projection.partial_output_shape[1:])
        if isinstance(projection, Projection)
        else projection.units
    )
    kernel = ops.cast(ops.convert_to_tensor(projection.kernel), dtype)
    bias = projection.bias
    if bias is not None:
        bias = ops.reshape(ops.cast(ops.convert_to_tensor(bias), dtype), (width,))
    return Linear(ops.reshape(kernel, (-1, width)), bias)


def bind(model, weights):
    """The `sublayers` of `Decoder.step` with laid-out weights, and the function to logits."""
    sublayers = tuple(
        _Sublayers(block, *laid_out_block)
        for block, laid_out_block in zip(model.decoder.blocks, weights.blocks, strict=True)
    )
    if not weights.output:
        return sublayers, model.output_projection
    return sublayers, lambda hidden: _on_rows(weights.output, hidden)


def _on_rows(function, inputs):
    """Applies a function of `(rows, features)` to `(batch, new, features)`."""
    outputs = function(ops.reshape(inputs, (-1, inputs.shape[-1])))
    return ops.reshape(outputs, (-1, ops.shape(inputs)[1], outputs.shape[-1]))


class _Sublayers:
    """The sublayers of a `DecoderBlock`, with laid-out weights."""

    def __init__(self, block, self_attention, cross_attention, feed_forward):
        def attention(layer, weights):
            return _Attention(layer, *weights) if weights else layer

        def feed(inputs):
            (inner,), outer = feed_forward
            activation = block.feed_forward.activation
            return _on_rows(lambda rows: outer(activation(inner(rows))), inputs)

        self.self_attention = attention(block.self_attention, self_attention)
        self.cross_attention = attention(block.cross_attention, cross_attention)
        self.feed_forward = feed if feed_forward else block.feed_forward


class _Attention:
    """The methods of `MultiHeadAttention` that `DecoderBlock.step` calls."""

    def __init__(self, layer, inner, outer):
        self._heads = layer.num_heads, layer.num_kv_heads, layer.num_kv_heads
        self._widths = layer.key_dim, layer.key_dim, layer.value_dim or layer.key_dim
        self._inner, self._outer = inner, outer
        self.attend, self._apply_rotary = layer.attend, layer.apply_rotary

    def project(self, inputs, positions=None):
        rows = ops.reshape(inputs, (-1, inputs.shape[2]))
        parts = [linear(rows) for linear in self._inner]
        if len(parts) == 1:
            query, key = self._heads[0] * self._widths[0], self._heads[1] * self._widths[1]
            parts = ops.split(parts[0], [query, query + key], axis=1)
        new = ops.shape(inputs)[1]
        query, key, value = (
            ops.reshape(part, (-1, new, heads, width))
            for part, heads, width in zip(parts, self._heads, self._widths, strict=True)
        )
        query, key = self._apply_rotary(query, positions), self._apply_rotary(key, positions)
        return ops.transpose(query, (0, 2, 1, 3)), KeyValue(
            ops.transpose(key, (0, 2, 3, 1)), ops.transpose(value, (0, 2, 1, 3))
        )

    def project_query(self, query):
        (linear,) = self._inner
        rows = linear(ops.reshape(query, (-1, query.shape[2])))
        rows = ops.reshape(rows, (-1, ops.shape(query)[1], self._heads[0], self._widths[0]))
        return ops.transpose(rows, (0, 2, 1, 3))

    def project_output(self, heads):
        new, width = ops.shape(heads)[1], self._heads[0] * self._widths[2]
        outputs = self._outer(ops.reshape(heads, (-1, width)))
        return ops.reshape(outputs, (-1, new, outputs.shape[-1]))


class Linear(NamedTuple):
    """A projection from rows `(rows, inputs)` to `(rows, outputs)`: `x · matrix + bias`."""

    matrix: keras.KerasTensor  # [inputs, outputs]
    bias: keras.KerasTensor | None  # [outputs]

    @classmethod
    def concat(cls, *linears):
        """Joins several products with the same input into one, whose outputs follow each other."""
        matrix = ops.concatenate([linear.matrix for linear in linears], axis=1)
        if linears[0].bias is None:
            return cls(matrix, None)
        return cls(matrix, ops.concatenate([linear.bias for linear in linears], axis=0))

    def to_kept(self, one_row):
        """Returns the product in the form that `lay_out` keeps for many loops."""
        inputs, outputs = self.matrix.shape
        if not one_row and inputs * outputs >= _LEAST_SPLIT and _on_cpu():
            return SplitLinear(tuple(ops.split(self.matrix, [outputs // 2], axis=1)), self.bias)
        if one_row:
            blocks = math.gcd(outputs, _BLOCKS)
            matrix = ops.reshape(self.matrix, (-1, blocks, outputs // blocks))
            return StackedLinear(ops.transpose(matrix, (1, 0, 2)), self.bias)
        return self

    def __call__(self, inputs):
        return _biased(ops.matmul(inputs, self.matrix), self.bias)


class SplitLinear(NamedTuple):
    """A `Linear` whose matrix is cut in two, to be kept for products of many rows.

    XLA on a CPU computes independent products at the same time, each on its own thread. For 32
    rows this takes 0.7 of the time that two threads need together for one product.
    """

    matrices: tuple[keras.KerasTensor, ...]  # [inputs, …] each, which together have all outputs
    bias: keras.KerasTensor | None

    def __call__(self, inputs):
        outputs = [ops.matmul(inputs, matrix) for matrix in self.matrices]
        return _biased(ops.concatenate(outputs, axis=1), self.bias)


class StackedLinear(NamedTuple):
    """A `Linear` whose matrix is cut into blocks of columns, to be kept for products of one row.

    XLA on a CPU gives each thread its own blocks: a product then runs at the speed of memory.
    """

    matrix: keras.KerasTensor  # [blocks, inputs, outputs / blocks]
    bias: keras.KerasTensor | None

    def __call__(self, inputs):
        shape, width = ops.shape(inputs), self.matrix.shape[0] * self.matrix.shape[2]
        inputs = ops.broadcast_to(inputs, (self.matrix.shape[0], *shape))
        outputs = ops.transpose(ops.matmul(inputs, self.matrix), (1, 0, 2))
        return _biased(ops.reshape(outputs, (shape[0], width)), self.bias)


class TableLinear(NamedTuple):
    """Products with the rows of a table that is not transposed: the logits of tied embeddings."""

    table: keras.KerasTensor  # [outputs, inputs]
    bias: keras.KerasTensor | None = None  # [outputs]

    def __call__(self, inputs):
        # The table is the first factor: XLA would copy a transposed second one at each product.
        return _biased(ops.transpose(ops.matmul(self.table, ops.transpose(inputs))), self.bias)


def _on_cpu():
    return all(name.startswith("cpu") for name in keras.distribution.list_devices())


def _biased(outputs, bias):
    return outputs if bias is None else outputs + bias
