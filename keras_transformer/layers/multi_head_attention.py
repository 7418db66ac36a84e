"""Scaled dot-product attention over several heads."""

import functools
import math
import numbers
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.base.options import (
    check_attention,
    check_flags,
    check_positive,
    check_rate,
)
from keras_transformer.layers import masks
from keras_transformer.layers.kv_cache import KeyValue, Past
from keras_transformer.layers.local_attention import attend_in_blocks, takes_blocks
from keras_transformer.layers.mixer import Mixer, Projections
from keras_transformer.layers.positions import (
    AttentionPositions,
    alibi_scores,
    apply_rotary,
    relative_scores,
    relative_values,
)
from keras_transformer.layers.projection import check_sequence


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(Mixer):
    """`softmax(Q · Kᵀ / √key_dim) · V` in `num_heads` subspaces, projected back together.

    With the same weights it equals `keras.layers.MultiHeadAttention`, and its weights have the
    same order and shapes. So `MultiHeadAttention.from_config(theirs.get_config())` and then
    `ours.set_weights(theirs.get_weights())` carry a layer over.
    Two things differ on purpose. A query with nothing to attend to gives zeros (plus the output
    bias) instead of the mean of all values. And Keras also masks padded queries, which then have
    nothing to attend to. Here padded queries attend like all others. Ignore their outputs.

    Args:
        num_heads: Number of heads.
        key_dim: Width of each head's queries and keys.
        value_dim: Width of each head's values; `key_dim` by default.
        dropout: Probability of dropping an attention weight, in [0, 1).
        use_bias: Whether the four projections add a bias.
        output_shape: Features of the output, an integer or a tuple of several axes; as many as
            the query has by default.
        num_kv_heads: Heads of keys and values, each shared by a group of consecutive query heads
            (Ainslie et al. 2023); must divide `num_heads`, its default.
        sliding_window: A query sees the keys within `sliding_window` - 1 tokens of itself, as in
            Keras' layer; `None`: all (restricted self-attention, section 4 of the paper). Time and
            memory then grow linearly with the length, unless weights are returned or
            `attention_mask` has a row for each query.
        positions: Positions inside attention; `None`: none. `"rotary"`: queries and keys are
            rotated, and `key_dim` must be even. `"relative"`: each query is also multiplied with
            a trained vector of the distance to a key (Shaw et al. 2018, section 3.2). `"alibi"`:
            scores fall linearly with the distance, at a fixed slope per head (Press et al. 2022).
            Keys before and after a query have different slopes, if there are several heads.
        max_distance: Farthest distance with a vector of its own under `"relative"`, in tokens.
        relative_values: Whether `"relative"` also adds a trained vector of the distance to each
            value, as in the paper. They did not improve BLEU, but models of OpenNMT have them.
        seed: Seed of the dropout, an integer; sampled by default.
        use_gate, attention_axes, flash_attention: Options of `keras.layers.MultiHeadAttention`,
            taken from its configuration if they ask for what this layer does: False; `None` or 1,
            the axis of the length; `None` or False.
        **kwargs: Initializers, regularizers and constraints of the four projections, as
            `keras.layers.MultiHeadAttention` takes them; and what `keras.layers.Layer` takes.
            Kernels are Glorot-uniform by default, over the matrix `(input, heads · key_dim)`.

    Call arguments:
        query: Float `(batch, query, query_features)`.
        value: Float `(batch, key, value_features)`.
        key: Float `(batch, key, key_features)`; `value` by default.
        attention_mask: Bool, True = may attend: `(query, key)`, `(batch, query, key)` or
            `(batch, heads, query, key)`, each axis full or 1. Two axes are never `(batch, key)`,
            also in a batch of as many sentences as queries: give `mask[:, None]`.
        use_causal_mask: Whether query `i` sees the keys `0 … i` only.
        return_attention_scores: Whether to return the weights too.
        training: Whether dropout is active.
        value_mask: Bool `(batch, key)`, True = not padding; Keras gives the mask that is
            attached to `value`.
        key_mask: Bool `(batch, key)`; Keras gives the mask that is attached to `key`.

    Masking: all masks are combined: a key is seen where every mask says True. Masking and
    softmax are done in float32 under every dtype policy. The query's own Keras mask is passed on.

    Returns:
        Float `(batch, query, query_features)` in the compute dtype; with
        `return_attention_scores=True` also the weights before dropout, float
        `(batch, heads, query, key)` in the compute dtype.

    Raises:
        ValueError: A size is not positive, a rate is outside [0, 1), or an option of Keras' layer
            asks for more than this layer does. An input has the wrong axes or features, `value`
            and `key` differ in length, or a mask is float or has another shape.

    References: Vaswani et al. 2017, section 3.2 (arXiv:1706.03762); Ainslie et al. 2023
    (arXiv:2305.13245); Su et al. 2021 (arXiv:2104.09864); Shaw et al. 2018 (arXiv:1803.02155);
    Press et al. 2022 (arXiv:2108.12409).

    Example:

    >>> attention = MultiHeadAttention(num_heads=2, key_dim=8)
    >>> sequence = keras.ops.ones((3, 5, 16))
    >>> tuple(attention(sequence, sequence, use_causal_mask=True).shape)
    (3, 5, 16)
    """

    arguments: tuple[str, ...] = ("num_heads", "key_dim", "value_dim", "dropout", "use_bias")
    arguments += ("num_kv_heads", "sliding_window", "positions", "max_distance", "relative_values")
    arguments += ("seed",)
    sublayer_name = "self_attention"

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | tuple[int, ...] | None = None,
        num_kv_heads: int | None = None,
        sliding_window: int | None = None,
        positions: AttentionPositions | None = None,
        max_distance: int = 16,
        relative_values: bool = False,
        seed: int | None = None,
        use_gate: bool = False,
        attention_axes: int | Sequence[int] | None = None,
        flash_attention: bool | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        _check_options_of_keras(use_gate, attention_axes, flash_attention)
        self.num_heads, self.key_dim, self.max_distance = check_positive(
            num_heads=num_heads, key_dim=key_dim, max_distance=max_distance
        )
        self.value_dim, num_kv_heads, self.sliding_window = check_positive(
            or_none=True,
            value_dim=value_dim,
            num_kv_heads=num_kv_heads,
            sliding_window=sliding_window,
        )
        self.num_kv_heads = num_kv_heads or self.num_heads
        check_flags(use_bias=use_bias, relative_values=relative_values)
        check_attention(self.num_heads, self.num_kv_heads, self.key_dim, positions, relative_values)
        check_rate("dropout", dropout)
        self.dropout = dropout
        self.use_bias = use_bias
        self.positions = positions
        self.relative_values = relative_values
        self.seed = seed
        axes: Any = (output_shape,) if isinstance(output_shape, numbers.Integral) else output_shape
        self._output_shape = None  # JSON makes lists of tuples.
        if axes:
            self._output_shape = tuple(check_positive(output_shape=size)[0] for size in axes)
        self.supports_masking = True
        self._dropout_layer = keras.layers.Dropout(dropout, seed=seed, dtype=self.dtype_policy)

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        self._check_shapes(query_shape, value_shape, key_shape)
        self._widths = query_shape[2], value_shape[2], key_shape[2]
        heads, kv_heads = self.num_heads, self.num_kv_heads
        value_dim = self.value_dim or self.key_dim
        self._query_dense = self._make_projection("query", query_shape, (heads, self.key_dim))
        self._key_dense = self._make_projection("key", key_shape, (kv_heads, self.key_dim))
        self._value_dense = self._make_projection("value", value_shape, (kv_heads, value_dim))
        heads_shape = (*query_shape[:2], heads, value_dim)
        output_axes = self._output_shape or query_shape[2:]
        self._output_dense = self._make_projection(
            "attention_output", heads_shape, output_axes, summed="nh"
        )
        self.distance_embeddings = None
        if self.positions == "relative":
            self.distance_embeddings = self.add_weight(
                name="distance_embeddings",
                shape=(2 * self.max_distance + 1, self.key_dim),
                initializer=keras.initializers.RandomNormal(stddev=self.key_dim**-0.5),
            )
        self.distance_values = None
        if self.positions == "relative" and self.relative_values:
            self.distance_values = self.add_weight(
                name="distance_values",
                shape=(2 * self.max_distance + 1, value_dim),
                initializer=keras.initializers.RandomNormal(stddev=value_dim**-0.5),
            )

    def _make_projection(self, name, input_shape, output_axes, summed="d"):
        output_letters = "uvwxyz"[: len(output_axes)]
        equation = f"bt{summed},{summed}{output_letters}->bt{output_letters}"
        bias_axes = output_letters if self.use_bias else None
        return self._projection(name, equation, input_shape, output_axes, bias_axes)

    def _check_shapes(self, query, value, key, widths=(None, None, None)):
        shapes = {"query": query, "value": value, "key": key}
        for (name, shape), width in zip(shapes.items(), widths, strict=True):
            check_sequence(name, shape, width)
        if None not in (value[1], key[1]) and value[1] != key[1]:
            raise ValueError(
                "`value` and `key` must have the same length. Received: value of shape "
                f"{tuple(value)}, key of shape {tuple(key)}."
            )

    def call(
        self,
        query: keras.KerasTensor,
        value: keras.KerasTensor,
        key: keras.KerasTensor | None = None,
        attention_mask: keras.KerasTensor | None = None,
        use_causal_mask: bool = False,
        return_attention_scores: bool = False,
        training: bool | None = None,
        value_mask: keras.KerasTensor | None = None,
        key_mask: keras.KerasTensor | None = None,
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, keras.KerasTensor]:
        key = value if key is None else key
        self._check_shapes(query.shape, value.shape, key.shape, self._widths)
        mask = masks.combine_attention(
            query.shape,
            value.shape,
            self.num_heads,
            {"value_mask": value_mask, "key_mask": key_mask},
            {"attention_mask": attention_mask},
        )
        window = self.sliding_window
        if window and not return_attention_scores and takes_blocks(query, value, mask, window):
            heads = attend_in_blocks(
                functools.partial(self.attend, training=training),
                self.project_query(query),
                self.project_key_value(value, key),
                mask,
                window,
                use_causal_mask,
            )
            return self.project_output(heads)
        if use_causal_mask:
            lengths = ops.shape(query)[1], ops.shape(value)[1]
            mask = masks.combine(mask, masks.causal_mask(*lengths))
        queries, key_value = self.project_query(query), self.project_key_value(value, key)
        heads, weights = self.attend(queries, key_value, mask, training)
        output = self.project_output(heads)
        return (output, weights) if return_attention_scores else output

    @property
    def projections(self):
        """The projections of query, key, value and output."""
        return self._query_dense, self._key_dense, self._value_dense, self._output_dense

    def inner_layers(self):
        return self._query_dense, self._key_dense, self._value_dense

    def outer_layer(self):
        return self._output_dense

    def mix(
        self,
        inputs,
        attention_mask=None,
        use_causal_mask=True,
        return_attention_scores=False,
        training=None,
    ):
        options = {"return_attention_scores": return_attention_scores, "training": training}
        masks = {"attention_mask": attention_mask, "use_causal_mask": use_causal_mask}
        outputs = self(inputs, inputs, **masks, **options)
        return outputs if return_attention_scores else (outputs, None)

    def start(self, batch, beams, capacity):
        heads, value_dim = self.num_kv_heads, self.value_dim or self.key_dim
        sizes = batch, heads, capacity * beams, self.key_dim, value_dim
        return KeyValue.empty(*sizes, self.compute_dtype)

    def step(
        self,
        inputs: keras.KerasTensor,
        state: KeyValue,
        past: Past,
        projections: Projections | None = None,
    ) -> tuple[keras.KerasTensor, KeyValue]:
        """Computes self-attention of new positions, and writes their keys and values."""
        project, project_output = projections or self.own_projections()
        positions = past.positions
        if positions is None:
            new, entries = ops.shape(inputs)[1], ops.shape(state.value)[2]
            positions = ops.arange(new) + ops.cast(past.slot, "int32"), ops.arange(entries)
        query, key, value = project(inputs)
        state = state.write(self._key_value(key, value, positions[0]), past.slot)
        query = self._query(query, positions[0])
        heads, _ = self.attend(query, state, past.mask, positions=positions)
        return project_output(heads), state

    def cross_step(
        self,
        inputs: keras.KerasTensor,
        key_value: KeyValue,
        mask: keras.KerasTensor | None,
        projections: Projections | None = None,
    ) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        """Attends from new positions to a projected sequence; returns outputs and weights.

        `projections`, if given, project only the queries and the output.
        """
        projections = projections or Projections(
            lambda query: (self._query_dense(query),), self._output_dense
        )
        (query,) = projections.inner(inputs)
        heads, weights = self.attend(self._query(query), key_value, mask)
        return projections.outer(heads), weights

    def project_query(self, query: keras.KerasTensor) -> keras.KerasTensor:
        """Projects `(batch, query, query_features)` to `(batch, heads, query, key_dim)`."""
        return self._query(self._query_dense(query))

    def project_key_value(
        self, value: keras.KerasTensor, key: keras.KerasTensor | None = None
    ) -> KeyValue:
        """Projects `value` and `key` of a call, once for any queries."""
        return self._key_value(
            self._key_dense(value if key is None else key), self._value_dense(value)
        )

    def _query(self, query, positions=None):
        return ops.transpose(self._apply_rotary(query, positions), (0, 2, 1, 3))

    def _key_value(self, key, value, positions=None):
        return KeyValue(
            # --> [batch, kv_heads, key_dim, key]
            ops.transpose(self._apply_rotary(key, positions), (0, 2, 3, 1)),
            ops.transpose(value, (0, 2, 1, 3)),
        )

    def _apply_rotary(self, heads, positions):
        """Rotates queries or keys `(batch, length, heads, key_dim)` where positions are rotary."""
        if self.positions != "rotary":
            return heads
        positions = ops.arange(ops.shape(heads)[1]) if positions is None else positions
        return apply_rotary(heads, positions)

    def project_output(self, heads: keras.KerasTensor) -> keras.KerasTensor:
        """Projects `(batch, query, heads, value_dim)` to the output."""
        return self._output_dense(heads)

    def attend(
        self,
        query: keras.KerasTensor,
        key_value: KeyValue,
        mask: keras.KerasTensor | None = None,
        training: bool | None = None,
        positions: tuple[keras.KerasTensor, keras.KerasTensor] | None = None,
    ) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        """Attends with projected queries to projected keys and values.

        Args:
            query: Float `(batch, heads, query, key_dim)`.
            key_value: Projected keys and values, a `KeyValue`.
            mask: Bool, True = may attend, broadcastable to `(batch, heads, query, key)`.
            training: Whether dropout is active.
            positions: Integer `(query,)` and `(key,)`, from which distances are computed:
                0, 1, … by default.

        Returns:
            Float `(batch, query, heads, value_dim)`, and weights `(batch, heads, query, key)`.
        """
        key, value = key_value
        if positions is None:
            positions = ops.arange(ops.shape(query)[2]), ops.arange(ops.shape(value)[2])
        query = ops.multiply(query, 1.0 / math.sqrt(self.key_dim))
        if self.compute_dtype == "float16":
            # A score past 65,504 would be infinite, and a row of infinities NaN.
            query, key = ops.cast(query, "float32"), ops.cast(key, "float32")
        scores = self._product_per_group(query, key)  # --> [batch, heads, query, key]
        if self.distance_embeddings is not None:
            table = ops.convert_to_tensor(self.distance_embeddings)
            scores = scores + relative_scores(query, table, *positions)
        if self.positions == "alibi":
            # float32: bfloat16 could not tell far distances apart.
            scores = ops.cast(scores, "float32") + alibi_scores(self.num_heads, *positions)
        if self.sliding_window is not None:
            mask = masks.combine(mask, masks.window_mask(*positions, self.sliding_window))
        weights = ops.cast(masks.masked_softmax(scores, mask), self.compute_dtype)
        dropped_weights = self._dropout_layer(weights, training=training)
        # --> [batch, heads, query, value_dim]
        heads = self._product_per_group(dropped_weights, value)
        if self.distance_values is not None:
            table = ops.convert_to_tensor(self.distance_values)
            heads = heads + relative_values(dropped_weights, table, *positions)
        return ops.transpose(heads, (0, 2, 1, 3)), weights

    def _product_per_group(self, rows, shared):
        """Multiplies the rows of each head with the keys or values that its group shares.

        From `(batch, heads, query, x)` and `(batch, kv_heads, x, y)` to `(batch, heads, query, y)`.
        """
        if self.num_kv_heads == self.num_heads:
            return ops.matmul(rows, shared)
        batch, _, length, width = ops.shape(rows)
        group = self.num_heads // self.num_kv_heads
        grouped = ops.reshape(rows, (batch, self.num_kv_heads, group * length, width))
        products = ops.matmul(grouped, shared)  # --> [batch, kv_heads, group * query, y]
        return ops.reshape(products, (batch, self.num_heads, length, ops.shape(products)[3]))

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        return (*query_shape[:2], *(self._output_shape or query_shape[2:]))

    def get_config(self):
        return {**super().get_config(), "output_shape": self._output_shape}

    @classmethod
    def from_config(cls, config):
        # Here, because Keras makes a `TypeError` of several lines of what a constructor raises.
        names = "use_gate", "attention_axes", "flash_attention"
        _check_options_of_keras(**{name: config[name] for name in names if name in config})
        return super().from_config(config)


def _check_options_of_keras(use_gate=False, attention_axes=None, flash_attention=None):
    """Raises `ValueError` for what Keras' layer of this name does and this one does not."""
    axes = attention_axes if isinstance(attention_axes, int) else tuple(attention_axes or ())
    for name, value, is_possible, rule in (
        ("use_gate", use_gate, not use_gate, "False: there is no gate"),
        ("attention_axes", axes, axes in ((), 1, (1,)), "None or 1, the axis of the length"),
        ("flash_attention", flash_attention, not flash_attention, "None or False"),
    ):
        if not is_possible:
            raise ValueError(
                f"`{name}` must be {rule}. Received: {name}={value!r}. Keep "
                "`keras.layers.MultiHeadAttention` for it."
            )
