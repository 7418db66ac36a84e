"""Heads switched off for a while, or taken out for good."""

import collections
import contextlib
from collections.abc import Iterator, Sequence

import keras
import numpy as np
from keras import ops

from keras_transformer.analysis.attention import KINDS, attention_layers, kinds_of
from keras_transformer.errors import InputError
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.models import Transformer


@contextlib.contextmanager
def heads_off(model: keras.Model, names: Sequence[str]) -> Iterator[None]:
    """Switches heads off in the block: their output is multiplied by 0 in the output projection.

    This holds in decoding too, unless an engine with `frozen=True` has laid the weights out before.

    Args:
        model: `Transformer`, or another model of this package's blocks.
        names: As `encoder.0.1`: kind, layer, head.

    Raises:
        InputError: There is no such head.
        ValueError: A projection is quantized or has LoRA's weights.
    """
    kernels = []
    for layer, heads in _heads_by_layer(model, names):
        kernel = layer.projections[-1].kernel
        kernels.append((kernel, ops.convert_to_numpy(kernel), heads))
    try:
        for variable, kernel, heads in kernels:
            kept = ~np.isin(np.arange(len(kernel)), heads)
            variable.assign(kernel * kept[:, None, None])
        yield
    finally:
        for variable, kernel, _ in kernels:
            variable.assign(kernel)


def prune_heads(model: Transformer, names: Sequence[str]) -> Transformer:
    """Makes a smaller model without some heads, equal to `model` with `heads_off`.

    Its projections have fewer features, its configuration has the heads of each block. The
    remaining heads are counted again. Blocks over turns keep all of their heads.

    Args:
        model: `Transformer`, `LanguageModel` or `Classifier`. It is not changed.
        names: As `encoder.0.1`: kind, layer, head.

    Returns:
        A model of the class of `model` with copies of the weights, not compiled.

    Raises:
        InputError: There is no such head, or a layer would have none left.
        ValueError: A projection is quantized or has LoRA's weights.

    Reference: Michel et al. 2019 (arXiv:1905.10650).
    """
    if (shared := model.config.num_kv_heads) is not None:
        raise InputError(
            "Heads that share keys and values are not pruned. "
            f"Received: model.num_kv_heads={shared}."
        )
    kinds, off = kinds_of(model), dict(_heads_by_layer(model, names))
    left = collections.defaultdict(list)
    kept_of: dict[int, tuple[int, list[int]]] = {}  # By a weight's id: its axis, its heads.
    for layer in attention_layers(model):
        kept = [head for head in range(layer.num_heads) if head not in off.get(layer, ())]
        if not kept:
            raise InputError(f"At least one head must be left in {layer.path}. Received: {names}.")
        left[f"{kinds[id(layer)]}_heads"].append(len(kept))
        *inner, outer = layer.projections
        kept_of[id(outer.kernel)] = 0, kept
        for each in inner:
            kept_of[id(each.kernel)] = 1, kept
            if each.bias is not None:
                kept_of[id(each.bias)] = 0, kept
    config = model.config.from_dict({**model.config.to_dict(), **left})
    pruned = type(model)(config, dtype=model.dtype_policy, name=model.name)
    for old, new in zip(model.weights, pruned.weights, strict=True):
        value = ops.convert_to_numpy(old)
        if id(old) in kept_of:
            axis, kept = kept_of[id(old)]
            value = np.take(value, kept, axis)
        new.assign(value)
    return pruned


def _heads_by_layer(model, names) -> list[tuple[MultiHeadAttention, list[int]]]:
    """Lists each layer that has named heads, with these heads."""
    kinds = kinds_of(model)
    layers: dict[str, list[MultiHeadAttention]] = {kind: [] for kind in KINDS}
    for each in attention_layers(model):
        if id(each) in kinds:
            layers[kinds[id(each)]].append(each)
    found: dict[MultiHeadAttention, list[int]] = {}
    for name in names:
        kind, _, place = name.partition(".")
        try:
            number, head = map(int, place.split("."))
            if min(number, head) < 0 or head >= layers[kind][number].num_heads:
                raise IndexError
            layer = layers[kind][number]
        except (KeyError, ValueError, IndexError):
            heads = {kind: [each.num_heads for each in own] for kind, own in layers.items()}
            known = ", ".join(f"{kind} {counts}" for kind, counts in heads.items() if counts)
            raise InputError(
                "A head is KIND.LAYER.HEAD, counted from 0, as encoder.0.1; the heads of each "
                f"layer are {known}. Received: {name!r}."
            ) from None
        found.setdefault(layer, []).append(head)
    for each in (projection for layer in found for projection in layer.projections):
        if each.quantization_mode is not None or each.lora_enabled:
            raise ValueError(
                "Heads are taken out of plain projections alone. "
                f"Received: {each.path}, quantized or with LoRA."
            )
    return [*found.items()]
