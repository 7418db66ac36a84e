"""Calls of any Keras decoder with random ids: full passes, cached steps, and each layer in them."""

import contextlib
import dataclasses
import inspect
import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.base.errors import InputError, first_line
from keras_transformer.base.options import values_of
from keras_transformer.layers.quantization import layers_in
from keras_transformer.models.sequence_model import SequenceModel

# Sizes of the test sentences, where neither the model nor an example says them.
_BATCH, _SOURCE_LENGTH, _TARGET_LENGTH, _LONGEST = 3, 7, 11, 64
SPECIAL_IDS = 4  # padding, BOS, EOS and the unknown id in most vocabularies
_FEW_IDS = 8  # A smaller table has types of segments rather than tokens.
_KERAS_NAME = re.compile(r"((keras_tensor|input_layer|input)(_\d+)?)?")
_MAX_PLACES = 20  # Positions of a long input whose tokens are changed.
_TARGET_WORDS = ("target", "decoder", "tgt")
_KINDS = {  # of layers that are no attention, though some of them take masks
    keras.layers.Conv1D: "convolution",
    keras.layers.Bidirectional: "backwards",
    keras.layers.BatchNormalization: "statistics",
    keras.layers.GroupNormalization: "normalization",
    **dict.fromkeys(
        (keras.layers.Lambda, keras.layers.Softmax, keras.layers.RNN, keras.Model), "other"
    ),
}

