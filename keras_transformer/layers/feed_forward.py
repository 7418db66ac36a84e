"""The position-wise feed-forward sublayer."""

from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.base.options import check_positive, check_rate
from keras_transformer.layers.projection import Dense, LayerOfProjections


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(LayerOfProjections):
    """Two projections applied at each position: `W2 · activation(W1 · x + b1) + b2`.

    Args:
        intermediate_dim: Width of the inner projection.
        activation: Name of a Keras activation, or a callable.
        dropout: Probability of zeroing an inner unit, in [0, 1).
        **kwargs: Initializers, regularizers and constraints of both projections, as
            `keras.layers.Dense` takes them; and what `keras.layers.Layer` takes.

    Call arguments:
        inputs: Float `(batch, length, model_dim)`. Padding is not masked here.
        training: Whether dropout is active.

    Returns:
        Float, the shape of `inputs`, in the compute dtype.

    Raises:
        ValueError: `intermediate_dim` is not positive, or a rate is outside [0, 1).

    Reference: Vaswani et al. 2017, section 3.3 (arXiv:1706.03762).
    """

    arguments = ("intermediate_dim", "activation", "dropout")

    def __init__(
        self,
        intermediate_dim: int,
        activation: str | Callable = "relu",
        dropout: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        (self.intermediate_dim,) = check_positive(intermediate_dim=intermediate_dim)
        check_rate("dropout", dropout)
        self.activation = keras.activations.get(activation)
        self.dropout = dropout
        self.supports_masking = True
        self._dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape):
        self._inner_dense = Dense(
            self.intermediate_dim,
            activation=self.activation,
            name="inner",
            **self._options_of_a_projection(),
        )
        self._outer_dense = Dense(input_shape[-1], name="outer", **self._options_of_a_projection())
        self._inner_dense.build(input_shape)
        self._outer_dense.build((*input_shape[:-1], self.intermediate_dim))

    def call(self, inputs: keras.KerasTensor, training: bool | None = None) -> keras.KerasTensor:
        inner = self._dropout_layer(self._inner_dense(inputs), training=training)
        return self._outer_dense(inner)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    @property
    def projections(self):
        """The inner and the outer projection."""
        return self._inner_dense, self._outer_dense
