"""The decoder's weights in layouts for a loop of decoding steps: the same products, but faster.

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

import itertools
import math
from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.layers.blocks import StepSublayers
from keras_transformer.layers.half_precision import logits_of_rows, matmul, needs_cast
from keras_transformer.layers.mixer import Projections
from keras_transformer.layers.projection import Projection

_BLOCKS = 4
# Halves of 256 x 1024 are faster than the whole; of 256 x 256 it depends.
_LEAST_SPLIT = 2**17
# A product of larger matrices gains nothing from the others, and their copy takes memory.
_MOST_JOINED = 2**19


class BlockWeights(NamedTuple):
    """A decoder block's projections; `()` instead of a pair: the layer itself computes them."""

    mixer: tuple  # the projections of its inputs, joined or each for itself, and of its output
    cross_attention: tuple  # the same, with only the query's projection into the heads
    feed_forward: tuple  # the inner and the outer projection


class StepWeights(NamedTuple):
    """All weights of a step in the layouts of a loop: the argument of `with_step_weights`."""

    blocks: tuple[BlockWeights, ...]
    output: tuple  # the projection from rows to logits, or `()` for the layer itself


def prepare_step_weights(model, one_row: bool = False, cached: bool = False) -> StepWeights:
    """Brings the weights into the layouts of a loop, once before it.

    A reshape of a weight inside the loop would be fused into each product.

    Args:
        one_row: True if a step has one row (one hypothesis of one sentence): its products read
            each matrix at the speed of memory. For more rows, matrices with the same input are
            joined.
        cached: True if the result is used in many loops, so that copies of matrices pay.

    Returns:
        `StepWeights` in the compute dtype, except for large matrices of half precision. A layer
        that is more than a product with a matrix of that dtype (quantized, or of a dtype policy of
        its own) computes its steps itself.
    """
    dtype = model.compute_dtype
    blocks = (_block_weights(block, one_row, cached, dtype) for block in model.decoder.blocks)
    return StepWeights(tuple(blocks), _output_weights(model, one_row, cached, dtype))


def _block_weights(block, one_row, cached, dtype):
    def prepared(inner_layers, outer_layer):
        layers = [*inner_layers, outer_layer]
        if not all(layer is None or _is_plain(layer, dtype) for layer in layers):
            return ()
        *inner, outer = (layer and _linear(layer, dtype, cached) for layer in layers)
        if len(inner) > 1 and not one_row and math.prod(inner[0].matrix.shape) <= _MOST_JOINED:
            inner = [Linear.concat(*inner)]
        if cached:
            inner = [linear.to_cached(one_row) for linear in inner]
            outer = outer and outer.to_cached(one_row)
        return tuple(inner), outer

    mixer = prepared(block.token_mixer.inner_layers(), block.token_mixer.outer_layer())
    cross_attention = ()
    if block.cross_attention is not None:
        query, *_, output = block.cross_attention.projections
        cross_attention = prepared([query], output)
    inner, outer = block.feed_forward.projections
    return BlockWeights(mixer, cross_attention, prepared([inner], outer))


def _output_weights(model, one_row, cached, dtype):
    if model.output_projection is not None:
        if not _is_plain(model.output_projection, dtype):
            return ()
        output = _linear(model.output_projection, dtype, cached)
    else:
        table = _matrix(model.target_embedding.table(), dtype, cached)
        bias = model.target_embedding.output_bias
        if bias is not None:
            bias = ops.cast(ops.convert_to_tensor(bias), dtype)
        output = Linear(ops.transpose(table), bias) if cached else TableLinear(table, bias)
    # Not cut in two for many rows: joining the logits costs more than it saves.
    return output.to_cached(one_row) if cached and one_row else output


def _is_plain(projection, dtype):
    return projection.quantization_mode is None and projection.compute_dtype == dtype


def _matrix(values, dtype, cached):
    """Returns a matrix in the dtype, or a large one of half precision as it is.

    Each product with it casts it, as its copies should not be in memory at the same time.
    """
    values = ops.convert_to_tensor(values)
    if not cached and needs_cast(values, dtype) and math.prod(values.shape) > _MOST_JOINED:
        return values
    return ops.cast(values, dtype)


def _linear(projection, dtype, cached):
    """A `Dense` or a `Projection` as a `Linear`."""
    width = math.prod(_output_axes(projection))
    kernel = _matrix(projection.kernel, dtype, cached)
    bias = projection.bias
    if bias is not None:
        bias = ops.reshape(ops.cast(ops.convert_to_tensor(bias), dtype), (width,))
    return Linear(ops.reshape(kernel, (-1, width)), bias)


def _output_axes(projection):
    is_dense = not isinstance(projection, Projection)
    return (projection.units,) if is_dense else projection.partial_output_shape[1:]


def with_step_weights(model, weights: StepWeights):
    """Returns the `sublayers` of `Decoder.step` with these weights, and the function to logits."""
    sublayers = tuple(
        _sublayers(block, block_weights)
        for block, block_weights in zip(model.decoder.blocks, weights.blocks, strict=True)
    )
    if not weights.output:
        return sublayers, model.output_projection
    return sublayers, lambda hidden: _on_rows(weights.output, hidden)


