"""All layers in a layer, and its configuration where some of them are quantized."""

from typing import Any

import keras


def layers_in(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Returns a layer and all layers inside it, for which Keras has no public method."""
    return list(layer._flatten_layers())


def dtype_config(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns `dtype` for the configuration of a layer that makes its sublayers itself.

    Keras loads a layer from its configuration, which must say which of its sublayers are quantized.
    """
    policy = layer.dtype_policy
    quantized = {
        sublayer.path: sublayer.dtype_policy
        for sublayer in layers_in(layer)
        if sublayer is not layer and sublayer.quantization_mode is not None
    }
    if quantized and not isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        policy = keras.dtype_policies.DTypePolicyMap(policy.name, quantized)
    return {"dtype": keras.dtype_policies.serialize(policy)}
