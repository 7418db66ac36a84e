"""Inputs of a decoder: their structure, and test sentences of random ids."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.models.sequence_model import SequenceModel

BATCH, SOURCE_LENGTH, TARGET_LENGTH = 3, 7, 11
_SPECIAL_IDS = 4  # padding, BOS, EOS and the unknown id in most vocabularies
_FEW_IDS = 8  # A smaller table has types of segments rather than tokens.
_KERAS_NAME = re.compile(r"((keras_tensor|input_layer|input)(_\d+)?)?")
_TARGET_WORDS = ("target", "decoder", "tgt")

Ids = dict[str, np.ndarray]
"""Integers `(batch, length)` of each input, by its name."""


class Input(NamedTuple):
    """An input of ids. `length` and `batch` are None where any size fits."""

    name: str
    batch: int | None = None
    length: int | None = None
    longest: float = math.inf
    is_mask: bool = False


class DecoderInputs:
    """Test sentences in the structure of a model's inputs.

    Args:
        model: A Keras model, or a function of ids.
        example: Example of the inputs; None for a Functional model or one input.
        target: Name of the input that the decoder reads.
        pad_id: Id of padding.
        vocabulary_size: Number of ids; by default from the model's embeddings.

    Attributes:
        target: Name of the input that the decoder reads.
        sources: Names of the other inputs of ids.
        batch: Number of sentences.
        lengths: Number of tokens of each input, by name.
        fixed: Names of inputs whose length is fixed.
        has_fixed_batch: True if the model takes one batch size only.
        example_ids: Ids of the example, by name.
    """

    def __init__(self, model, example, target: str | None, pad_id: int, vocabulary_size=None):
        self._structure, inputs = _structure_of(model, example)
        ids = [entry for entry in inputs if not entry.is_mask]
        if not ids:
            raise InputError("A decoder needs an input of ids. Received: only masks.")
        names = [entry.name for entry in ids]
        if target is not None and target not in names:
            raise InputError(f"`target` must be one of {', '.join(names)}. Received: {target!r}.")
        likely = [name for name in names if any(word in name for word in _TARGET_WORDS)]
        self.target = target or (likely or names)[-1]
        self.sources = [name for name in names if name != self.target]
        self._masks = {
            entry.name: _ids_of_mask(entry.name, names, self.target)
            for entry in inputs
            if entry.is_mask
        }
        self.pad_id, self._vocabulary_size = pad_id, vocabulary_size or _vocabulary_size(model)
        self.fixed = {entry.name for entry in ids if entry.length is not None}
        batches = {entry.batch for entry in ids} - {None}
        self.batch, self.has_fixed_batch = next(iter(batches), None) or BATCH, bool(batches)
        limit = getattr(model, "position_limit", None) or math.inf
        self.lengths = {
            entry.name: int(entry.length or min(_default_length(entry, self), entry.longest, limit))
            for entry in ids
        }
        self.example_ids = _example_ids(self._structure, example)
        self._rng = np.random.default_rng(11)

    @property
    def example_name(self) -> str:
        """Words for the structure, for an error message."""
        return str(self._structure)

    def set_vocabulary_size(self, size: int) -> None:
        """Sets the number of ids if no embedding says it."""
        self._vocabulary_size = self._vocabulary_size or size

    def draw(self, shape: Sequence[int], unequal: np.ndarray | None = None) -> np.ndarray:
        """Draws ids of tokens, each different from the id of `unequal` in its place."""
        size = self._vocabulary_size or _FEW_IDS
        first = _SPECIAL_IDS if size > _SPECIAL_IDS + 2 else 0
        choices = np.array([id for id in range(first, min(size, 5000)) if id != self.pad_id])
        places = self._rng.integers(0, len(choices), shape)
        if unequal is not None:
            places += choices[places] == unequal
        return choices[places % len(choices)].astype("int32")

    def sentences(self) -> Ids:
        """Draws sentences without padding."""
        return {name: self.draw((self.batch, length)) for name, length in self.lengths.items()}

    def pack(self, ids: Ids) -> Any:
        """Returns the inputs of the model, with masks if it takes masks."""
        masks = {mask: ids[name] != self.pad_id for mask, name in self._masks.items()}
        arrays = {**ids, **masks}
        return _map_names(lambda name: keras.ops.convert_to_tensor(arrays[name]), self._structure)


def padded(rows: Sequence[np.ndarray], length: int, pad_id: int, side: str) -> np.ndarray:
    """Pads rows of ids to `(rows, length)`."""
    ids = np.full((len(rows), length), pad_id, "int32")
    for index, row in enumerate(rows):
        ids[index, token_slice(len(row), length, side)] = row
    return ids


def token_slice(count: int, length: int, side: str) -> slice:
    """Returns the place of `count` tokens in a padded row."""
    return slice(0, count) if side == "right" else slice(length - count, length)


def _example_ids(structure, example) -> Ids:
    if example is None:
        return {}
    names, arrays = [], []
    _map_names(names.append, structure)
    _map_names(lambda array: arrays.append(np.asarray(array)), _with_arrays(example))
    return dict(zip(names, arrays, strict=True))


def _with_arrays(example):
    """Turns rows of ids, which are lists, into arrays: a list then is a list of inputs."""
    if isinstance(example, Mapping):
        return {key: _with_arrays(item) for key, item in example.items()}
    if isinstance(example, (tuple, list)) and not _is_ids(example):
        return [_with_arrays(item) for item in example]
    return np.asarray(example)


def _default_length(entry, inputs):
    return TARGET_LENGTH if entry.name == inputs.target else SOURCE_LENGTH


def _structure_of(model, example):
    """Returns a structure of names, and the `Input` of each name."""
    is_functional = example is None and isinstance(model, keras.Model)
    if is_functional and isinstance(model, SequenceModel):
        names = model.input_names
        return names if len(names) > 1 else names[0], [Input(name) for name in names]
    symbolic = getattr(model, "input", None) if is_functional and _has_inputs(model) else None
    if example is None and symbolic is None:
        return "ids", [Input("ids")]
    leaves: list[Input] = []

    def named(value, path):
        if isinstance(value, Mapping):
            return {key: named(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, (tuple, list)) and not _is_ids(value):
            items = [named(item, (*path, index)) for index, item in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        leaves.append(_input_of(value, path, symbolic is None))
        return leaves[-1].name

    # A list of one symbolic tensor is called with the tensor.
    if isinstance(symbolic, (tuple, list)) and len(symbolic) == 1:
        symbolic = symbolic[0]
    structure = named(example if symbolic is None else symbolic, ())
    if len({entry.name for entry in leaves}) < len(leaves) or _are_numbered(leaves):
        defaults = {1: ["ids"], 2: ["source_ids", "target_ids"]}.get(len(leaves))
        names = iter(defaults or [f"inputs[{index}]" for index in range(len(leaves))])
        new = [entry._replace(name=next(names)) for entry in leaves]
        order = iter(new)
        structure = _map_names(lambda _: next(order).name, structure)
        leaves = new
    return structure, leaves


def _has_inputs(model):
    try:
        return getattr(model, "inputs", None) is not None and model.input is not None
    except (AttributeError, ValueError):  # A subclassed model has none.
        return False


def _is_ids(value):
    """Returns True for ids as a list of lists, which is not a list of inputs."""
    rows = value[:1]
    return bool(rows) and isinstance(rows[0], list) and all(isinstance(x, int) for x in rows[0])


def _input_of(value, path, is_example):
    shape = tuple(np.shape(value) if isinstance(value, list) else value.shape)
    default = "" if is_example else value.name
    name = path[-1] if path and isinstance(path[-1], str) else default
    dtype = str(np.asarray(value).dtype if is_example else value.dtype)
    if len(shape) != 2:
        received = f"Received: {name or 'an input'} of shape {shape}."
        raise InputError(f"An input must be ids `(batch, length)`, or their mask. {received}")
    is_mask = "bool" in dtype or name.endswith("mask")
    if not is_mask and is_example and "int" not in dtype:
        raise InputError(f"An input must be integers. Received: {name or 'ids'} of dtype {dtype}.")
    if is_example:
        return Input(name, longest=shape[1], is_mask=is_mask)
    return Input(name, *shape, is_mask=is_mask)


def _are_numbered(leaves):
    """Returns True if Keras named the inputs, or nobody did."""
    return all(_KERAS_NAME.fullmatch(entry.name) for entry in leaves)


def _map_names(function, structure):
    if isinstance(structure, dict):
        return {key: _map_names(function, item) for key, item in structure.items()}
    if isinstance(structure, (tuple, list)):
        return type(structure)(_map_names(function, item) for item in structure)
    return function(structure)


def _ids_of_mask(mask, names, target):
    """Returns the name of the ids that a mask belongs to: most letters at its beginning agree."""
    common = {name: len(os.path.commonprefix([mask, name])) for name in names}
    best = max(common, key=lambda name: (common[name], name == target))
    return best if common[best] else target


def _vocabulary_size(model):
    sizes = [
        getattr(layer, name, None)
        for layer in layers_of(model)
        for name in ("input_dim", "vocabulary_size")
        if "Embedding" in type(layer).__name__
    ]
    return min((size for size in sizes if isinstance(size, int) and size > _FEW_IDS), default=None)


def layers_of(model: Any) -> list[keras.layers.Layer]:
    """Lists a model and all layers inside it; for a wrapper, the layers of its attributes."""
    owners = [model] if isinstance(model, keras.layers.Layer) else _attributes(model)
    layers: dict[int, keras.layers.Layer] = {}
    for owner in owners:
        for layer in owner._flatten_layers():
            layers.setdefault(id(layer), layer)
    return list(layers.values())


def _attributes(wrapper):
    values = getattr(wrapper, "__dict__", {}).values()
    return [value for value in values if isinstance(value, keras.layers.Layer)]
