"""The base of layers that use or pass on the mask that Keras attached to their inputs."""

import keras
from packaging.version import Version

IS_EARLY_KERAS = Version(keras.__version__).release < (3, 14)
"""True for a Keras that loses the mask of a tensor that a layer casts to its compute dtype. It also
scales a kernel's initial values by its last two axes, as if it had no others."""


class MaskedLayer(keras.layers.Layer):
    """A layer that keeps the masks of its inputs when it casts them to its compute dtype.

    Keras itself keeps them since version 3.14. Earlier versions lose them without an error, and
    then padding changes results.
    """

    def __call__(self, *args, **kwargs):
        if IS_EARLY_KERAS:
            args, kwargs = keras.tree.map_structure(self._cast_with_mask, (args, kwargs))
        return super().__call__(*args, **kwargs)

    def _cast_with_mask(self, value):
        # Keras casts a symbolic tensor itself; its mask has no numbers yet.
        if not keras.ops.is_tensor(value) or isinstance(value, keras.KerasTensor):
            return value
        # Only earlier versions of Keras are asked for these functions, which are not public.
        from keras.src.backend import get_keras_mask, set_keras_mask

        mask = get_keras_mask(value)
        if mask is None:
            return value
        value = self.dtype_policy.convert_input(value, self.autocast, self.input_dtype)
        set_keras_mask(value, mask)
        return value
