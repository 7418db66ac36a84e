"""Projections, and the base of the layers that are made of them."""

import functools
import math
from collections.abc import Sequence

import keras
from keras import ops

from keras_transformer.layers.masks import IS_EARLY_KERAS, MaskedLayer


class Projection(keras.layers.EinsumDense):
    """A `keras.layers.EinsumDense` from `(batch, length, …)` to `(batch, length, …)`.

    It multiplies rows with one matrix: with TensorFlow's gradient of a product over several axes,
    an attention layer takes 1.4 times as long on a CPU. It has no activation.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.supports_masking = True

    def build(self, input_shape):
        initializer = self.kernel_initializer
        is_scaled = isinstance(initializer, keras.initializers.VarianceScaling)
        if IS_EARLY_KERAS and is_scaled:
            self.kernel_initializer = functools.partial(_values_of_matrix, initializer, self._width)
        super().build(input_shape)
        self.kernel_initializer = initializer

    @property
    def _width(self):
        return math.prod(self.partial_output_shape[1:])

    def compute_output_shape(self, input_shape):
        return (*input_shape[:2], *self.partial_output_shape[1:])

    def call(self, inputs, training=None):
        output_axes = self.partial_output_shape[1:]
        width = self._width
        matrix = ops.reshape(self.kernel, (-1, width))
        outputs = ops.matmul(ops.reshape(inputs, (-1, matrix.shape[0])), matrix)
        if self.bias is not None:
            outputs = outputs + ops.reshape(self.bias, (width,))
        return ops.reshape(outputs, (*ops.shape(inputs)[:2], *output_axes))

    def quantize(self, mode=None, type_check=True, config=None):
        # Keras refuses subclasses, which may compute something else; this one computes it.
        super().quantize(mode, type_check=False, config=config)


class LayerOfProjections(MaskedLayer):
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
        return {**super().get_config(), **options, **arguments}


def _values_of_matrix(initializer, width, shape, dtype=None):
    """Calls an initializer with the matrix that a kernel is, as Keras does since version 3.14."""
    values = initializer((math.prod(shape) // width, width), dtype=dtype)
    return ops.reshape(values, shape)


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
