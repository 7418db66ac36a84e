"""Switches attention heads off temporarily, or removes them permanently."""

import collections
import contextlib
from collections.abc import Iterator, Sequence

import keras
import numpy as np
from keras import ops

from keras_transformer.base.errors import InputError
from keras_transformer.extras.analysis.attention import KINDS, attention_layers, kinds_of
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.models import Transformer


@contextlib.contextmanager
def heads_off(model: keras.Model, names: Sequence[str]) -> Iterator[None]:
    """Switches heads off inside a `with` block: the output projection multiplies them by 0.

    It also works in decoding, unless an engine with `frozen=True` has laid the weights out before.

    Args:
        model: `Transformer`, or another model of this package's blocks.
        names: Heads as `encoder.0.1`: kind, layer, head.

    Raises:
        InputError: The model has no such head.
        ValueError: A projection is quantized or has LoRA's weights.
    """
    kernels = []
    for layer, heads in _heads_by_layer(model, names):
        kernel = layer.projections[-1].kernel
        kernels.append((kernel, ops.convert_to_numpy(kernel), heads))
    try:
        for variable, kernel, heads in kernels:
            is_kept = ~np.isin(np.arange(len(kernel)), heads)
            variable.assign(kernel * is_kept[:, None, None])
        yield
    finally:
        for variable, kernel, _ in kernels:
            variable.assign(kernel)


def prune_heads(model: Transformer, names: Sequence[str]) -> Transformer:
    """Makes a smaller model without some heads, equal to `model` with `heads_off`.

    Its projections have fewer features, and its configuration has the number of heads of each
    block. The remaining heads are numbered again. Blocks over turns keep all of their heads.

    Args:
        model: `Transformer`, `LanguageModel` or `Classifier`. It is not changed.
        names: Heads as `encoder.0.1`: kind, layer, head.

    Returns:
        A model of the class of `model` with copies of the weights, not compiled.

    Raises:
        InputError: The model has no such head, or a layer would have no heads.
        ValueError: A projection is quantized or has LoRA's weights.

    Reference: Michel et al. 2019 (arXiv:1905.10650).
    """
    if (shared := model.config.num_kv_heads) is not None:
        raise InputError(
            "Heads of grouped-query attention cannot be pruned. "
            f"Received: model.num_kv_heads={shared}."
        )
    kinds, removed_heads = kinds_of(model), dict(_heads_by_layer(model, names))
    remaining_counts = collections.defaultdict(list)
    # The axis and the heads of each weight, by the weight's `id`.
    kept_heads: dict[int, tuple[int, list[int]]] = {}
    for layer in attention_layers(model):
        heads = [
            head for head in range(layer.num_heads) if head not in removed_heads.get(layer, ())
        ]
        if not heads:
            raise InputError(f"At least one head must be left in {layer.path}. Received: {names}.")
        remaining_counts[f"{kinds[id(layer)]}_heads"].append(len(heads))
        *inner, outer = layer.projections
        kept_heads[id(outer.kernel)] = 0, heads
        for projection in inner:
            kept_heads[id(projection.kernel)] = 1, heads
            if projection.bias is not None:
                kept_heads[id(projection.bias)] = 0, heads
    config = model.config.from_dict({**model.config.to_dict(), **remaining_counts})
    pruned = type(model)(config, dtype=model.dtype_policy, name=model.name)
    for old, new in zip(model.weights, pruned.weights, strict=True):
        value = ops.convert_to_numpy(old)
        if id(old) in kept_heads:
            axis, heads = kept_heads[id(old)]
            value = np.take(value, heads, axis)
        new.assign(value)
    return pruned


def _heads_by_layer(model, names) -> list[tuple[MultiHeadAttention, list[int]]]:
    """Lists each layer that has heads in `names`, with these heads."""
    kinds = kinds_of(model)
    layers: dict[str, list[MultiHeadAttention]] = {kind: [] for kind in KINDS}
    for attention_layer in attention_layers(model):
        if id(attention_layer) in kinds:
            layers[kinds[id(attention_layer)]].append(attention_layer)
    heads_of_layers: dict[MultiHeadAttention, list[int]] = {}
    for name in names:
        kind, _, index = name.partition(".")
        try:
            number, head = map(int, index.split("."))
            if min(number, head) < 0 or head >= layers[kind][number].num_heads:
                raise IndexError
            layer = layers[kind][number]
        except (KeyError, ValueError, IndexError):
            head_counts = ", ".join(
                f"{kind} {[layer_of_kind.num_heads for layer_of_kind in layers_of_kind]}"
                for kind, layers_of_kind in layers.items()
                if layers_of_kind
            )
            raise InputError(
                "A head is KIND.LAYER.HEAD, counted from 0, as encoder.0.1; the heads of each "
                f"layer are {head_counts}. Received: {name!r}."
            ) from None
        heads_of_layers.setdefault(layer, []).append(head)
    for projection in (projection for layer in heads_of_layers for projection in layer.projections):
        if projection.quantization_mode is not None or projection.lora_enabled:
            raise ValueError(
                "Heads can be removed only from plain projections. "
                f"Received: {projection.path}, quantized or with LoRA."
            )
    return [*heads_of_layers.items()]