# Rounding of sums in another order, as a share of the largest output.
_ROUNDING = {"float64": 1e-8, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
_ROUNDING_ON_ACCELERATORS = 2e-3  # float32 with TF32 in matrix products
_ROUNDING_OF_INT8 = 5e-2
# The same program with other ids: only convolutions by Fourier transforms round differently.
_SAME_SHAPES = 1e-5

Ids = dict[str, np.ndarray]
"""Integers `(batch, length)` of each input, by its name."""


class Difference(NamedTuple):
    """The first place and the largest size of a difference of two outputs."""

    place: tuple[int, int]
    largest: float
    share: float  # of the largest output

    @classmethod
    def of(cls, place: Any, largest: float, outputs: np.ndarray) -> "Difference":
        """Makes the difference of other outputs from these outputs."""
        return cls(tuple(place), largest, largest / _scale(outputs))

    def __str__(self):
        if not np.isfinite(self.largest):
            return f"NaN, first at {self.place}"
        share = f"{self.share:.0%}" if self.share >= 0.01 else f"{self.share:.1g}"
        return f"first at {self.place}, by up to {self.largest:.2g}, {share} of the largest output"


class Decoder:
    """Calls a model with test sentences, and restores its variables.

    Attributes:
        ids: Sentences without padding.
        expected, again: Outputs of two calls with `ids`.
        changed_at_inference: Variables that these calls changed.
        is_right: Whether padding is on the right.
        seen: Bool `(position, position)`: does the output of the row read the id of the column?
        columns: Positions whose ids were changed for `seen`.
    """

    def __init__(self, model: Any, inputs: "Inputs", side: str, tolerance: float | None):
        self.model, self.inputs, self.target = model, inputs, inputs.target
        self.is_right, self._tolerance = side == "right", tolerance
        self.seen, self.columns = np.zeros((0, 0), bool), list[int]()
        self.changed_at_inference = list[Any]()
        self._compiled: dict[Any, Any] = {}
        self._layers = _layers_of(model)
        self._state = self._values()
        try:
            outputs = self.call_eagerly(inputs.sentences())  # makes the weights of a new model
        except Exception as error:
            self.restore()
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"The model cannot be called with ids for {inputs.structure}: give `inputs`, "
                f"an example of its inputs. Received: {text_of(error)}"
            ) from error
        inputs.vocabulary_size = inputs.vocabulary_size or outputs.shape[2]
        self._layers = _layers_of(model)
        self._state = {**self._values(), **self._state}
        self.restore()
        self._rounding = _rounding_of(self._layers)
        self.ids = inputs.sentences()
        self.expected, self.again = self(self.ids), self(self.ids)
        self.changed_at_inference = self._changed_variables()
        self.restore()

    def __call__(self, ids: Ids, training: bool = False, model: Any = None) -> np.ndarray:
        """Calls the model, or a copy, and undoes what the call changes, such as averages.

        Returns:
            Outputs, float64 `(batch, target length, features)`.
        """
        outputs, model = None, self.model if model is None else model
        key = id(model), training
        if key not in self._compiled:
            # Op by op, JAX compiles each operation for each shape.
            can_compile = keras.backend.backend() == "jax" and isinstance(model, keras.layers.Layer)
            self._compiled[key] = _Compiled(model, training) if can_compile else None
        if self._compiled[key] is not None:
            try:
                outputs = self._compiled[key].predict_on_batch(self.inputs.pack(ids))
                outputs = self._array_of(outputs, ids)
            except Exception:
                self._compiled[key] = outputs = None  # Its Python code needs values.
        if outputs is None:
            outputs = self.call_eagerly(ids, training, model)
        if training or self.changed_at_inference:
            self.restore()
        return outputs

    def call_eagerly(self, ids: Ids, training: bool = False, model: Any = None) -> np.ndarray:
        """Calls the model operation by operation, for what a compiled call hides."""
        model = self.model if model is None else model
        options = {"training": training} if isinstance(model, keras.layers.Layer) else {}
        return self._array_of(model(self.inputs.pack(ids), **options), ids)

    def _array_of(self, outputs, ids):
        outputs, shape = keras.tree.flatten(outputs), ids[self.target].shape
        shapes = [tuple(output.shape) for output in outputs]
        if len(outputs) != 1 or len(shapes[0]) != 3 or shapes[0][:2] != shape:
            raise InputError(
                "A decoder must return one output (batch, length, features) for "
                f"{self.target} of shape {shape}. Received: {', '.join(map(str, shapes))}. Wrap "
                "the model in a function."
            )
        return _float64(outputs[0])

    def steps(self, model: Any, ids: Ids, beams: int = 1, parents: np.ndarray | None = None):
        """Computes centered logits of all steps, float64 `(batch, beams, length, vocabulary)`.

        Args:
            model: `SearchModel` of the model.
            ids: Inputs; the target is `(batch * beams, length)`.
            beams: Number of hypotheses per sentence.
            parents: Int `(batch, beams)`, the hypotheses to continue after half of the steps.
        """
        length, half = ids[self.target].shape[1], ids[self.target].shape[1] // 2
        target = ids[self.target].reshape(-1, beams, length)
        # A decoder without a source gets the number of texts.
        source = ([ids[name] for name in self.inputs.sources] or [target[:, 0, :1]])[0]
        capacity = half if getattr(model, "is_extendable", False) and half else length
        cache = model.start_decoding(ops.convert_to_tensor(source), capacity, beams)
        step, outputs = model.step, []
        if hasattr(model, "step_function"):
            step = model.step_function(model.step_weights())
        for position in range(length):
            if position == half and capacity < length:
                cache = model.extended(cache, length)
            if position == half and parents is not None:
                cache = model.reorder(cache, ops.convert_to_tensor(parents.astype("int32")))
            logits, cache = step(ops.convert_to_tensor(target[:, :, position]), cache)
            outputs.append(_float64(logits))
        return centered(np.stack(outputs, axis=2))

    def culprit(self, others: Ids, part: Any, training: bool = False) -> "LayerCall | None":
        """Finds the layer whose outputs differ first for other ids; see `first_culprit`."""
        calls, other_calls = (self.recorded(ids, training)[1] for ids in (self.ids, others))
        return first_culprit(calls, other_calls, part)

    def recorded(self, ids: Ids, training: bool = False, noise: float = 0.0):
        """Returns outputs and a list of `LayerCall`, with noise in the vectors of padding."""
        with _recorded_calls(self._layers, self.inputs.pad_id, noise) as calls:
            outputs = self.call_eagerly(ids, training)
        self.restore()
        return outputs, calls

    def changed(self, ids: Ids, name: str, places: Any) -> Ids:
        """Returns ids with another token in each place of an index `(row, position)`."""
        changed = ids[name].copy()
        changed[places] = self.inputs.draw(changed[places].shape, changed[places])
        return {**ids, name: changed}

    def change_each_token(self, are_independent: bool) -> np.ndarray:
        """Computes how much each output changes with each token, `(output, token)`.

        It sets `seen` and `columns`. Independent sentences are changed together.
        """
        length = self.expected.shape[1]
        self.columns = sorted(set(np.linspace(0, length - 1, _MAX_PLACES).astype(int).tolist()))
        distance = np.zeros((length, length))
        count = self.inputs.batch if are_independent else 1
        for start in range(0, len(self.columns), count):
            columns = self.columns[start : start + count]
            places = np.arange(len(columns))
            outputs = self(self.changed(self.ids, self.target, (places, columns)))
            distance[:, columns] = self.distance(outputs, self.expected)[places].T
        self.seen = distance > self.limit(self.expected, same_shapes=True)
        return distance

    def distance(self, outputs, expected, where: Any = True) -> np.ndarray:
        """Computes the largest difference of features, `(batch, length)`; NaN is infinite."""
        with np.errstate(invalid="ignore"):
            distance = np.nan_to_num(np.abs(outputs - expected).max(-1), nan=np.inf)
        # The same infinite value, such as a masked logit, does not differ.
        return np.where(where & ~(outputs == expected).all(-1), distance, 0.0)

    def limit(self, expected: np.ndarray, same_shapes: bool = False) -> float:
        """Returns the largest difference that is rounding."""
        share = _SAME_SHAPES if same_shapes else self._rounding
        return (self._tolerance or share) * _scale(expected)

    def compare(
        self, outputs, expected, where: Any = True, same_shapes: bool = False
    ) -> Difference | None:
        """Compares outputs at the places of a mask `(batch, length)`; rounding is no difference."""
        distance = self.distance(outputs, expected, where)
        places = np.argwhere(distance > self.limit(expected, same_shapes))
        if not len(places):
            return None
        return Difference.of(places[0].tolist(), float(distance.max()), expected)

    def restore(self) -> None:
        """Gives all variables the values that they had before the checks."""
        for variable in self._changed_variables():
            variable.assign(self._state[id(variable)][1])

    def _changed_variables(self):
        return [
            variable
            for variable, value in self._state.values()
            if not np.array_equal(to_numpy(variable), value, equal_nan=value.dtype.kind == "f")
        ]

    def _values(self):
        variables = {id(x): x for layer in self._layers for x in layer.variables}
        return {key: (variable, to_numpy(variable)) for key, variable in variables.items()}


