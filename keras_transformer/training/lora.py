"""LoRA: trains small matrices next to frozen projections, and saves only the small matrices.

Reference: Hu et al. 2021 (arXiv:2106.09685).
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.base.errors import InputError
from keras_transformer.base.files import replaced_file
from keras_transformer.base.reading import read_arrays
from keras_transformer.layers.projection import dense_layers, frozen_kernel

_SMALL = ("lora_kernel_a", "lora_kernel_b")


def enable_lora(model: keras.Model, rank: int) -> None:
    """Freezes all weights, and adds trainable matrices of a rank to the projections.

    These are the projections of attention, SSRU and feed-forward layers.

    Raises:
        InputError: The model has no such layers.
    """
    if not projections_of(model):
        rule = "`training.lora_rank` needs a model with attention."
        raise InputError(f"{rule} Received: model.kind={model.config.kind!r}.")
    for variable in model.trainable_variables:
        variable.trainable = False
    for block in _blocks_of(model):
        block.enable_lora(rank)


def projections_of(model: keras.Model) -> list[Any]:
    """Returns the dense layers in a model's blocks."""
    return [layer for block in _blocks_of(model) for layer in dense_layers(block)]


def _blocks_of(model):
    stacks = (getattr(model, side, None) for side in ("encoder", "decoder"))
    return [block for stack in stacks for block in getattr(stack, "blocks", ())]


def merged_weights(model: keras.Model) -> Iterator[Any]:
    """Yields the weights of an equivalent model without LoRA, variables or tensors."""
    with_lora = [layer for layer in projections_of(model) if layer.lora_enabled]
    merged = {id(frozen_kernel(layer)): layer for layer in with_lora}
    for variable in _without_small(model):
        layer = merged.get(id(variable))
        yield variable if layer is None else layer.kernel


def set_merged_weights(model: keras.Model, weights: list[np.ndarray]) -> None:
    """Sets all weights of a model, and zeroes LoRA's matrices."""
    for variable, value in zip(_without_small(model), weights, strict=True):
        variable.assign(value)
    for layer in projections_of(model):
        if layer.lora_enabled:
            layer.lora_kernel_b.assign(ops.zeros(layer.lora_kernel_b.shape))


def _without_small(model):
    return [variable for variable in model.weights if not variable.path.endswith(_SMALL)]


def save_adapter(model: keras.Model, path: str | os.PathLike) -> None:
    """Saves the trainable variables and the optimizer's state; `path` is never half a file."""
    variables = [*model.trainable_variables, *model.optimizer.variables]
    arrays = {
        f"{index:05d}": ops.convert_to_numpy(variable) for index, variable in enumerate(variables)
    }
    with replaced_file(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)


def load_adapter(model: keras.Model, path: Path) -> None:
    """Restores what `save_adapter` saved in a model with equal base weights.

    Raises:
        InputError: The file is damaged, or belongs to another model.
    """
    model.optimizer.build(model.trainable_variables)
    variables = [*model.trainable_variables, *model.optimizer.variables]
    try:
        arrays = [array for _, array in sorted(read_arrays(path).items())]
        if [array.shape for array in arrays] != [tuple(variable.shape) for variable in variables]:
            raise ValueError("the model's matrices and optimizer have arrays of other shapes")
    except ValueError as error:
        reason = str(error).removesuffix(".")
        raise InputError(f"{path}: cannot be read as a checkpoint of LoRA: {reason}.") from None
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)
