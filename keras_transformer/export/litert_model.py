"""A `Transformer` in the operations that LiteRT runs fast: encoder and one decoding step.

The same arithmetic as the model's own `step_function`, in other operations:

- every product with weights is one of a matrix of rows (`FULLY_CONNECTED`, which dynamic-range
  quantization turns to int8); Keras' general products become `BATCH_MATMUL`, which stays float;
- masks are added, not selected: XNNPACK has no `SELECT` and an addition is part of its graphs.
  LiteRT computes in float32 whatever the weights are, so that -1e9 hides a score and overflows
  nothing;
- no size is computed from a tensor's shape: it would make the tensors that depend on it dynamic,
  which XNNPACK does not take. All sizes follow from those of the inputs.
"""

import math
from typing import NamedTuple

import numpy as np
from keras import ops

HIDDEN = -1e9
"""What is added to the score of something that may not be attended to or chosen."""


class Linear(NamedTuple):
    """`x · matrixᵀ + bias` on rows; NumPy arrays `(outputs, inputs)` and `(outputs,)`."""

    matrix: np.ndarray
    bias: np.ndarray

    @classmethod
    def of(cls, *projections, scale=1.0):
        """Projections with the same input, their outputs side by side."""
        parts = [_flat(each) for each in projections]
        matrix, bias = (np.concatenate(each) for each in zip(*parts, strict=True))
        return cls(matrix * np.float32(scale), bias * np.float32(scale))

    def __call__(self, rows):
        import tensorflow as tf

        return tf.matmul(rows, tf.constant(self.matrix), transpose_b=True) + self.bias


def _flat(projection):
    """Matrix `(outputs, inputs)` and bias of a `Projection`, into heads or out, or of `Dense`."""
    bias = array(projection.bias).reshape(-1)
    kernel = array(projection.kernel).reshape(-1, bias.size)
    return np.ascontiguousarray(kernel.T), bias


def array(variable):
    """A weight as a float32 NumPy array."""
    return np.asarray(ops.convert_to_numpy(variable), "float32")


class Attention(NamedTuple):
    """Projections of an attention layer; a query's scale is part of its weights."""

    query: Linear
    key_value: Linear
    output: Linear
    heads: int

    @classmethod
    def of(cls, layer):
        query, key, value, output = layer.projections
        scale = 1.0 / math.sqrt(layer.key_dim)
        return cls(
            Linear.of(query, scale=scale), Linear.of(key, value), Linear.of(output), layer.num_heads
        )

    @property
    def width(self):
        """Width of all heads together."""
        return self.query.bias.size

    def by_head(self, rows, count):
        """From `(batch · count, width)` to `(batch, heads, count, key_dim)`."""
        import tensorflow as tf

        rows = tf.reshape(rows, (-1, count, self.heads, self.width // self.heads))
        return tf.transpose(rows, (0, 2, 1, 3))

    def keys_and_values(self, rows, count):
        """Keys and values by head, `(batch, heads, count, key_dim)` each."""
        projected = self.key_value(rows)
        return tuple(
            self.by_head(projected[:, start : start + self.width], count)
            for start in (0, self.width)
        )

    def attend(self, rows, count, parts, bias):
        """Attends to keys and values that lie in one or several parts.

        Args:
            rows: Float `(batch · count, model_dim)`.
            count: Rows of each sentence.
            parts: A list of pairs, keys and values by head.
            bias: A list of what is added to the scores of each part, broadcastable to
                `(batch, heads, count, positions)`.

        Returns:
            Float `(batch · count, model_dim)`.
        """
        import tensorflow as tf

        query = self.by_head(self.query(rows), count)
        scores = [
            tf.matmul(query, key, transpose_b=True) + each
            for (key, _), each in zip(parts, bias, strict=True)
        ]
        if len(parts) == 1:
            outputs = tf.matmul(tf.nn.softmax(scores[0]), parts[0][1])
        else:
            # The softmax over all parts without putting them side by side: what a part weighs
            # follows from its own largest score and sum.
            outputs = _over_parts(scores, [value for _, value in parts])
        outputs = tf.transpose(outputs, (0, 2, 1, 3))
        return self.output(tf.reshape(outputs, (-1, self.width)))


def _over_parts(scores, values):
    import tensorflow as tf

    largest = tf.reduce_max(scores[0], axis=-1, keepdims=True)
    for each in scores[1:]:
        largest = tf.maximum(largest, tf.reduce_max(each, axis=-1, keepdims=True))
    weights = [tf.exp(each - largest) for each in scores]
    total = sum(tf.reduce_sum(each, axis=-1, keepdims=True) for each in weights)
    output = sum(tf.matmul(each, value) for each, value in zip(weights, values, strict=True))
    return output / total


class Norm(NamedTuple):
    """Layer normalization of rows."""

    gamma: np.ndarray
    beta: np.ndarray
    epsilon: float

    @classmethod
    def of(cls, layer):
        return cls(array(layer.gamma), array(layer.beta), layer.epsilon)

    def __call__(self, rows):
        import tensorflow as tf

        centred = rows - tf.reduce_mean(rows, axis=-1, keepdims=True)
        variance = tf.reduce_mean(centred * centred, axis=-1, keepdims=True)
        return centred * tf.math.rsqrt(variance + self.epsilon) * self.gamma + self.beta


class FeedForward(NamedTuple):
    """The position-wise sublayer."""

    inner: Linear
    outer: Linear
    activation: object

    @classmethod
    def of(cls, layer):
        inner, outer = layer.projections
        return cls(Linear.of(inner), Linear.of(outer), layer.activation)

    def __call__(self, rows):
        return self.outer(self.activation(self.inner(rows)))


class Residual(NamedTuple):
    """A sublayer with its normalization, before it or after the sum."""

    norm: Norm
    first: bool

    def __call__(self, rows, sublayer):
        if self.first:
            return rows + sublayer(self.norm(rows))
        return self.norm(rows + sublayer(rows))