class _Compiled(keras.Model):
    """Calls a model in one compiled function, as Keras' `predict` does."""

    def __init__(self, model, training):
        super().__init__()
        self._model, self._in_training = model, training

    def call(self, inputs):
        return self._model(inputs, training=self._in_training)


def to_numpy(tensor: Any) -> np.ndarray:
    """Copies a tensor or a variable."""
    return np.array(ops.convert_to_numpy(tensor))


def _float64(tensor):
    return to_numpy(ops.cast(ops.convert_to_tensor(tensor), "float32")).astype("float64")


def _scale(outputs: np.ndarray) -> float:
    """Returns the largest size of outputs, without logits of forbidden ids."""
    finite = np.abs(outputs[np.isfinite(outputs) & (np.abs(outputs) < 1e6)])
    return float(finite.max(initial=0.0)) or 1.0


def centered(logits: np.ndarray) -> np.ndarray:
    """Subtracts the median over the vocabulary: a search ignores a constant."""
    return logits - np.median(logits, axis=-1, keepdims=True)


def text_of(error: Exception) -> str:
    """Returns the type and the first line of an error."""
    return f"{type(error).__name__}: {first_line(error)}"


def _rounding_of(layers):
    """Returns the largest difference that is rounding, as a share of the largest output."""
    dtypes = {layer.compute_dtype for layer in layers} or {"float32"}
    shares = [_ROUNDING.get(dtype, 0.0) for dtype in dtypes]
    if any(getattr(layer, "quantization_mode", None) for layer in layers):
        shares.append(_ROUNDING_OF_INT8)
    if not all(device.startswith("cpu") for device in keras.distribution.list_devices()):
        shares.append(_ROUNDING_ON_ACCELERATORS)
    return max(shares)


