"""The common base of the encoder's and the decoder's block."""

from collections.abc import Callable
from typing import Any, Literal

import keras

from keras_transformer.config import check_positive, check_rate
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.projection import LayerOfProjections, check_sequence


class Block(LayerOfProjections):
    """Arguments, sublayers and the residual rule of `EncoderBlock` and `DecoderBlock`.

    A sublayer `f` computes `norm(x + dropout(f(x)))`, or pre-norm `x + dropout(f(norm(x)))`.
    """

    arguments: tuple[str, ...] = ("intermediate_dim", "num_heads", "dropout", "activation")
    arguments += ("normalize_first", "attention_dropout", "feed_forward_dropout")
    arguments += ("layer_norm_epsilon", "key_dim", "num_kv_heads", "sliding_window")
    arguments += ("positions", "max_distance")

    def __init__(
        self,
        intermediate_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        activation: str | Callable = "relu",
        normalize_first: bool = False,
        attention_dropout: float = 0.0,
        feed_forward_dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-5,
        key_dim: int | None = None,
        num_kv_heads: int | None = None,
        sliding_window: int | None = None,
        positions: Literal["rotary", "relative"] | None = None,
        max_distance: int = 16,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_positive(intermediate_dim=intermediate_dim, num_heads=num_heads)
        check_positive(or_none=True, key_dim=key_dim)
        check_rate("dropout", dropout)
        check_rate("attention_dropout", attention_dropout)
        check_rate("feed_forward_dropout", feed_forward_dropout)
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.activation = keras.activations.get(activation)
        self.normalize_first = normalize_first
        self.attention_dropout = attention_dropout
        self.feed_forward_dropout = feed_forward_dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.key_dim = key_dim
        self.num_kv_heads = num_kv_heads
        self.sliding_window = sliding_window
        self.positions = positions
        self.max_distance = max_distance
        self.supports_masking = True
        self._model_dim = None
        self._dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def _build_self_attention(self, shape):
        self._check_inputs(shape)
        self._model_dim = shape[2]
        self.self_attention = self._attention(
            "self_attention",
            shape,
            shape,
            sliding_window=self.sliding_window,
            positions=self.positions,
            max_distance=self.max_distance,
        )
        self.self_attention_norm = self._normalization("self_attention_norm", shape)

    def _build_feed_forward(self, shape):
        self.feed_forward = FeedForward(
            self.intermediate_dim,
            activation=self.activation,
            dropout=self.feed_forward_dropout,
            name="feed_forward",
            **self._options_of_a_projection(),
        )
        self.feed_forward.build(shape)
        self.feed_forward_norm = self._normalization("feed_forward_norm", shape)

    def _attention(self, name, query_shape, value_shape, num_heads=None, **own):
        if self.key_dim is None and self._model_dim % self.num_heads:
            raise ValueError(
                "`num_heads` must divide the width of the input. "
                f"Received: num_heads={self.num_heads}, input of shape {tuple(query_shape)}."
            )
        attention = MultiHeadAttention(
            num_heads or self.num_heads,
            key_dim=self.key_dim or self._model_dim // self.num_heads,
            dropout=self.attention_dropout,
            num_kv_heads=self.num_kv_heads,
            name=name,
            **own,
            **self._options_of_a_projection(),
        )
        attention.build(query_shape, value_shape)
        return attention

    def _normalization(self, name, input_shape):
        # Keras computes the mean and the variance in float32 under every policy.
        normalization = keras.layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name=name
        )
        normalization.build(input_shape)
        return normalization

    def _check_inputs(self, shape):
        check_sequence("inputs", shape, self._model_dim)

    def _pre_norm(self, normalization, inputs):
        return normalization(inputs) if self.normalize_first else inputs

    def _add(self, inputs, outputs, normalization, training=None):
        outputs = inputs + self._dropout_layer(outputs, training=training)
        return outputs if self.normalize_first else normalization(outputs)

    def compute_output_shape(self, inputs_shape, *other_shapes):
        return tuple(inputs_shape)
