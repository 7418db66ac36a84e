"""Positions as sines and cosines of geometric wavelengths."""

import math
import numbers
from typing import Any

import keras
from keras import ops

from keras_transformer.config.checks import check


@keras.saving.register_keras_serializable(package="keras_transformer")
class SinusoidalPositionalEncoding(keras.layers.Layer):
    """Adds `sin(p / w^(2i/d))` to feature `2i` and `cos(p / w^(2i/d))` to feature `2i + 1`.

    `p` is the position, `d` the width, `w` the `max_wavelength`. There are no weights and no
    longest length. The angles are computed in float32 whatever the dtype policy: in float16 or
    bfloat16, positions past a few hundred could not be told apart.

    Args:
        max_wavelength: The longest wavelength is 2π times this, in tokens.

    Call arguments:
        inputs: Float `(batch, length, model_dim)`; an odd width ends with a sine.
        start_index: Position of the first token, an integer or an integer scalar tensor; not
            zero when a sequence arrives in parts.

    Masking: a Keras mask on `inputs` is passed on; padding gets a position like all else.

    Returns:
        `inputs` + encoding, of the same shape, in the compute dtype.

    Raises:
        ValueError: `max_wavelength` is not positive.

    Reference: Vaswani et al. 2017, section 3.5 (arXiv:1706.03762).

    Example:

    >>> encoding = SinusoidalPositionalEncoding()(keras.ops.zeros((1, 2, 512)))
    >>> [round(float(x), 4) for x in encoding[0, 1, :4]]
    [0.8415, 0.5403, 0.8219, 0.5697]
    """

    def __init__(self, max_wavelength: float = 10000, **kwargs: Any):
        super().__init__(**kwargs)
        check("max_wavelength", max_wavelength, "a positive number", numbers.Real)
        self.max_wavelength = max_wavelength
        self.supports_masking = True
        # `start_index=3` may be given by position, like any other call argument.
        self._allow_non_tensor_positional_args = True

    def build(self, input_shape):
        pass

    def call(
        self, inputs: keras.KerasTensor, start_index: int | keras.KerasTensor = 0
    ) -> keras.KerasTensor:
        width = inputs.shape[-1]
        positions = ops.cast(start_index, "float32") + ops.arange(
            ops.shape(inputs)[1], dtype="float32"
        )
        pairs = ops.arange((width + 1) // 2, dtype="float32")
        frequencies = ops.exp(pairs * (-2.0 * math.log(self.max_wavelength) / width))
        angles = ops.expand_dims(positions, 1) * frequencies  # --> [length, pairs]
        interleaved = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
        encoding = ops.reshape(interleaved, (-1, 2 * ((width + 1) // 2)))[:, :width]
        return inputs + ops.cast(encoding, inputs.dtype)

    def get_config(self):
        return {**super().get_config(), "max_wavelength": self.max_wavelength}