@dataclasses.dataclass(frozen=True, eq=False)
class LayerCall:
    """Inputs and outputs of a layer in a call, as arrays.

    Attributes:
        masks: Arrays of bool by the names of the arguments that are masks.
        takes_mask: Whether it has an argument that is a mask.
        is_causal: Its argument `use_causal_mask`; None without this argument.
        removes_masks: Whether an input had a Keras mask before the call and not after it.
    """

    layer: Any
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    masks: dict[str, np.ndarray]
    takes_mask: bool
    is_causal: bool | None
    removes_masks: bool

    @property
    def name(self) -> str:
        """The layer's name and class, for a message."""
        path = getattr(self.layer, "path", None) or self.layer.name
        return f"`{path}` ({type(self.layer).__name__})"

    @property
    def kind(self) -> str:
        """`attention` for a layer that takes masks, `other`, or what it computes."""
        layer = self.layer
        if getattr(layer, "go_backwards", False):
            return "backwards"
        if isinstance(layer, keras.layers.LayerNormalization) and 1 in np.ravel(layer.axis):
            return "normalization"
        kinds = [kind for kind_class, kind in _KINDS.items() if isinstance(layer, kind_class)]
        return (kinds or ["attention" if self.takes_mask else "other"])[0]


@contextlib.contextmanager
def _recorded_calls(layers, pad_id, noise=0.0) -> Iterator[list[LayerCall]]:
    """Records the calls of layers in the `with` block, in the order in which they end."""
    calls: list[LayerCall] = []

    def recording(layer, call):
        signature = inspect.signature(call)

        def record(*arguments, **options):
            bound = signature.bind(*arguments, **options)
            bound.apply_defaults()
            tensors = _tensors(bound.arguments)
            num_masks = _count_masks(tensors)
            outputs = call(*arguments, **options)
            if noise and is_embedding(layer) and len(tensors[0].shape) == 2:
                is_padding = ops.expand_dims(ops.equal(tensors[0], pad_id), -1)
                # A shift of all features would be lost in a normalization.
                size = noise * ops.max(ops.abs(ops.cast(outputs, "float32")))
                added = size * ops.cos(ops.arange(outputs.shape[-1], dtype="float32"))
                outputs = outputs + ops.cast(ops.where(is_padding, added, 0.0), outputs.dtype)
            is_causal = bound.arguments.pop("use_causal_mask", None)
            names = [name for name in bound.arguments if name.endswith("mask")]
            masks = {name: _arrays(bound.arguments.pop(name)) for name in names}
            masks = {name: found[0].astype(bool) for name, found in masks.items() if found}
            removes_masks = _count_masks(tensors) < num_masks
            arrays = _arrays(bound.arguments), _arrays(outputs)
            calls.append(LayerCall(layer, *arrays, masks, bool(names), is_causal, removes_masks))
            return outputs

        return record

    patched = [layer for layer in layers if "call" not in vars(layer)]
    try:
        for layer in patched:
            setattr(layer, "call", recording(layer, layer.call))  # noqa: B010 - mypy: a method
        yield calls
    finally:
        for layer in patched:
            vars(layer).pop("call", None)  # The class' method is visible again.


