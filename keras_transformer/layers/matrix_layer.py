"""Base of this package's versions of Keras' layers with a matrix."""

from typing import Any

import keras

from keras_transformer.base.large_variables import initializer_of
from keras_transformer.layers.half_precision import HalfPrecisionWeights


class MatrixLayer(keras.layers.Layer):
    """Base of subclasses of Keras' layers that compute the same products in another way."""

    def add_weight(self, *args: Any, initializer: Any = None, **options: Any) -> keras.Variable:
        if isinstance(self.dtype_policy, HalfPrecisionWeights):
            options["autocast"] = False  # A product casts it, not Keras before a call.
        return super().add_weight(*args, initializer=initializer_of(initializer), **options)

    def quantize(self, mode=None, type_check=True, config=None):
        # Keras refuses subclasses, which may compute something else.
        super().quantize(mode, type_check=False, config=config)
