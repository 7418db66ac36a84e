"""Attention of one head, with the Transformer's score and with the scores of earlier papers."""

import math
from typing import Any

import keras
from keras import ops

from keras_transformer.base.options import check_choice, check_positive
from keras_transformer.layers import masks
from keras_transformer.layers.projection import LayerOfProjections, check_sequence

_EQUATION = "btd,du->btu"

ATTENTION_SCORES = ("dot", "scaled_dot", "general", "additive")


@keras.saving.register_keras_serializable(package="keras_transformer")
class Attention(LayerOfProjections):
    """The mean of values, weighted by the softmax of a score of each query with each key.

    | `score` | score of query q and key k | weights |
    |---|---|---|
    | `"dot"` | q · k | none |
    | `"scaled_dot"` | q · k / √features | none |
    | `"general"` | q · W k | W: `(key_features, query_features)` |
    | `"additive"` | v · tanh(W q + U k) | W, U: `(features, units)`, v: `(units,)` |

    A query with nothing to attend to gives zeros. Masking and softmax are done in float32 under
    every dtype policy.

    Args:
        score: A name of the table.
        units: Inner width of the additive score; the features of the query by default.
        **kwargs: Initializers, regularizers and constraints of W and U; and what
            `keras.layers.Layer` takes.

    Call arguments:
        query: Float `(batch, query, query_features)`.
        value: Float `(batch, key, value_features)`.
        key: Float `(batch, key, key_features)`; `value` by default.
        attention_mask: Bool, True = may attend: `(query, key)` or `(batch, query, key)`. Two axes
            are never `(batch, key)`.
        return_attention_scores, value_mask, key_mask: See `MultiHeadAttention`.

    Returns:
        Float `(batch, query, value_features)`; with `return_attention_scores=True` also the
        weights, float `(batch, query, key)`.

    Raises:
        ValueError: There is no such score. An input has the wrong axes, or a mask is float or has
            another shape. The score needs keys with as many features as the queries have.

    References: Luong et al. 2015, section 3.1 (arXiv:1508.04025): dot, general; Bahdanau et al.
    2014, appendix A.1.2 (arXiv:1409.0473): additive; Vaswani et al. 2017, section 3.2.1
    (arXiv:1706.03762): scaled dot.

    Example:

    >>> attention = Attention("additive", units=8)
    >>> tuple(attention(keras.ops.ones((2, 1, 4)), keras.ops.ones((2, 5, 6))).shape)
    (2, 1, 6)
    """

    arguments = ("score", "units")

    def __init__(self, score: str = "scaled_dot", units: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        check_choice("score", score, ATTENTION_SCORES)
        (self.units,) = check_positive(or_none=True, units=units)
        self.score = score
        self.supports_masking = True

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        for name, shape in (("query", query_shape), ("value", value_shape), ("key", key_shape)):
            check_sequence(name, shape)
        width, self._query_dense, self._key_dense = query_shape[2], None, None
        if self.score == "general":
            self._key_dense = self._projection("key", _EQUATION, key_shape, (width,))
        elif self.score == "additive":
            units = self.units or width
            self._query_dense = self._projection("query", _EQUATION, query_shape, (units,))
            self._key_dense = self._projection("key", _EQUATION, key_shape, (units,))
            self._vector = self.add_weight(
                name="vector", shape=(units,), initializer="glorot_uniform"
            )
        elif key_shape[2] != width:
            raise ValueError(
                f"The {self.score} score needs keys with as many features as the queries. "
                f"Received: query of shape {tuple(query_shape)}, key of shape {tuple(key_shape)}."
            )

    def call(
        self,
        query: keras.KerasTensor,
        value: keras.KerasTensor,
        key: keras.KerasTensor | None = None,
        attention_mask: keras.KerasTensor | None = None,
        return_attention_scores: bool = False,
        value_mask: keras.KerasTensor | None = None,
        key_mask: keras.KerasTensor | None = None,
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, keras.KerasTensor]:
        mask = masks.combine_attention(
            query.shape,
            value.shape,
            1,
            {"value_mask": value_mask, "key_mask": key_mask},
            {"attention_mask": attention_mask},
        )
        mask = None if mask is None else mask[:, 0]  # --> [batch, query, key]
        projected = self.project_key(value if key is None else key)
        attended, weights = self.attend(query, projected, value, mask)
        return (attended, weights) if return_attention_scores else attended

    def project_key(self, key: keras.KerasTensor) -> keras.KerasTensor:
        """Projects keys `(batch, key, features)` as the score needs them, once for any queries."""
        return key if self._key_dense is None else self._key_dense(key)

    def attend(
        self,
        query: keras.KerasTensor,
        projected_key: keras.KerasTensor,
        value: keras.KerasTensor,
        mask: keras.KerasTensor | None = None,
    ) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        """Attends to keys from `project_key`, with one mask `(batch, query, key)`."""
        if self.score == "additive":
            # --> [batch, query, key, units]
            sums = ops.expand_dims(self._query_dense(query), 2) + ops.expand_dims(projected_key, 1)
            vector = ops.cast(self._vector, sums.dtype)
            scores = ops.sum(ops.tanh(sums) * vector, axis=3)
        else:
            if self.score == "scaled_dot":
                query = query / math.sqrt(query.shape[2])
            if self.compute_dtype == "float16":
                # A score past 65,504 would be infinite, and a row of infinities NaN.
                query, projected_key = (
                    ops.cast(tensor, "float32") for tensor in (query, projected_key)
                )
            scores = ops.matmul(query, ops.transpose(projected_key, (0, 2, 1)))
        weights = ops.cast(masks.masked_softmax(scores, mask), self.compute_dtype)
        return ops.matmul(weights, value), weights

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        return (*query_shape[:2], value_shape[2])