def _tensors(structure):
    # Keras sorts the keys of a dict.
    values = list(structure.values()) if isinstance(structure, dict) else structure
    return [value for value in keras.tree.flatten(values) if ops.is_tensor(value)]


def _arrays(structure):
    """Lists the tensors of a structure that have values and two or more axes, as arrays."""
    dtype_of = keras.backend.standardize_dtype
    tensors = [
        ops.cast(tensor, "float32") if "float" in dtype_of(tensor.dtype) else tensor
        for tensor in _tensors(structure)
    ]
    return [x for x in map(values_of, tensors) if x is not None and x.ndim >= 2]


def _count_masks(tensors):
    return sum(getattr(tensor, "_keras_mask", None) is not None for tensor in tensors)


def is_embedding(layer: Any) -> bool:
    """Returns True for an embedding of tokens."""
    return "Embedding" in type(layer).__name__ and hasattr(layer, "embeddings")


def first_culprit(calls, other_calls, part: Any) -> LayerCall | None:
    """Finds the innermost layer that makes a difference of two calls of the model.

    `part` returns the part of an array that must be equal in both calls.
    """

    def differs(array, other):
        array, other = part(array), part(other)
        if array.shape != other.shape:
            return True
        with np.errstate(invalid="ignore"):
            distance = np.abs(array.astype("float64") - other).max(initial=0.0)
        return not distance <= _ROUNDING["float32"] * _scale(other)

    for call, other in zip(calls, other_calls, strict=False):
        if call.layer is not other.layer:
            return None
        is_input_equal = not any(map(differs, call.inputs, other.inputs))
        if is_input_equal and any(map(differs, call.outputs, other.outputs)):
            return call
    return None


class Inputs:
    """Test sentences in the structure of a model's inputs.

    Attributes:
        structure: Names of the inputs in the structure that the model takes.
        target: Name of the input that the decoder reads.
        sources: Names of the other inputs of ids.
        batch: Number of sentences.
        lengths: Number of tokens of each input, by name.
        fixed: Names of inputs whose length is fixed.
        has_fixed_batch: True if the model takes one batch size only.
        example_ids: Ids of the example, by name.
    """

    def __init__(self, model, example, target: str | None, pad_id: int, vocabulary_size=None):
        is_example = example is not None
        given = _mapped(lambda _, x: np.asarray(x), example) if is_example else _symbolic(model)
        values: list[Any] = []
        _mapped(lambda path, value: values.append((path, value)), given)
        names = _names_of(values)
        order = iter(names)
        self.structure = _mapped(lambda *_: next(order), given)
        arrays = dict(zip(names, (value for _, value in values), strict=True))
        masks = [name for name, array in arrays.items() if _is_mask(name, array, is_example)]
        shapes = {name: tuple(x.shape) for name, x in arrays.items() if name not in masks}
        if not shapes:
            raise InputError("A decoder needs an input of ids. Received: only masks.")
        if target is not None and target not in shapes:
            raise InputError(f"`target` must be one of {', '.join(shapes)}. Received: {target!r}.")
        likely = [name for name in shapes if any(word in name for word in _TARGET_WORDS)]
        self.target: str = target or (likely or list(shapes))[-1]
        self.sources = [name for name in shapes if name != self.target]

        def likeness(mask, name):  # Most letters at the beginning of their names agree.
            return len(os.path.commonprefix([mask, name])), name == self.target, name

        self._ids_of_masks = {x: max(shapes, key=lambda name: likeness(x, name)) for x in masks}
        self.pad_id, self.vocabulary_size = pad_id, vocabulary_size or _vocabulary_size(model)
        batches = [] if is_example else [batch for batch, _ in shapes.values() if batch]
        self.batch, self.has_fixed_batch = (batches or [_BATCH])[0], bool(batches)
        self.fixed = {name for name, (_, length) in shapes.items() if length and not is_example}
        limit = getattr(model, "position_limit", None) or math.inf
        self.lengths = {}
        for name, (_, length) in shapes.items():
            default = _TARGET_LENGTH if name == self.target else _SOURCE_LENGTH
            longest = int(min(length or default, _LONGEST, limit))
            self.lengths[name] = length if name in self.fixed else longest
        self.example_ids = arrays if is_example else {}
        self._rng = np.random.default_rng(11)

    def draw(self, shape: Any, unequal: np.ndarray | None = None) -> np.ndarray:
        """Draws ids of tokens, each different from the id of `unequal` in its place."""
        size = self.vocabulary_size or _FEW_IDS
        first = SPECIAL_IDS if size > SPECIAL_IDS + 2 else 0
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
        masks = {mask: ids[name] != self.pad_id for mask, name in self._ids_of_masks.items()}
        arrays = {**ids, **masks}
        return _mapped(lambda _, name: ops.convert_to_tensor(arrays[name]), self.structure)


