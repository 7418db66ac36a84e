"""Scaled dot-product attention over several heads."""

import math

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.cache import KeyValue
from keras_transformer.config import check_rate
from keras_transformer.layers.projection import Linear, Projection

# Far below any score, and finite in float32: softmax of a row of -inf would be NaN.
_MASKED_SCORE = -1e30


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(keras.layers.Layer):
    """`softmax(Q · Kᵀ / √key_dim) · V` in `num_heads` subspaces, projected back together.

    With the same weights it equals `keras.layers.MultiHeadAttention`, and its weights have the
    same order and shapes, so `ours.set_weights(theirs.get_weights())` carries a layer over.
    Two things differ on purpose: a query with nothing to attend to gives zeros (plus the output
    bias) instead of the mean of all values, and the initial weights are Glorot-uniform over the
    matrix `(input, heads · key_dim)`, not over the three-axis array that Keras takes for a
    convolution.

    Args:
        num_heads: Number of heads.
        key_dim: Width of each head's queries and keys.
        value_dim: Width of each head's values; `key_dim` by default.
        dropout: Probability of dropping an attention weight, in [0, 1).
        use_bias: Whether the four projections add a bias.

    Call arguments:
        query: Float `(batch, query, query_features)`.
        value: Float `(batch, key, value_features)`.
        key: Float `(batch, key, key_features)`; `value` by default.
        attention_mask: Bool, True = may attend: `(query, key)`, `(batch, query, key)` or
            `(batch, heads, query, key)`, each axis full or 1.
        use_causal_mask: Whether query `i` sees the keys `0 … i` only.
        return_attention_scores: Whether to return the weights too.
        training: Whether dropout is active.

    Masking: the given mask, the causal mask and the mask that Keras attached to `value` (or
    `key`) are combined: a key is seen where all of them say True. Masking and softmax are done
    in float32 under every dtype policy. The query's own Keras mask is passed on.

    Returns:
        Float `(batch, query, query_features)` in the compute dtype; with
        `return_attention_scores=True` also the weights before dropout, float
        `(batch, heads, query, key)` in the compute dtype.

    Raises:
        ValueError: A size is not positive, a rate is outside [0, 1), or a mask has the wrong
            number of axes.

    Reference: Vaswani et al. 2017, section 3.2 (arXiv:1706.03762).

    Example:

    >>> attention = MultiHeadAttention(num_heads=2, key_dim=8)
    >>> sequence = keras.ops.ones((3, 5, 16))
    >>> attention(sequence, sequence, use_causal_mask=True).shape
    (3, 5, 16)
    """

    def __init__(self, num_heads, key_dim, value_dim=None, dropout=0.0, use_bias=True, **kwargs):
        super().__init__(**kwargs)
        for name, size in (("num_heads", num_heads), ("key_dim", key_dim)):
            if size < 1:
                raise ValueError(f"`{name}` must be positive. Received: {name}={size!r}.")
        if value_dim is not None and value_dim < 1:
            raise ValueError(f"`value_dim` must be positive. Received: value_dim={value_dim!r}.")
        check_rate("dropout", dropout)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self.supports_masking = True
        self._dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        value_dim = self.value_dim or self.key_dim
        heads = self.num_heads
        self._query_dense = self._projection("query", query_shape, (heads, self.key_dim))
        self._key_dense = self._projection("key", key_shape, (heads, self.key_dim))
        self._value_dense = self._projection("value", value_shape, (heads, value_dim))
        self._output_dense = self._projection(
            "attention_output", (None, None, heads, value_dim), query_shape[-1:], input_axes=2
        )

    def _projection(self, name, input_shape, output_axes, input_axes=1):
        projection = Projection(
            output_axes, input_axes, self.use_bias, dtype=self.dtype_policy, name=name
        )
        projection.build(input_shape)
        return projection

    def call(
        self,
        query,
        value,
        key=None,
        attention_mask=None,
        use_causal_mask=False,
        return_attention_scores=False,
        training=None,
    ):
        mask = masks.both(
            masks.with_heads_axis(attention_mask),
            masks.key_mask(masks.implicit_mask(value)),
            masks.key_mask(None if key is None else masks.implicit_mask(key)),
            masks.causal_mask(ops.shape(query)[1], ops.shape(value)[1])
            if use_causal_mask
            else None,
        )
        output, weights = self.attend(
            query, self.project_key_value(value, key), mask, training=training
        )
        return (output, weights) if return_attention_scores else output

    @property
    def projections(self):
        """The four projections: query, key, value, output."""
        return self._query_dense, self._key_dense, self._value_dense, self._output_dense

    def project_key_value(self, value, key=None):
        """Projects what is attended to, once for any number of queries.

        Args:
            value: Float `(batch, key, value_features)`.
            key: Float `(batch, key, key_features)`; `value` by default.

        Returns:
            `KeyValue`.
        """
        key = value if key is None else key
        return KeyValue(
            ops.transpose(self._key_dense(key), (0, 2, 3, 1)),
            ops.transpose(self._value_dense(value), (0, 2, 1, 3)),
        )

    def attend(self, query, key_value, mask=None, training=None):
        """Attends to keys and values that `project_key_value` gave.

        Args:
            query: Float `(batch, query, query_features)`, not yet projected.
            key_value: `KeyValue`.
            mask: Bool, True = may attend, broadcastable to `(batch, heads, query, key)`.
            training: Whether dropout is active.

        Returns:
            Output `(batch, query, query_features)` and weights `(batch, heads, query, key)`.
        """
        query = ops.transpose(self._query_dense(query), (0, 2, 1, 3))
        output, weights = self._attend_by_head(query, key_value, mask, training)
        return self._output_dense(output), weights

    def step_weights(self, with_key_value, layout="many"):
        """The projections laid out for `step`, once before a loop.

        Args:
            with_key_value: Whether `step` projects keys and values too (self-attention).
            layout: As for `DecoderBlock.step_weights`.

        Returns:
            A pair: the `Linear`s into the heads, and the one out of them.
        """
        query, key, value, output = (each.linear() for each in self.projections)
        if not with_key_value:
            inner = (query,)
        elif layout == "one":
            inner = (query, key, value)
        else:
            inner = (Linear.beside(query, key, value),)
        return tuple(each.laid_out(layout) for each in inner), output.laid_out(layout)

    def step(self, inputs, weights, write=None, key_value=None, mask=None):
        """Attends from new positions, in self-attention after writing their keys and values.

        Args:
            inputs: Float `(batch, new, query_features)`.
            weights: What `step_weights` gave.
            write: For self-attention: from the new positions' `KeyValue` to the one to attend to.
            key_value: For attention to something else: its `KeyValue`.
            mask: Bool, True = may attend, broadcastable to `(batch, heads, new, key)`.

        Returns:
            Output `(batch, new, query_features)`, weights `(batch, heads, new, key)`, and the
            `KeyValue` that was attended to.
        """
        inner, outer = weights
        new = ops.shape(inputs)[1]
        rows = ops.reshape(inputs, (-1, inputs.shape[2]))
        projected = [linear(rows) for linear in inner]
        heads, key_dim = self.num_heads, self.key_dim

        def by_head(place, width, axes=(0, 2, 1, 3)):
            if len(projected) > 1:
                part = projected[place]
            else:
                start = heads * key_dim * place
                part = projected[0][:, start : start + heads * width]
            return ops.transpose(ops.reshape(part, (-1, new, heads, width)), axes)

        if write is not None:
            value_dim = self.value_dim or key_dim
            key = by_head(1, key_dim, (0, 2, 3, 1))
            key_value = write(KeyValue(key, by_head(2, value_dim)))
        output, attention = self._attend_by_head(by_head(0, key_dim), key_value, mask)
        width = heads * (self.value_dim or key_dim)
        output = outer(ops.reshape(output, (-1, width)))
        return ops.reshape(output, (-1, new, output.shape[-1])), attention, key_value

    def _attend_by_head(self, query, key_value, mask, training=None):
        """From queries `(batch, heads, query, key_dim)` to `(batch, query, heads, value_dim)`."""
        query = ops.multiply(query, 1.0 / math.sqrt(self.key_dim))
        key = key_value.key
        if self.compute_dtype == "float16":
            # A score past 65,504 would be infinite, and a row of infinities NaN.
            query, key = ops.cast(query, "float32"), ops.cast(key, "float32")
        scores = ops.matmul(query, key)  # --> [b, n, q, k]
        # float32: float16 has no room for the mask's value, and a bfloat16 softmax over a long
        # row loses small probabilities.
        scores = ops.cast(scores, "float32")
        if mask is not None:
            scores = ops.where(mask, scores, _MASKED_SCORE)
        weights = ops.softmax(scores, axis=-1)
        if mask is not None:
            # A row that is masked throughout has a uniform softmax: here it becomes zeros.
            weights = ops.where(mask, weights, 0.0)
        weights = ops.cast(weights, self.compute_dtype)
        output = ops.matmul(self._dropout_layer(weights, training=training), key_value.value)
        return ops.transpose(output, (0, 2, 1, 3)), weights

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
        }