def projection_to(model, candidates, project):
    """Returns the function from rows to the logits of candidates, int32 `(count,)`.

    It has a copy of the rows of the output matrix. `project` computes all logits, and is used where
    the layer is more than a product.
    """
    projection, dtype = model.output_projection, model.compute_dtype
    if projection is not None and not _is_plain(projection, dtype):
        return lambda hidden: ops.take(project(hidden), candidates, axis=-1)
    if projection is None:
        table, bias = model.target_embedding.table(), model.target_embedding.output_bias
    else:
        table, bias = ops.transpose(projection.kernel), projection.bias
    rows, bias = (
        values if values is None else ops.cast(ops.take(values, candidates, axis=0), dtype)
        for values in (table, bias)
    )
    linear = TableLinear(rows, bias)
    return lambda hidden: _on_rows(linear, hidden)


def _on_rows(function, inputs):
    """Applies a function of `(rows, features)` to `(batch, new, features)`."""
    outputs = function(ops.reshape(inputs, (-1, inputs.shape[-1])))
    return ops.reshape(outputs, (-1, ops.shape(inputs)[1], outputs.shape[-1]))


def _sublayers(block, weights):
    def feed_forward(inputs):
        (inner,), outer = weights.feed_forward
        activation = block.feed_forward.activation
        return _on_rows(lambda rows: outer(activation(inner(rows))), inputs)

    cross = block.cross_attention
    return StepSublayers(
        _projections(
            block.token_mixer.inner_layers(), block.token_mixer.outer_layer(), weights.mixer
        ),
        cross
        and _projections(cross.projections[:1], cross.projections[-1], weights.cross_attention),
        feed_forward if weights.feed_forward else None,
    )


def _projections(inner_layers, outer_layer, weights):
    """Returns `Projections` with prepared weights; None: the layers compute them."""
    if not weights:
        return None
    linears, outer_linear = weights

    def inner(inputs):
        rows = ops.reshape(inputs, (-1, inputs.shape[2]))
        parts = [linear(rows) for linear in linears]
        axes = [_output_axes(layer) for layer in inner_layers]
        if len(parts) < len(axes):  # joined
            *ends, _ = itertools.accumulate(map(math.prod, axes))
            parts = ops.split(parts[0], ends, axis=1)
        new = ops.shape(inputs)[1]
        return tuple(
            ops.reshape(part, (-1, new, *part_axes))
            for part, part_axes in zip(parts, axes, strict=True)
        )

    def outer(values):
        if outer_linear is None:
            return values
        width = math.prod(outer_layer.kernel.shape) // math.prod(_output_axes(outer_layer))
        outputs = outer_linear(ops.reshape(values, (-1, width)))
        return ops.reshape(outputs, (-1, ops.shape(values)[1], outputs.shape[-1]))

    return Projections(inner, outer)


class Linear(NamedTuple):
    """A projection from rows `(rows, inputs)` to `(rows, outputs)`: `x · matrix + bias`."""

    matrix: keras.KerasTensor  # [inputs, outputs]
    bias: keras.KerasTensor | None  # [outputs]

    @classmethod
    def concat(cls, *linears):
        """Joins several products with the same input into one, whose outputs follow each other."""
        matrix = ops.concatenate([linear.matrix for linear in linears], axis=1)
        if all(linear.bias is None for linear in linears):
            return cls(matrix, None)
        biases = [
            ops.zeros_like(linear.matrix[0]) if linear.bias is None else linear.bias
            for linear in linears
        ]
        return cls(matrix, ops.concatenate(biases, axis=0))

    def to_cached(self, one_row):
        """Returns the product in the layout for many loops."""
        inputs, outputs = self.matrix.shape
        if not one_row and inputs * outputs >= _LEAST_SPLIT and _on_cpu():
            return SplitLinear(tuple(ops.split(self.matrix, [outputs // 2], axis=1)), self.bias)
        if one_row:
            blocks = math.gcd(outputs, _BLOCKS)
            matrix = ops.reshape(self.matrix, (-1, blocks, outputs // blocks))
            return StackedLinear(ops.transpose(matrix, (1, 0, 2)), self.bias)
        return self

    def __call__(self, inputs):
        return _biased(matmul(inputs, self.matrix), self.bias)


class SplitLinear(NamedTuple):
    """A `Linear` whose matrix is cut in two, to be cached for products of many rows.

    XLA on a CPU computes independent products at the same time, each on its own thread. For 32
    rows this takes 0.7 of the time that two threads need together for one product.
    """

    matrices: tuple[keras.KerasTensor, ...]  # [inputs, …] each, which together have all outputs
    bias: keras.KerasTensor | None

    def __call__(self, inputs):
        outputs = [ops.matmul(inputs, matrix) for matrix in self.matrices]
        return _biased(ops.concatenate(outputs, axis=1), self.bias)


class StackedLinear(NamedTuple):
    """A `Linear` whose matrix is cut into blocks of columns, to be cached for products of one row.

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
        return _biased(ops.transpose(logits_of_rows(self.table, inputs)), self.bias)


def _on_cpu():
    return all(name.startswith("cpu") for name in keras.distribution.list_devices())


def _biased(outputs, bias):
    return outputs if bias is None else outputs + bias