def _symbolic(model):
    """Returns symbolic inputs of a model, which have names and shapes."""
    default = keras.KerasTensor((None, None), "int32", name="ids")
    if isinstance(model, SequenceModel):
        inputs = [keras.KerasTensor((None, None), "int32", name=x) for x in model.input_names]
    else:
        try:
            inputs = model.input if getattr(model, "inputs", None) is not None else default
        except (AttributeError, ValueError):  # A subclassed model has none.
            return default
    # A list of one symbolic tensor is called with the tensor.
    return inputs[0] if isinstance(inputs, (tuple, list)) and len(inputs) == 1 else inputs


def _mapped(function, structure, path=()):
    """Maps a function of paths and values; rows of ids, which are lists, are one value."""
    if isinstance(structure, Mapping):
        return {key: _mapped(function, item, (*path, key)) for key, item in structure.items()}
    if isinstance(structure, (tuple, list)) and not _is_ids(structure):
        items = [_mapped(function, x, (*path, index)) for index, x in enumerate(structure)]
        return items if isinstance(structure, list) else tuple(items)
    return function(path, structure)


def _is_ids(value):
    """Returns True for ids as a list of lists, which is not a list of inputs."""
    rows = value[:1]
    return bool(rows) and isinstance(rows[0], list) and all(isinstance(x, int) for x in rows[0])


def _names_of(values):
    """Returns the names of inputs, or usual names if they have only the names that Keras makes."""
    names = [
        path[-1] if path and isinstance(path[-1], str) else getattr(value, "name", "")
        for path, value in values
    ]
    if len(set(names)) == len(names) and not all(map(_KERAS_NAME.fullmatch, names)):
        return names
    usual = {1: ["ids"], 2: ["source_ids", "target_ids"]}.get(len(names))
    return usual or [f"inputs[{index}]" for index in range(len(names))]


def _is_mask(name, array, is_example):
    """Returns True for a mask, and False for ids; raises `InputError` for other inputs."""
    if len(array.shape) != 2:
        received = f"Received: {name} of shape {tuple(array.shape)}."
        raise InputError(f"An input must be ids `(batch, length)`, or their mask. {received}")
    dtype = str(array.dtype)
    is_mask = "bool" in dtype or name.endswith("mask")
    if not is_mask and is_example and "int" not in dtype:
        raise InputError(f"An input must be integers. Received: {name} of dtype {dtype}.")
    return is_mask


def _vocabulary_size(model):
    sizes = [
        getattr(layer, name, None)
        for layer in _layers_of(model)
        for name in ("input_dim", "vocabulary_size")
        if "Embedding" in type(layer).__name__
    ]
    return min((size for size in sizes if isinstance(size, int) and size > _FEW_IDS), default=None)


def _layers_of(model):
    """Lists a model and all layers inside it; for a wrapper, the layers of its attributes."""
    owners = [model]
    if not isinstance(model, keras.layers.Layer):
        values = getattr(model, "__dict__", {}).values()
        owners = [value for value in values if isinstance(value, keras.layers.Layer)]
    return list({id(layer): layer for owner in owners for layer in layers_in(owner)}.values())
