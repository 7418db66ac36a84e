"""Calls of a model that leave it as it was, and what its layers receive in a call."""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.analysis.decoder_check.inputs import DecoderInputs, Ids, layers_of
from keras_transformer.errors import InputError, first_line

# Rounding of sums in another order, as a share of the largest output.
_ROUNDING = {"float64": 1e-8, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
_ROUNDING_ON_ACCELERATORS = 2e-3  # float32 with TF32 in matrix products
_ROUNDING_OF_INT8 = 5e-2
# The same program with other ids: only convolutions by Fourier transforms round differently.
_SAME_SHAPES = 1e-5


class Difference(NamedTuple):
    """The first and the largest difference of two outputs."""

    place: tuple[int, int]
    largest: float
    share: float


class ModelCalls:
    """Calls a model with test sentences, and restores its variables.

    Args:
        model: A Keras model, or a function of ids.
        inputs: Ids for both sides of the model, `DecoderInputs`.
        tolerance: Largest difference that is rounding, as a share of the largest output.
    """

    def __init__(self, model, inputs: DecoderInputs, tolerance: float | None = None):
        self.model, self.inputs, self._tolerance = model, inputs, tolerance
        self.layers = layers_of(model)
        self._state = self._values()
        try:
            outputs = self(inputs.sentences())  # makes the weights of a model that was not built
        except Exception:
            self.restore()
            raise
        inputs.set_vocabulary_size(outputs.shape[2])
        self.layers = layers_of(model)
        self._state = {**self._values(), **self._state}
        self._rounding = self._rounding_of_layers()
        self.restore()

    def __call__(self, ids: Ids, training: bool = False) -> np.ndarray:
        """Returns outputs, float64 `(batch, target length, features)`."""
        return self.outputs_of(self.model, ids, training)

    def outputs_of(self, model: Any, ids: Ids, training: bool = False) -> np.ndarray:
        """Returns the outputs of a model that takes the same inputs, such as an export."""
        packed = self.inputs.pack(ids)
        options = {"training": training} if isinstance(model, keras.layers.Layer) else {}
        outputs = keras.tree.flatten(model(packed, **options))
        shape = ids[self.inputs.target].shape
        shapes = [tuple(output.shape) for output in outputs]
        if len(outputs) != 1 or len(shapes[0]) != 3 or shapes[0][:2] != shape:
            name = self.inputs.target
            raise InputError(
                f"A decoder must return one output (batch, length, features) for {name} of shape "
                f"{shape}. Received: {', '.join(map(str, shapes))}. Wrap the model in a function."
            )
        return _numpy(ops.cast(ops.convert_to_tensor(outputs[0]), "float32")).astype("float64")

    def changed_variables(self) -> list[keras.Variable]:
        """Lists variables whose values are not those before the checks."""
        return [
            variable
            for variable, value in self._state.values()
            if not np.array_equal(_numpy(variable), value, equal_nan=value.dtype.kind == "f")
        ]

    def restore(self) -> None:
        """Gives all variables the values that they had before the checks."""
        changed = {id(variable) for variable in self.changed_variables()}
        for variable, value in self._state.values():
            if id(variable) in changed:
                variable.assign(value)

    def compare(
        self,
        outputs: np.ndarray,
        expected: np.ndarray,
        where: np.ndarray | None = None,
        same_shapes: bool = False,
    ) -> Difference | None:
        """Compares outputs `(batch, length, features)` at the places of a mask `(batch, length)`.

        Returns:
            None if no difference is larger than rounding.
        """
        distance = self.distance(outputs, expected, where)
        differs = distance > self.tolerance(expected, same_shapes)
        if not differs.any():
            return None
        row, position = map(int, np.argwhere(differs)[0])
        largest = float(distance.max())
        return Difference((row, position), largest, largest / (_scale(expected) or 1.0))

    def distance(self, outputs, expected, where=None) -> np.ndarray:
        """Computes the largest difference of features, `(batch, length)`; NaN is infinite."""
        distance = np.nan_to_num(np.abs(outputs - expected).max(-1), nan=np.inf)
        # The same infinite value, such as a masked logit, does not differ.
        distance[(outputs == expected).all(-1)] = 0.0
        return distance if where is None else np.where(where, distance, 0.0)

    def tolerance(self, expected: np.ndarray, same_shapes: bool = False) -> float:
        """Returns the largest difference that is rounding."""
        share = _SAME_SHAPES if same_shapes else self._rounding
        return (self._tolerance or share) * (_scale(expected) or 1.0)

    def _values(self) -> dict[int, tuple[keras.Variable, np.ndarray]]:
        """Returns variables and their values, by the variables' `id`."""
        variables = [variable for layer in self.layers for variable in layer.variables]
        distinct = {id(variable): variable for variable in variables}
        return {key: (variable, _numpy(variable)) for key, variable in distinct.items()}

    def _rounding_of_layers(self):
        dtypes = {layer.compute_dtype for layer in self.layers} or {"float32"}
        shares = [_ROUNDING.get(dtype, 0.0) for dtype in dtypes]
        if any(getattr(layer, "quantization_mode", None) for layer in self.layers):
            shares.append(_ROUNDING_OF_INT8)
        if not all(device.startswith("cpu") for device in keras.distribution.list_devices()):
            shares.append(_ROUNDING_ON_ACCELERATORS)
        return max(shares)


def _numpy(tensor):
    return np.array(ops.convert_to_numpy(tensor))


def _scale(outputs):
    # Logits of forbidden ids are far below others, or infinite.
    finite = np.abs(outputs[np.isfinite(outputs) & (np.abs(outputs) < 1e6)])
    return float(finite.max()) if finite.size else 0.0


def error_text(error: BaseException) -> str:
    """Returns the first line of an error and its class."""
    return f"{type(error).__name__}: {first_line(error)}"


class LayerCall(NamedTuple):
    """Inputs of a layer in a call.

    Attributes:
        layer: The layer.
        query_length: Length of its first sequence.
        key_length: Length of the sequence that it attends to, or the same.
        masks: Arrays of bool by the names of the arguments that are masks.
        has_mask_argument: True if its `call` takes a mask.
        is_causal: Its argument `use_causal_mask`; None without this argument.
        is_innermost: True if no other layer inside it takes a mask.
    """

    layer: keras.layers.Layer
    query_length: int | None
    key_length: int | None
    masks: dict[str, np.ndarray]
    has_mask_argument: bool
    is_causal: bool | None
    is_innermost: bool

    @property
    def name(self) -> str:
        """The layer's name and class, for a message."""
        path = getattr(self.layer, "path", None) or self.layer.name
        return f"`{path}` ({type(self.layer).__name__})"


_KEYS = ("key", "value", "encoder_sequence", "memory", "context")
# Their masks say which numbers count, not what is attended to.
_NO_READERS = (keras.layers.Softmax, keras.layers.BatchNormalization)


@contextlib.contextmanager
def recorded_calls(layers: list[keras.layers.Layer]) -> Iterator[list[LayerCall]]:
    """Records the calls of layers in the `with` block, in the order in which they end."""
    calls: list[LayerCall] = []
    open_calls: list[list[bool]] = []  # for each call that has not ended: is another inside it?

    def recording(layer, call):
        signature = inspect.signature(call)

        def record(*arguments, **options):
            try:
                bound = signature.bind(*arguments, **options)
            except TypeError:
                return call(*arguments, **options)
            bound.apply_defaults()
            has_mask = _takes_mask(layer, signature)
            if has_mask:
                for others in open_calls:
                    others.append(True)
            open_calls.append([])
            try:
                outputs = call(*arguments, **options)
            finally:
                inside = open_calls.pop()
            calls.append(_layer_call(layer, bound.arguments, has_mask, not inside))
            return outputs

        return record

    patched = []
    try:
        for layer in layers:
            if "call" not in vars(layer):
                setattr(layer, "call", recording(layer, layer.call))  # noqa: B010 - mypy: a method
                patched.append(layer)
        yield calls
    finally:
        for layer in patched:
            del layer.call  # The class' method is visible again.


def _takes_mask(layer, signature):
    names = [name for name in signature.parameters if name.endswith("mask")]
    return bool(set(names) - {"use_causal_mask"}) and not isinstance(layer, _NO_READERS)


def _layer_call(layer, arguments, has_mask, is_innermost):
    tensors = {name: value for name, value in arguments.items() if _rank(value) >= 3}
    sequences = [value for name, value in tensors.items() if not name.endswith("mask")]
    keys = [tensors[name] for name in _KEYS if name in tensors]
    lengths = [int(sequence.shape[1]) for sequence in (sequences[:1] + keys[:1])]
    masks = {
        name: np.array(ops.convert_to_numpy(ops.cast(value, "bool")))
        for name, value in arguments.items()
        if name.endswith("mask") and _rank(value) >= 2
    }
    return LayerCall(
        layer,
        lengths[0] if sequences else None,
        lengths[-1] if lengths else None,
        masks,
        has_mask,
        bool(arguments["use_causal_mask"]) if "use_causal_mask" in arguments else None,
        is_innermost,
    )


def _rank(value):
    return len(value.shape) if hasattr(value, "shape") else 0
