"""Projections, and the base of the layers that are made of them."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.base.options import check_positive
from keras_transformer.layers.half_precision import matmul
from keras_transformer.layers.matrix_layer import MatrixLayer
from keras_transformer.layers.quantization import dtype_config, layers_in


class Projection(MatrixLayer, keras.layers.EinsumDense):
    """A `keras.layers.EinsumDense` from `(batch, length, …)` to `(batch, length, …)`.

    It multiplies rows with one matrix: with TensorFlow's gradient of a product over several axes,
    an attention layer takes 1.4 times as long on a CPU. It has no activation.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.supports_masking = True

    def compute_output_shape(self, input_shape):
        return (*input_shape[:2], *self.partial_output_shape[1:])

    def call(self, inputs, training=None):
        output_axes = self.partial_output_shape[1:]
        width = math.prod(output_axes)
        rows = ops.reshape(inputs, (-1, math.prod(frozen_kernel(self).shape) // width))
        outputs = _product(self, rows, width)
        if self.bias is not None:
            outputs = outputs + ops.cast(ops.reshape(self.bias, (width,)), outputs.dtype)
        return ops.reshape(outputs, (*ops.shape(inputs)[:2], *output_axes))


class Dense(MatrixLayer, keras.layers.Dense):
    """A `keras.layers.Dense` that computes LoRA without a sum of matrices."""

    def call(self, inputs, training=None):
        outputs = _product(self, inputs, self.units)
        if self.bias is not None:
            outputs = outputs + ops.cast(self.bias, outputs.dtype)
        return outputs if self.activation is None else self.activation(outputs)


def _product(layer, rows, width):
    """Multiplies rows with a kernel, a matrix of `width` columns, and with LoRA's two matrices.

    Keras computes `x · (W + A · B)`. The sum and its gradient are as large as the kernel, for all
    layers at the same time; in `x · W + (x · A) · B` nothing is.
    """
    if not layer.lora_enabled:
        return matmul(rows, ops.reshape(layer.kernel, (-1, width)))
    outputs = matmul(rows, ops.reshape(frozen_kernel(layer), (-1, width)))
    # A kernel into heads has a first matrix for each head, and one second matrix.
    rank, columns = layer.lora_kernel_b.shape
    heads = width // columns
    first = ops.reshape(layer.lora_kernel_a, (-1, heads * rank))
    inner = ops.reshape(ops.matmul(rows, first), (*ops.shape(rows)[:-1], heads, rank))
    update = ops.reshape(ops.matmul(inner, layer.lora_kernel_b), ops.shape(outputs))
    return outputs + layer.lora_alpha / layer.lora_rank * update


def frozen_kernel(layer: keras.layers.Layer) -> keras.Variable:
    """Returns the variable of a projection that LoRA leaves as it is."""
    return layer._kernel  # Keras' `kernel` is the sum with LoRA's product.


class LayerOfProjections(keras.layers.Layer):
    """Takes Keras' arguments for the weights of projections, and hands them to each one.

    An initializer, a regularizer or a constraint is an object or its name in Keras; each projection
    gets an initializer of its own. `keras.layers.Layer` takes the other arguments.
    """

    # Arguments of a subclass, each also an attribute.
    arguments: tuple[str, ...] = ()

    def __init__(
        self,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        activity_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        regularizer, constraint = keras.regularizers.get, keras.constraints.get
        self._projection_options = {
            "kernel_initializer": _initializer(kernel_initializer),
            "bias_initializer": _initializer(bias_initializer),
            "kernel_regularizer": regularizer(kernel_regularizer),
            "bias_regularizer": regularizer(bias_regularizer),
            "activity_regularizer": regularizer(activity_regularizer),
            "kernel_constraint": constraint(kernel_constraint),
            "bias_constraint": constraint(bias_constraint),
        }

    def _options_of_a_projection(self):
        """Keyword arguments of a sublayer, whose initializers draw values of their own."""
        options = {
            name: option.clone() if hasattr(option, "clone") else option
            for name, option in self._projection_options.items()
        }
        return {"dtype": self.dtype_policy, **options}

    def _projection(self, name, equation, input_shape, output_axes, bias_axes=None):
        projection = Projection(
            equation,
            output_shape=(None, *output_axes),
            bias_axes=bias_axes,
            name=name,
            **self._options_of_a_projection(),
        )
        projection.build(input_shape)
        return projection

    def enable_lora(self, rank: int, lora_alpha: float | None = None, **initializers: Any) -> None:
        """Freezes the kernel of each projection in this layer, and adds two trainable matrices.

        It calls `enable_lora` of `keras.layers.Dense` for each projection. Biases, normalizations
        and vectors of distances are still trained. Files have the merged kernels. Call it before
        `compile`.

        Args:
            rank: Rank of the product of both matrices.
            lora_alpha: The product is multiplied with `lora_alpha / rank`; `rank` by default.
            **initializers: `a_initializer` and `b_initializer`, as Keras takes them.

        Raises:
            ValueError: The layer is not built, or has no projections. The rank is not positive. A
                projection has LoRA already, or a constraint.

        Reference: Hu et al. 2021 (arXiv:2106.09685).
        """
        (rank,) = check_positive(rank=rank)
        projections = dense_layers(self)
        if not projections:
            raise ValueError(
                "LoRA needs a layer with projections, which a layer has after its first call. "
                f"Received: {self.name}, built={self.built}, without projections."
            )
        if paths := [layer.path for layer in projections if layer.lora_enabled]:
            raise ValueError(f"LoRA is enabled only once. Received: {paths[0]}, which has LoRA.")
        for layer in projections:
            layer.enable_lora(rank, lora_alpha=lora_alpha, **initializers)

    def compute_output_spec(self, *args, **kwargs):
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self):
        options = {
            name: option
            if option is None or isinstance(option, str)
            else keras.saving.serialize_keras_object(option)
            for name, option in self._projection_options.items()
        }
        arguments = {name: getattr(self, name) for name in self.arguments}
        if "activation" in arguments:
            arguments["activation"] = keras.activations.serialize(self.activation)
        return {**super().get_config(), **dtype_config(self), **options, **arguments}


def dense_layers(layer: keras.layers.Layer) -> list[Any]:
    """Returns the dense layers in a layer, and the layer itself if it is one."""
    kinds = keras.layers.Dense, keras.layers.EinsumDense
    return [sublayer for sublayer in layers_in(layer) if isinstance(sublayer, kinds)]


def _initializer(identifier):
    # A name stays one: an initializer draws its seed when it is made, once for each projection.
    return identifier if isinstance(identifier, str) else keras.initializers.get(identifier)


def check_sequence(name: str, shape: Sequence[int | None], width: int | None = None) -> None:
    """Raises `ValueError` unless `shape` is `(batch, length, features)`, of `width` features."""
    if len(shape) != 3:
        raise ValueError(
            f"`{name}` must have the axes (batch, length, features). "
            f"Received: {name} of shape {tuple(shape)}."
        )
    if width is not None and shape[2] != width:
        raise ValueError(
            f"`{name}` must have the {width} features that the layer was built for. "
            f"Received: {name} of shape {tuple(shape)}."
        )
