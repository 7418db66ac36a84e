"""Checks of any Keras decoder: what its outputs may depend on, and what computes the same.

Each check is a function of a `_Decoder`, which calls the model with random ids. A failed check
names a cause as far as it measured it: `_first_culprit` finds the layer, `_CAUSES` has the words.
"""

import contextlib
import dataclasses
import inspect
import math
import os
import pathlib
import random
import re
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.decoding import SearchModel
from keras_transformer.errors import InputError, first_line
from keras_transformer.ids import PAD_ID
from keras_transformer.models.sequence_model import SequenceModel
from keras_transformer.options import check_choice, values_of

# Sizes of the test sentences, where neither the model nor an example says them.
_BATCH, _SOURCE_LENGTH, _TARGET_LENGTH, _LONGEST = 3, 7, 11, 64
_NUM_PADDING = 2
_SPECIAL_IDS = 4  # padding, BOS, EOS and the unknown id in most vocabularies
_FEW_IDS = 8  # A smaller table has types of segments rather than tokens.
_FEW_STEPS = 6  # Tokens of a search whose other checks have all tokens.
_MAX_PLACES = 20  # Positions of a long input whose tokens are changed.
_KERAS_NAME = re.compile(r"((keras_tensor|input_layer|input)(_\d+)?)?")
_TARGET_WORDS = ("target", "decoder", "tgt")
_KEYS = ("key", "value", "encoder_sequence", "memory", "context")
# Their masks say which numbers count, not what is attended to.
_NO_READERS = (keras.layers.Softmax, keras.layers.BatchNormalization, keras.layers.RNN, keras.Model)

# Rounding of sums in another order, as a share of the largest output.
_ROUNDING = {"float64": 1e-8, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
_ROUNDING_ON_ACCELERATORS = 2e-3  # float32 with TF32 in matrix products
_ROUNDING_OF_INT8 = 5e-2
# The same program with other ids: only convolutions by Fourier transforms round differently.
_SAME_SHAPES = 1e-5

_INVERTED = "A mask is inverted: True must mean that a token may be attended to."
_CAUSES = {
    "random": "Dropout or noise is active at inference: a layer is called with `training=True`, or "
    "draws random numbers itself.",
    "state": "A layer keeps a state from one call to the next, such as `stateful=True`.",
    "batch statistics": "Statistics over the batch, such as a BatchNormalization in training mode. "
    "A decoder needs LayerNormalization.",
    "reshape": "A reshape or transpose mixes the axis of the batch with heads, beams or positions, "
    "or a mask of one sentence is used for another.",
    "row": "The row or the number of rows is read, not other sentences: positions or a mask made "
    "with `shape[0]`, or noise with a fixed seed.",
    "foreign mask": "The padding mask of another sentence is used: `tile` where `repeat` is "
    "needed, or a wrong reshape.",
    "not finite": "A softmax over a row with nothing to attend to, or numbers above the range of "
    "the dtype, such as -1e9 in float16.",
    "shifted ids": "The ids are shifted to the left: an output reads its label. Feed "
    "`target_ids[:, :-1]`, and shift nothing inside the model.",
    "unshifted labels": "The labels are not shifted, so that each output has read its label. Feed "
    "`target_ids[:, :-1]`, and give `target_ids[:, 1:]` as labels.",
    "hidden": "A mask hides all tokens, or weights behind the attention are zero, as gates of new "
    "models are.",
    "training mask": "The causal mask is dropped when dropout is active: another branch of the "
    "code computes the attention in training.",
    "no causal mask": "The causal mask is missing or lost on its way to the attention, or an "
    "operation reads all positions.",
    "positions on the left": "Positions count the padding on the left: the first token must have "
    'position 0. Use relative or rotary positions, or `padding_side="right"`.',
    "number of padding": "The number of padding tokens is read, not their vectors: a mean divided "
    "by the length with padding, or positions counted from the end.",
    "padding": "Padding is read without a mask: in attention whose mask is lost, missing or "
    "inverted, or in an operation over positions.",
    "kept": "Something of earlier sentences is kept: a cache that `start_decoding` does not reset, "
    "or the encoder's outputs of an earlier call.",
    "lost tokens": "The cache loses earlier tokens: it is written at the wrong index, or the mask "
    "of the steps hides them.",
    "restarted": "Positions restart in cached steps: each step has the position of the first "
    "token.",
    "empty places": "Only steps depend on their position: empty or old places are attended to, "
    "because the cache is read at another index than it is written, or only steps add positions.",
    "factor": "The logits of steps are the full pass' logits times {:.3g}: a factor is in only "
    "one of both.",
    "one path": "Steps read the same tokens and compute otherwise: a factor, a bias, a "
    "normalization or dropout is in only one of both.",
    "first step": "The first step differs already: its position does not start at 0, the cache is "
    "written at the wrong index, or empty places are attended to. Or a factor is in only one of "
    "both.",
    "later steps": "Later steps differ: positions are counted otherwise, or empty places of the "
    "cache are attended to.",
    "source mask": "The cache lacks the padding mask of the source: steps attend to padding.",
    "tiled": "Rows of the cache belong to other sentences: `tile` where beams need `repeat`.",
    "reorder": "`reorder` leaves a tensor of the cache as it is, or moves its rows to other "
    "hypotheses.",
    "fixed shapes": "The export was made for fixed shapes, or has lost the padding mask.",
    "other export": "The export has other weights, another dtype, or was made in training mode.",
}  # fmt: skip
# Words in an error of saving or loading, and what they mean.
_LOADING_CAUSES = {
    r"[Ll]ambda|safe_mode": "A Lambda layer cannot be loaded safely: write a registered layer.",
    r"register_keras_serializable|Could not locate": "A class is not registered: decorate it with "
    "`register_keras_serializable`.",
    r"never built|could not be loaded|were not loaded|was not built|build\(\)": "A layer makes its "
    "weights in its first call: write `build`, which makes them or builds the layers inside.",
    r"__init__|argument": "`get_config` does not return the arguments that `__init__` needs.",
}


@dataclasses.dataclass(frozen=True)
class DecoderCheck:
    """Result of one check.

    Attributes:
        name: Name of the check, such as `future tokens`.
        result: `passed`, `failed` or `skipped`.
        message: What a failed check found, or why a check is skipped.
        cause: Likely cause of a failure.
        input_name: Name of the input that the outputs depend on, such as `target_ids`.
        place: `(batch, position)` where the outputs differ first.
        difference: The largest difference between outputs that must be equal.
    """

    name: str
    result: Literal["passed", "failed", "skipped"]
    message: str = ""
    cause: str = ""
    input_name: str | None = None
    place: tuple[int, int] | None = None
    difference: float | None = None


@dataclasses.dataclass(frozen=True)
class DecoderReport:
    """Results of all checks of a decoder. `str(report)` is a table.

    `report["future tokens"]` is the check of this name.

    Attributes:
        checks: All checks, in the order in which they ran.
    """

    checks: tuple[DecoderCheck, ...]

    @property
    def failures(self) -> tuple[DecoderCheck, ...]:
        """Failed checks."""
        return tuple(check for check in self.checks if check.result == "failed")

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return not self.failures

    def raise_if_failed(self) -> None:
        """Raises `AssertionError` with the table if a check failed."""
        if not self.ok:
            raise AssertionError(f"\n{self}")

    def __getitem__(self, name: str) -> DecoderCheck:
        return {check.name: check for check in self.checks}[name]

    def __str__(self):
        width = max(len(check.name) for check in self.checks)
        lines = []
        for check in self.checks:
            result = check.result.upper() if check.result == "failed" else check.result
            line = f"{result:<9}{check.name:<{width + 2}}"
            if check.result == "skipped":
                line += check.message
            elif check.difference is not None:
                line += f"largest difference {check.difference:.2g}"
            lines.append(line.rstrip())
            if check.result == "failed":
                cause = f"Likely cause: {check.cause}" if check.cause else ""
                for text in (check.message, cause):
                    lines += textwrap.wrap(
                        text, 92, initial_indent=" " * 9, subsequent_indent=" " * 9
                    )
        count = len(self.failures)
        lines.append(f"{count} of {len(self.checks)} checks failed" if count else "No check failed")
        return "\n".join(lines)


def check_decoder(
    model: Any,
    inputs: Any = None,
    *,
    labels: Any = None,
    target: str | None = None,
    pad_id: int = PAD_ID,
    padding_side: Literal["right", "left"] = "right",
    vocabulary_size: int | None = None,
    search_model: SearchModel | None = None,
    exported: Callable[[Any], Any] | None = None,
    reload: bool = True,
    tolerance: float | None = None,
) -> DecoderReport:
    """Checks that a decoder depends only on what it may depend on.

    Sentences of random ids show that no output reads a later token, at inference and in training,
    and that padding and other sentences of the batch change nothing. Cached steps, a saved file
    and an export must compute what the model computes. Each failure names the input, the place, the
    difference and the likely cause. The model's weights and random seeds stay as they are.

    Args:
        model: A Keras model, or a function of ids. It takes token ids `(batch, length)`, a pair
            (source, target), or a dict. It returns logits or hidden vectors
            `(batch, target length, features)`. Inputs whose names end in `mask` get padding masks.
        inputs: An example of the model's inputs. A Functional model, a model of this package and
            a model of one input need none. The test sentences are as long as the example, at most
            64 tokens: a fault that begins at a later position is not found.
        labels: Labels of the example, integers `(batch, length)`.
        target: Name of the input that the decoder reads. By default the input with `target` or
            `decoder` in its name, or the last one.
        pad_id: Id of padding.
        padding_side: Side of a sentence where padding is, `right` or `left`.
        vocabulary_size: Number of ids; by default the rows in the smallest embedding of tokens, or
            the features of the outputs.
        search_model: `SearchModel` of the model, for cached steps. By default the model itself, if
            it has `start_decoding` and `step`.
        exported: A function that calls an export, with the inputs of the model.
        reload: Whether to save and load the model.
        tolerance: Largest difference that is rounding, as a share of the largest output. By default
            1e-4 in float32 on a CPU, 2e-3 on other devices, 1e-2 in float16, and 5e-2 in bfloat16
            or int8; 1e-5 where both calls have the same shapes.

    Raises:
        InputError: The model cannot be called with such inputs, or returns other outputs.

    Example:

    >>> from keras_transformer.layers import TokenEmbedding
    >>> report = check_decoder(TokenEmbedding(100, 16))
    >>> report["future tokens"].result, report["reads its inputs"].result
    ('passed', 'failed')
    """
    check_choice("padding_side", padding_side, ("right", "left"))
    if not callable(model):
        rule = "`model` must be called with ids. Give a wrapper for a search as `search_model`."
        raise InputError(f"{rule} Received: {type(model).__name__}.")
    test_inputs = _Inputs(model, inputs, target, pad_id, vocabulary_size)
    decoder = _Decoder(model, test_inputs, padding_side, tolerance)
    if search_model is None and hasattr(model, "start_decoding") and hasattr(model, "step"):
        search_model = model
    try:
        if _check_repeated_calls(decoder):
            _check_other_sentences(decoder)
            _check_future_tokens(decoder)
            _check_training(decoder)
            _check_reading(decoder)
            for name in (*test_inputs.sources, test_inputs.target):
                _check_padding(decoder, name)
            _check_labels(decoder, labels)
            _check_steps(decoder, search_model)
            _check_saved_file(decoder, reload)
            _check_export(decoder, exported)
    finally:
        decoder.restore()
    order = ["repeated calls", "unchanged weights", "future tokens", "future tokens in training"]
    order += ["reads its inputs", "other sentences"]
    first = [decoder.checks.pop(name) for name in order if name in decoder.checks]
    return DecoderReport((*first, *decoder.checks.values()))


# Calls of a model, and what they show.

_Ids = dict[str, np.ndarray]  # integers `(batch, length)` of each input, by its name


class _Difference(NamedTuple):
    """The first place and the largest size of a difference of two outputs."""

    place: tuple[int, int]
    largest: float
    share: float = math.inf

    def __str__(self):
        row, position = self.place
        if not np.isfinite(self.largest):
            return f"NaN, first at ({row}, {position})"
        share = f"{self.share:.0%}" if self.share >= 0.01 else f"{self.share:.1g}"
        of = f"{share} of the largest output"
        return f"first at ({row}, {position}), by up to {self.largest:.2g}, {of}"


class _Decoder:
    """Calls a model with test sentences, restores its variables, and collects results.

    Attributes:
        checks: Results so far, by name.
        ids: Sentences without padding.
        expected: Outputs for `ids`.
        seen: Bool `(position, position)`: does the output of the row depend on the token of the
            column?
        columns: Positions whose tokens were changed for `seen`.
        changes_state: Whether a call at inference changes variables.
    """

    def __init__(self, model, inputs: "_Inputs", side: str, tolerance: float | None):
        self.model, self.inputs, self.side, self._tolerance = model, inputs, side, tolerance
        self.target, self.checks = inputs.target, dict[str, DecoderCheck]()
        self.layers = layers_of(model)
        self._compiled: dict[tuple[int, bool], Any] = {}
        self._state = self._values()
        try:
            outputs = self.call_eagerly(inputs.sentences())  # makes the weights of a new model
        except Exception as error:
            self.restore()
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"The model cannot be called with ids for {inputs.structure}: give `inputs`, "
                f"an example of its inputs. Received: {_text_of(error)}"
            ) from error
        inputs.vocabulary_size = inputs.vocabulary_size or outputs.shape[2]
        self.layers = layers_of(model)
        self._state = {**self._values(), **self._state}
        self._rounding = self._rounding_of_layers()
        self.restore()
        self.ids = inputs.sentences()
        self.expected = self(self.ids)
        self.restore()
        self.changes_state = True
        self.seen, self.columns = np.zeros((0, 0), bool), list[int]()

    def __call__(self, ids: _Ids, training: bool = False, model: Any = None) -> np.ndarray:
        """Returns outputs, float64 `(batch, target length, features)`.

        Args:
            ids: Ids of each input.
            training: Whether the call is one of training.
            model: A model that takes the same inputs, such as an export; by default the decoder.
        """
        model = self.model if model is None else model
        if keras.backend.backend() != "jax" or not isinstance(model, keras.layers.Layer):
            return self.call_eagerly(ids, training, model)
        # Op by op, JAX compiles each operation for each shape.
        key = id(model), training
        if key not in self._compiled:
            self._compiled[key] = _Compiled(model, training)
        if self._compiled[key] is not None:
            try:
                outputs = self._compiled[key].predict_on_batch(self.inputs.pack(ids))
                return self._array_of(outputs, ids)
            except InputError:
                raise
            except Exception:
                self._compiled[key] = None  # Its Python code needs values.
        return self.call_eagerly(ids, training, model)

    def call_eagerly(self, ids: _Ids, training: bool = False, model: Any = None) -> np.ndarray:
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
        return _numpy(ops.cast(ops.convert_to_tensor(outputs[0]), "float32")).astype("float64")

    def restored(self, ids: _Ids, training: bool = False) -> np.ndarray:
        """Calls the model, and undoes what the call changed, such as moving averages."""
        outputs = self(ids, training)
        if self.changes_state or training:
            self.restore()
        return outputs

    def recorded(
        self, ids: _Ids, training: bool = False, noise: float = 0.0
    ) -> tuple[np.ndarray, list["_LayerCall"]]:
        """Returns the outputs and the calls of layers.

        `noise` is added to the embedded vectors of padding.
        """
        pad_id = self.inputs.pad_id if noise else None
        with _recorded_calls(self.layers, pad_id, noise) as calls:
            outputs = self.call_eagerly(ids, training)
        self.restore()
        return outputs, calls

    def changed(self, ids: _Ids, name: str, places: Any) -> _Ids:
        """Returns ids with another token in each place of an index `(row, position)`."""
        changed = ids[name].copy()
        changed[places] = self.inputs.draw(changed[places].shape, changed[places])
        return {**ids, name: changed}

    def add(self, name: str, result: Any, message="", cause="", input_name=None, difference=None):
        """Adds the result of a check; `difference` is a number or a `_Difference`."""
        place, size = None, difference
        if isinstance(difference, _Difference):
            place, size = difference.place, difference.largest
        self.checks[name] = DecoderCheck(name, result, message, cause, input_name, place, size)

    def failed(self, name: str) -> bool:
        """Returns True if a check has failed."""
        return name in self.checks and self.checks[name].result == "failed"

    def compare(self, outputs, expected, where=None, same_shapes=False) -> _Difference | None:
        """Compares outputs `(batch, length, features)` at the places of a mask `(batch, length)`.

        Returns:
            None if no difference is larger than rounding.
        """
        distance = self.distance(outputs, expected, where)
        differs = distance > self.limit(expected, same_shapes)
        if not differs.any():
            return None
        row, position = map(int, np.argwhere(differs)[0])
        largest = float(distance.max())
        return _Difference((row, position), largest, largest / _scale(expected))

    def distance(self, outputs, expected, where=None) -> np.ndarray:
        """Computes the largest difference of features, `(batch, length)`; NaN is infinite."""
        with np.errstate(invalid="ignore"):
            distance = np.nan_to_num(np.abs(outputs - expected).max(-1), nan=np.inf)
        # The same infinite value, such as a masked logit, does not differ.
        distance[(outputs == expected).all(-1)] = 0.0
        return distance if where is None else np.where(where, distance, 0.0)

    def limit(self, expected: np.ndarray, same_shapes: bool = False) -> float:
        """Returns the largest difference that is rounding."""
        share = _SAME_SHAPES if same_shapes else self._rounding
        return (self._tolerance or share) * _scale(expected)

    def changed_variables(self) -> list[Any]:
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

    def _values(self):
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


class _Compiled(keras.Model):
    """Calls a model in one compiled function, as Keras' `predict` does."""

    def __init__(self, model, training):
        super().__init__()
        self._model, self._in_training = model, training

    def call(self, inputs):
        return self._model(inputs, training=self._in_training)


def _numpy(tensor):
    return np.array(ops.convert_to_numpy(tensor))


def _scale(outputs):
    # Logits of forbidden ids are far below others, or infinite.
    finite = np.abs(outputs[np.isfinite(outputs) & (np.abs(outputs) < 1e6)])
    return float(finite.max(initial=0.0)) or 1.0


def _text_of(error):
    return f"{type(error).__name__}: {first_line(error)}"


class _LayerCall(NamedTuple):
    """Inputs and outputs of a layer in a call.

    Attributes:
        layer: The layer.
        inputs: Arrays, without masks.
        outputs: Arrays.
        is_cross: Whether it attends to another sequence than its first input.
        key_length: Length of the sequence that it attends to.
        masks: Arrays of bool by the names of the arguments that are masks.
        has_mask_argument: Whether its `call` takes a mask, and no layer inside it does.
        is_causal: Its argument `use_causal_mask`; None without this argument.
        removes_masks: Whether an input had a Keras mask before the call and not after it.
    """

    layer: Any
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    is_cross: bool
    key_length: int | None
    masks: dict[str, np.ndarray]
    has_mask_argument: bool
    is_causal: bool | None
    removes_masks: bool

    @property
    def name(self) -> str:
        """The layer's name and class, for a message."""
        path = getattr(self.layer, "path", None) or self.layer.name
        return f"`{path}` ({type(self.layer).__name__})"


@contextlib.contextmanager
def _recorded_calls(layers, pad_id=None, noise=0.0) -> Iterator[list[_LayerCall]]:
    """Records the calls of layers in the `with` block, in the order in which they end."""
    calls: list[_LayerCall] = []
    readers_inside: list[int] = []  # for each call that has not ended

    def recording(layer, call):
        signature = inspect.signature(call)
        mask_names = {name for name in signature.parameters if name.endswith("mask")}
        is_reader = bool(mask_names - {"use_causal_mask"}) and not isinstance(layer, _NO_READERS)

        def record(*arguments, **options):
            try:
                bound = signature.bind(*arguments, **options)
            except TypeError:
                return call(*arguments, **options)
            bound.apply_defaults()
            values = keras.tree.flatten(list(bound.arguments.values()))
            tensors = [value for value in values if ops.is_tensor(value)]
            had_mask = [_keras_mask(tensor) is not None for tensor in tensors]
            readers_inside[:] = [count + is_reader for count in readers_inside]
            readers_inside.append(0)
            try:
                outputs = call(*arguments, **options)
            finally:
                is_innermost = not readers_inside.pop()
            if pad_id is not None and _is_embedding(layer) and len(tensors[0].shape) == 2:
                is_padding = ops.expand_dims(ops.equal(tensors[0], pad_id), -1)
                # A shift of all features would be lost in a normalization.
                size = noise * ops.max(ops.abs(ops.cast(outputs, "float32")))
                added = size * ops.cos(ops.arange(outputs.shape[-1], dtype="float32"))
                outputs = outputs + ops.cast(ops.where(is_padding, added, 0.0), outputs.dtype)
            has_mask = [_keras_mask(tensor) is not None for tensor in tensors]
            calls.append(
                _layer_call(layer, bound.arguments, outputs, is_reader and is_innermost)._replace(
                    removes_masks=is_innermost and sum(has_mask) < sum(had_mask)
                )
            )
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


def _layer_call(layer, arguments, outputs, has_mask_argument):
    arrays = {name: _arrays(value) for name, value in arguments.items()}
    masks = {name: found[0] for name, found in arrays.items() if name.endswith("mask") and found}
    inputs = {name: found for name, found in arrays.items() if not name.endswith("mask")}
    sequences = [array for found in inputs.values() for array in found if array.ndim >= 3]
    keys = [inputs[name][0] for name in _KEYS if inputs.get(name)] or sequences[1:]
    is_cross = bool(keys) and not np.array_equal(keys[0], sequences[0])
    return _LayerCall(
        layer,
        [array for found in inputs.values() for array in found],
        _arrays(outputs),
        is_cross,
        (keys or sequences)[0].shape[1] if sequences else None,
        {name: mask.astype(bool) for name, mask in masks.items()},
        has_mask_argument,
        bool(arguments["use_causal_mask"]) if "use_causal_mask" in arguments else None,
        False,
    )


def _arrays(structure):
    """Lists the tensors of a structure that have values and two or more axes, as arrays."""
    tensors = [value for value in keras.tree.flatten(structure) if ops.is_tensor(value)]
    arrays = [values_of(ops.cast(x, "float32") if _is_float(x) else x) for x in tensors]
    return [array for array in arrays if array is not None and array.ndim >= 2]


def _is_float(tensor):
    return "float" in keras.backend.standardize_dtype(tensor.dtype)


def _keras_mask(tensor):
    return getattr(tensor, "_keras_mask", None)


def _is_embedding(layer):
    return "Embedding" in type(layer).__name__ and hasattr(layer, "embeddings")


def _first_culprit(first, second, places) -> _LayerCall | None:
    """Finds the innermost layer that makes a difference of two calls of the model.

    Args:
        first, second: Calls of layers in each call of the model.
        places: A function that takes the same array of both calls, and returns the parts that must
            be equal.
    """

    def agree(arrays, others):
        return len(arrays) == len(others) and all(map(_agree, arrays, others))

    def _agree(array, other):
        part, other_part = places(array, other)
        if part.shape != other_part.shape:
            return False
        with np.errstate(invalid="ignore"):
            distance = np.abs(part.astype("float64") - other_part).max(initial=0.0)
        return distance <= _ROUNDING["float32"] * _scale(other_part)

    for call, other in zip(first, second, strict=False):
        if call.layer is not other.layer:
            return None
        if agree(call.inputs, other.inputs) and not agree(call.outputs, other.outputs):
            return call
    return None


# Checks. Each adds its result; later causes use what earlier checks found.


def _check_repeated_calls(decoder: _Decoder) -> bool:
    """Calls the model twice. Returns False if its outputs cannot be compared."""
    again = decoder(decoder.ids)
    again = decoder(decoder.ids)  # The first call may have the state before the checks.
    changed = decoder.changed_variables()
    decoder.changes_state = bool(changed)
    decoder.restore()
    weights = [variable for variable in changed if "seed" not in variable.path]
    difference = decoder.compare(again, decoder.expected, same_shapes=True)
    if difference is not None:
        cause = _CAUSES["state" if weights and len(weights) == len(changed) else "random"]
        message = f"A second call with the same ids differs: {difference}."
        decoder.add("repeated calls", "failed", message, cause, decoder.target, difference)
        decoder.add("other checks", "skipped", "need outputs that are the same in each call")
        return False
    if np.isnan(decoder.expected).any():
        row, position = map(int, np.argwhere(np.isnan(decoder.expected).any(-1))[0])
        missing = _Difference((row, position), math.inf)
        message = f"Outputs are NaN, first at ({row}, {position})."
        cause = _CAUSES["not finite"]
        decoder.add("repeated calls", "failed", message, cause, None, missing)
        decoder.add("other checks", "skipped", "need outputs that are numbers")
        return False
    size = float(decoder.distance(again, decoder.expected).max())
    decoder.add("repeated calls", "passed", difference=size)
    if not weights:
        decoder.add("unchanged weights", "passed")
        return True
    names = ", ".join(f"`{variable.path}`" for variable in weights[:2])
    message = f"A call at inference changes {len(weights)} variables, such as {names}."
    is_average = any("moving" in variable.path for variable in weights)
    cause = _CAUSES["batch statistics" if is_average else "state"]
    decoder.add("unchanged weights", "failed", message, cause)
    return True


def _check_other_sentences(decoder: _Decoder) -> None:
    """Changes one sentence after the other, and calls each sentence without the others."""
    check, batch, expected = "other sentences", decoder.inputs.batch, decoder.expected
    if batch < 2:
        decoder.add(check, "skipped", "needs two sentences in a batch")
        return
    rows, distances = np.arange(batch), []
    for row in range(batch):
        changed = decoder.ids
        for name in decoder.ids:
            changed = decoder.changed(changed, name, np.s_[row : row + 1])
        is_other = (rows != row)[:, None]
        distances.append(decoder.distance(decoder.restored(changed), expected, is_other))
    limit = decoder.limit(expected, same_shapes=True)
    for row, distance in enumerate(distances):
        if (distance > limit).any():
            place, largest = np.argwhere(distance > limit)[0].tolist(), float(distance.max())
            difference = _Difference(tuple(place), largest, largest / _scale(expected))
            message = f"Sentence {row} changes outputs of another one: {difference}."
            cause = _CAUSES[_batch_cause(decoder, distances)]
            norms = _layers_of_class(decoder, keras.layers.BatchNormalization)
            if decoder.changes_state and norms:
                cause = f"`{norms[0].path}`: {_CAUSES['batch statistics']}"
            decoder.add(check, "failed", message, cause, decoder.target, difference)
            return
    largest = max(float(distance.max()) for distance in distances)
    for row in () if decoder.inputs.has_fixed_batch else range(batch):
        single = {name: ids[row : row + 1] for name, ids in decoder.ids.items()}
        outputs, expected_row = decoder.restored(single), expected[row : row + 1]
        if (found := decoder.compare(outputs, expected_row)) is not None:
            difference = found._replace(place=(row, found.place[1]))
            message = f"Sentence {row} differs if it is the only one: {difference}."
            calls = decoder.recorded(single)[1], decoder.recorded(decoder.ids)[1]
            culprit = _first_culprit(
                *calls, lambda one, all, row=row: (one[0], all[row % len(all)])
            )
            where = f"{culprit.name} differs first. " if culprit else ""
            decoder.add(
                check, "failed", message, where + _CAUSES["row"], decoder.target, difference
            )
            return
        largest = max(largest, float(decoder.distance(outputs, expected_row).max()))
    decoder.add(check, "passed", difference=largest)


def _batch_cause(decoder, distances):
    """Batch statistics change every output of every other sentence, a reshape only some."""
    limit = decoder.limit(decoder.expected, same_shapes=True)
    changed = [np.delete(distance, row, 0) > limit for row, distance in enumerate(distances)]
    # Statistics have no order.
    order = np.array([0, *range(decoder.inputs.batch - 1, 0, -1)])
    outputs = decoder.restored({name: ids[order] for name, ids in decoder.ids.items()})
    has_order = decoder.compare(outputs[:1], decoder.expected[:1]) is not None
    is_everywhere = all(places.all() for places in changed)
    return "batch statistics" if is_everywhere and not has_order else "reshape"


def _check_future_tokens(decoder: _Decoder) -> None:
    """Changes each token, and looks for earlier outputs that change."""
    check, name, length = "future tokens", decoder.target, decoder.expected.shape[1]
    if length < 2:
        decoder.add(check, "skipped", "needs two positions")
        return
    spread = np.linspace(0, length - 1, _MAX_PLACES).astype(int).tolist()
    decoder.columns = sorted({*range(min(4, length)), *spread})
    distance = np.zeros((length, length))  # --> [output, token]
    # Sentences that do not depend on each other are changed together.
    count = 1 if decoder.failed("other sentences") else decoder.inputs.batch
    for start in range(0, len(decoder.columns), count):
        columns = decoder.columns[start : start + count]
        changed = decoder.changed(decoder.ids, name, (np.arange(len(columns)), columns))
        rows = decoder.distance(decoder.restored(changed), decoder.expected)[: len(columns)]
        distance[:, columns] = rows.T
    decoder.seen = distance > decoder.limit(decoder.expected, same_shapes=True)
    largest = float(np.triu(distance, 1).max())
    leaks = np.argwhere(np.triu(decoder.seen, 1))
    if not len(leaks):
        decoder.add(check, "passed", difference=largest)
        return
    position, column = leaks[0].tolist()
    difference = _Difference((0, position), largest, largest / _scale(decoder.expected))
    message = f"Another id at {name}[0, {column}] changes earlier outputs: {difference}."
    decoder.add(check, "failed", message, _future_cause(decoder, column), name, difference)


def _future_cause(decoder, column):
    """Returns the cause of outputs that read the token of a later column."""
    if decoder.failed("other sentences"):
        return decoder.checks["other sentences"].cause
    seen, length = decoder.seen, len(decoder.seen)
    # The last output may read the first id, which a rotation moves to the end.
    is_first_read = bool(seen[:-1, 0].any())
    later = [row for row in decoder.columns if 0 < row]
    if not is_first_read and seen[np.array(later) - 1, later].all():
        return _CAUSES["shifted ids"]
    is_leaking = np.triu(seen, 1).any(1)[:-1]
    first = int(np.argmax(is_leaking))
    if first > 1 and is_leaking[first:].all():
        return f"The causal mask ends at position {first}: it was made for a fixed length."
    culprit = _culprit_of_future(decoder, column, training=False)
    if culprit is not None:
        return _cause_in_layer(culprit, length)
    if not np.tril(seen, -1).any():
        return f"{_INVERTED} The causal mask shows later positions instead of earlier ones."
    reach = max(column - row for row, column in np.argwhere(seen))
    if 0 < reach < length - 2:
        return (
            "The causal mask is off by one (diagonal 1), once per layer, or a convolution is not "
            f"causal: an output reads up to {reach} later tokens."
        )
    return _CAUSES["no causal mask"]


def _culprit_of_future(decoder, column, training):
    """Finds the layer whose earlier outputs change with tokens from a column on."""
    changed = decoder.changed(decoder.ids, decoder.target, np.s_[:1, column:])
    calls = [decoder.recorded(ids, training)[1] for ids in (decoder.ids, changed)]
    length = decoder.expected.shape[1]

    def earlier(*arrays):
        return [x[:1, :column] if x.shape[1] == length else x[:1] for x in arrays]

    return _first_culprit(*calls, earlier)


def _cause_in_layer(call, length):
    """Explains why a layer over the target reads later positions."""
    layer = call.layer
    if isinstance(layer, keras.layers.Conv1D) and layer.padding != "causal":
        return f'{call.name} reads later positions: give it `padding="causal"`.'
    if isinstance(layer, keras.layers.Bidirectional) or getattr(layer, "go_backwards", False):
        return f"{call.name} reads the sequence from its end."
    if _is_norm_of_positions(layer):
        return f"{call.name} has statistics over all positions: normalize only features."
    if not call.has_mask_argument:
        return f"{call.name} reads later positions itself, such as in statistics over positions."
    visible = _visible_pairs(call, length)
    if visible is None and not call.is_causal:
        how = " Give `use_causal_mask=True`." if call.is_causal is False else ""
        return f"{call.name} is called without a causal mask.{how}"
    if (inverted := _inverted_cause(call, length)) is not None:
        return inverted
    if visible is None or not np.triu(visible, 1).any():
        return f"{call.name} reads later positions, though its mask hides them."
    if not np.triu(visible, 2).any():
        return f"The causal mask of {call.name} shows one position too many (off by one)."
    if (visible == visible[0]).all():
        return f"The mask of {call.name} hides padding only: it needs a causal mask, too."
    return f"The mask of {call.name} shows later positions."


def _is_norm_of_positions(layer):
    is_layer_norm = isinstance(layer, keras.layers.LayerNormalization)
    if is_layer_norm and 1 in np.ravel(getattr(layer, "axis", -1)):
        return True
    return isinstance(layer, keras.layers.GroupNormalization)


def _inverted_cause(call, length):
    visible = _visible_pairs(call, length)
    if visible is None or call.is_causal:
        return None
    if not visible.any():
        return f"{_INVERTED} The mask of {call.name} hides all tokens of the target."
    if np.triu(visible, 1).any() and not np.tril(visible, -1).any():
        return f"{_INVERTED} The causal mask of {call.name} shows only later positions."
    return None


def _visible_pairs(call, length):
    """Combines masks that have both axes: bool `(query, key)`; None without such a mask."""
    pairs = None
    for mask in call.masks.values():
        if mask.shape[-2:] == (length, length):
            seen = mask.reshape(-1, length, length).any(0)
            pairs = seen if pairs is None else pairs & seen
        elif mask.ndim >= 3 and mask.shape[-1] == length and not mask.any():
            return np.zeros((length, length), bool)
    return pairs


def _check_training(decoder: _Decoder) -> None:
    """Repeats the check of future tokens with `training=True`."""
    check, name, length = "future tokens in training", decoder.target, decoder.expected.shape[1]
    if length < 2 or not isinstance(decoder.model, keras.layers.Layer):
        decoder.add(check, "skipped", "needs a Keras model")
        return
    expected, again = (decoder.restored(decoder.ids, training=True) for _ in range(2))
    if decoder.compare(again, expected, same_shapes=True):
        reason = "random numbers of the model have no seed that can be restored"
        decoder.add(check, "skipped", reason)
        return
    for start in sorted({1, length // 2, length - 1}):
        changed = decoder.changed(decoder.ids, name, np.s_[:1, start:])
        is_earlier = np.zeros(expected.shape[:2], bool)
        is_earlier[0, :start] = True
        outputs = decoder.restored(changed, training=True)
        difference = decoder.compare(outputs, expected, is_earlier, same_shapes=True)
        if difference is not None:
            message = (
                f"Other ids from {name}[0, {start}] change earlier outputs with training=True: "
                f"{difference}."
            )
            cause = _cause_in_training(decoder, start)
            decoder.add(check, "failed", message, cause, name, difference)
            return
    decoder.add(check, "passed")


def _cause_in_training(decoder, start):
    if decoder.failed("future tokens"):
        return decoder.checks["future tokens"].cause
    culprit = _culprit_of_future(decoder, start, training=True)
    if culprit is None:
        return _CAUSES["training mask"]
    if isinstance(culprit.layer, keras.layers.BatchNormalization):
        return f"`{culprit.layer.path}`: {_CAUSES['batch statistics']}"
    if culprit.has_mask_argument:
        return _cause_in_layer(culprit, decoder.expected.shape[1])
    return f"{culprit.name} reads later positions. {_CAUSES['training mask']}"


def _check_reading(decoder: _Decoder) -> None:
    """Checks that outputs depend on earlier tokens, and on each source."""
    check, length = "reads its inputs", decoder.expected.shape[1]
    if len(decoder.seen) > 1 and not np.tril(decoder.seen, -1).any():
        message = f"No output depends on an earlier token of {decoder.target}."
        attentions = [call for call in decoder.recorded(decoder.ids)[1] if call.has_mask_argument]
        causes = [_inverted_cause(call, length) for call in attentions if not call.is_cross]
        if decoder.failed("future tokens"):
            causes.append(decoder.checks["future tokens"].cause)
        cause = next(filter(None, causes), _CAUSES["hidden"])
        decoder.add(check, "failed", message, cause, decoder.target)
        return
    for name in decoder.inputs.sources:
        changed = decoder.changed(decoder.ids, name, np.s_[:])
        outputs = decoder.restored(changed)
        if decoder.compare(outputs, decoder.expected, same_shapes=True) is None:
            cause, length = _CAUSES["hidden"], decoder.inputs.lengths[name]
            for call in decoder.recorded(decoder.ids)[1]:
                masks = [mask for mask in call.masks.values() if mask.shape[-1] == length]
                if call.has_mask_argument and any(not mask.any() for mask in masks):
                    cause = f"{_INVERTED} The mask of {call.name} hides all tokens of {name}."
            decoder.add(check, "failed", f"No output depends on {name}.", cause, name)
            return
    decoder.add(check, "passed")


def _check_padding(decoder: _Decoder, name: str) -> None:
    """Compares sentences with padding and the same without, or with other vectors of padding."""
    check, inputs = f"padding of {name}", decoder.inputs
    if inputs.lengths[name] < 2 + _NUM_PADDING:
        decoder.add(check, "skipped", f"needs a length of at least {2 + _NUM_PADDING}")
        return
    sentences = _padded(decoder, name, inputs.pad_id)
    if name in inputs.fixed:
        # Shorter sentences are impossible: the vectors of padding change.
        difference, calls = _difference_of_vectors(decoder, name, sentences.padded)
        if calls is None:
            decoder.add(check, "skipped", "needs an embedding, or more than one length")
            return
    else:
        difference = _difference_of_padding(decoder, name, sentences)
    # A loss multiplies outputs of padding by 0, and the gradients are NaN.
    missing = np.argwhere(np.isnan(decoder.restored(sentences.padded)).any(-1))
    if difference is None and len(missing):
        difference = _Difference(tuple(missing[0].tolist()), math.inf)
    if difference is not None:
        message = f"Padding of {name} changes outputs of tokens: {difference}."
        if not np.isfinite(difference.largest):
            message = f"Padding of {name} makes outputs NaN, first at {difference.place}."
        cause = _padding_cause(decoder, name, sentences, difference)
        decoder.add(check, "failed", message, cause, name, difference)
    elif _is_padding_visible(decoder, name, sentences.padded):
        decoder.add(check, "passed")
    else:
        reason = "a token changes less than rounding: check trained weights"
        decoder.add(check, "skipped", reason)


class _Sentences(NamedTuple):
    """Sentences with padding in the first rows, with tokens in its place, and all shorter."""

    padded: _Ids
    short: _Ids
    full: _Ids
    tokens: slice
    num_padded: int


def _padded(decoder, name, pad_id, is_uniform=False):
    inputs = decoder.inputs
    length, batch = inputs.lengths[name], inputs.batch
    ids = inputs.draw((batch, length))
    # A sentence must not have the id that is taken for padding here.
    ids[ids == pad_id] = inputs.draw((), np.int32(pad_id))
    is_right = decoder.side == "right"
    tokens = slice(0, length - _NUM_PADDING) if is_right else slice(_NUM_PADDING, length)
    num_padded, padded = batch if is_uniform else 1, np.full_like(ids, pad_id)
    padded[:, tokens] = ids[:, tokens]
    padded[num_padded:] = ids[num_padded:]
    arrays = padded, ids[:, tokens], ids
    return _Sentences(*({**decoder.ids, name: x} for x in arrays), tokens, num_padded)


def _difference_of_padding(decoder, name, sentences) -> _Difference | None:
    """Compares outputs of padded sentences with outputs of the same without padding."""
    count, places = sentences.num_padded, slice(0, None)
    if name == decoder.target:
        places = sentences.tokens
    outputs = decoder.restored(sentences.padded)
    expected = decoder.restored(sentences.short)[:count]
    difference = decoder.compare(outputs[:count, places], expected)
    if difference is not None:
        row, position = difference.place
        return difference._replace(place=(row, position + places.start))
    if count == len(outputs):
        return None
    difference = decoder.compare(outputs[count:], decoder.restored(sentences.full)[count:])
    if difference is None:
        return None
    return difference._replace(place=(difference.place[0] + count, difference.place[1]))


def _difference_of_vectors(decoder, name, padded):
    """Compares outputs of tokens with outputs for other vectors of padding.

    Returns:
        The difference, and the calls of layers with both vectors; None for the calls if no layer
        embeds the padding.
    """
    (outputs, calls), (others, noisy) = (decoder.recorded(padded, noise=x) for x in (0.0, 2.0))
    if not any(_is_embedding(call.layer) for call in calls):
        return None, None
    is_token = np.ones(outputs.shape[:2], bool)
    if name == decoder.target:
        is_token = padded[name] != decoder.inputs.pad_id
    return decoder.compare(others, outputs, is_token, same_shapes=True), (calls, noisy)


def _is_padding_visible(decoder, name, padded):
    """Returns True if a token next to padding changes outputs: then padding would change them.

    Attention of new models may be so weak that padding is not seen, with a mask or without.
    """
    is_right = decoder.side == "right"
    if name == decoder.target and is_right:
        return True  # Earlier outputs must not read it.
    length = padded[name].shape[1]
    place = length - _NUM_PADDING - 1 if is_right else _NUM_PADDING
    changed = decoder.changed(padded, name, np.s_[:1, place])
    places = np.ones(decoder.expected.shape[:2], bool)
    if name == decoder.target:
        places[:] = np.arange(length) > place
    outputs = decoder.restored(changed), decoder.restored(padded)
    return decoder.compare(*outputs, places) is not None


def _padding_cause(decoder, name, sentences, difference):
    inputs = decoder.inputs
    if not np.isfinite(difference.largest):
        return _CAUSES["not finite"]
    if decoder.failed("other sentences"):
        return decoder.checks["other sentences"].cause
    if name == decoder.target and decoder.side == "right" and decoder.failed("future tokens"):
        return f"Outputs read later tokens. {decoder.checks['future tokens'].cause}"
    if name not in inputs.fixed:
        for other in sorted(set(range(5)) - {inputs.pad_id}):
            if _difference_of_padding(decoder, name, _padded(decoder, name, other)) is None:
                return (
                    f"The model takes id {other} as padding, and not {inputs.pad_id}. Give "
                    f"`pad_id={other}`, or change the mask."
                )
        uniform = _padded(decoder, name, inputs.pad_id, is_uniform=True)
        is_foreign = _difference_of_padding(decoder, name, uniform) is None
        if is_foreign and inputs.batch > 1:
            return _CAUSES["foreign mask"]
    of_vectors, calls = _difference_of_vectors(decoder, name, sentences.padded)
    if calls is None:
        return _CAUSES["padding"]
    if of_vectors is None:
        is_left = decoder.side == "left"
        return _CAUSES["positions on the left" if is_left else "number of padding"]
    is_token = sentences.padded[name][0] != inputs.pad_id

    def at_tokens(*arrays):
        return [x[0][is_token] if x.shape[1] == len(is_token) else x[0] for x in arrays]

    culprit = _first_culprit(*calls, at_tokens)
    if culprit is None:
        return _CAUSES["padding"]
    if culprit.has_mask_argument:
        return _cause_of_visible_padding(culprit, calls[0], is_token, name)
    if isinstance(culprit.layer, keras.layers.Conv1D):
        return f"{culprit.name} reads padding next to tokens: set its vectors to zero before."
    if _is_norm_of_positions(culprit.layer):
        return f"{culprit.name} has statistics over all positions: normalize only features."
    return f"{culprit.name} reads padding itself, such as in statistics over positions."


def _cause_of_visible_padding(culprit, calls, is_token, name):
    """Explains why a layer that takes masks reads padding."""
    masks = [mask for key, mask in culprit.masks.items() if key != "query_mask"]
    for mask in masks:
        if mask.shape[-1] == len(is_token):
            visible = _visible_keys(mask)
            if not (visible & is_token).any():
                return f"{_INVERTED} {culprit.name} sees the padding and not the tokens."
            is_causal = mask.ndim > 2 and not np.triu(mask[(0,) * (mask.ndim - 2)], 1).any()
            if not is_causal and mask.shape[0] > 1:
                return (
                    f"The mask of {culprit.name} shows the padding of {name}: it is the mask of "
                    "another sequence, or covers too few positions."
                )
    before = calls[: next(i for i, call in enumerate(calls) if call is culprit)]
    hint = ""
    for call in before:
        masks = [mask for mask in call.masks.values() if mask.shape[-1] == len(is_token)]
        if call.removes_masks:
            hint = (
                f" {call.name} removes the Keras masks of its inputs: use this package's "
                "`MultiHeadAttention`, or give masks by hand."
            )
        elif call.has_mask_argument and any(not _visible_keys(x)[~is_token].any() for x in masks):
            hint = hint or f" {call.name} has one: the mask is lost after it."
    if culprit.is_cross:
        return (
            f"The cross-attention {culprit.name} gets no padding mask of its keys, so that it "
            f"attends to padding.{hint}"
        )
    return (
        f"{culprit.name} gets no padding mask: an operation before it lost the mask, or no layer "
        f"made one.{hint}"
    )


def _visible_keys(mask):
    """Returns the keys of the first sentence that any query of any head sees."""
    return mask[0].reshape(-1, mask.shape[-1]).any(0)


def _check_labels(decoder: _Decoder, labels: Any) -> None:
    """Looks for the labels of an example among the ids that outputs have read."""
    check, name, ids = "labels", decoder.target, decoder.inputs.example_ids.get(decoder.target)
    if labels is None:
        reason = "give `inputs` and `labels`, an example of the training data"
        decoder.add(check, "skipped", reason)
        return
    if ids is None:
        raise InputError("`labels` need `inputs`, the example that they belong to.")
    labels = np.asarray(labels)
    if labels.shape != ids.shape or labels.dtype.kind not in "iu":
        rule = f"`labels` must be integers of the shape {ids.shape}, as {name}."
        raise InputError(f"{rule} Received: {labels.dtype} of shape {labels.shape}.")
    # How many positions after its own does an output read? 0, or -1 if the model shifts ids.
    if not decoder.columns:
        decoder.add(check, "skipped", "needs two positions")
        return
    middle = decoder.columns[len(decoder.columns) // 2]
    read = np.flatnonzero(decoder.seen[middle, : middle + 1])
    ahead = int(read[-1]) - middle if len(read) else 0
    pad_id, equal = decoder.inputs.pad_id, {}
    for shift in range(-1, 4):
        later, length = np.full(ids.shape, pad_id), ids.shape[1]
        start, stop = max(0, -ahead - shift), min(length, length - ahead - shift)
        later[:, start:stop] = ids[:, start + ahead + shift : stop + ahead + shift]
        is_counted = (later != pad_id) & (labels != pad_id)
        equal[shift] = (later == labels) & is_counted, max(1, is_counted.sum())
    best = max(equal, key=lambda shift: equal[shift][0].sum() / equal[shift][1])
    if not equal[best][0].any():
        message = f"The labels are not the ids of {name} at any shift."
        decoder.add(check, "failed", message, "Labels of other sentences or another vocabulary.")
    elif best < 1:
        place = tuple(np.argwhere(equal[best][0])[0].tolist())
        message = f"The label at {place} is an id of {name} that its output has read."
        difference = _Difference(place, 1.0)
        decoder.add(check, "failed", message, _CAUSES["unshifted labels"], name, difference)
    elif best > 1:
        message = f"Labels are {best} tokens after the last token that an output reads."
        decoder.add(check, "failed", message, "The labels or the ids are shifted twice.", name)
    else:
        decoder.add(check, "passed")


def _check_steps(decoder: _Decoder, model: Any) -> None:
    """Compares decoding step by step, as `decoding.search` does, with one full pass."""
    check, beams, inputs = "cached steps", "reordered beams", decoder.inputs
    if model is None:
        reason = "the model has no `start_decoding` and `step`: give `search_model`"
        decoder.add(check, "skipped", reason)
        return
    if len(inputs.sources) > 1:
        decoder.add(check, "skipped", "a search reads one source")
        return
    try:
        decoder.call_eagerly(inputs.sentences())  # Steps may read what this call leaves.
        vocabulary = _steps(decoder, model, _beginning(decoder, 1)).shape[-1]
        if vocabulary != decoder.expected.shape[-1]:
            reason = f"the call returns no logits, and steps {vocabulary} logits"
            decoder.add(check, "skipped", reason)
            return
        difference, cause = _difference_of_steps(decoder, model)
    except Exception as error:
        decoder.add(check, "failed", f"A step raises {_text_of(error)}")
        return
    if difference is not None:
        message = f"Cached steps differ from the full pass: {difference}."
        decoder.add(check, "failed", message, cause, decoder.target, difference)
        return
    decoder.add(check, "passed")
    try:
        difference, cause = _difference_of_beams(decoder, model)
    except NotImplementedError as error:
        decoder.add(beams, "skipped", str(error))
        return
    except Exception as error:
        decoder.add(beams, "failed", f"A step raises {_text_of(error)}")
        return
    if difference is None:
        decoder.add(beams, "passed")
        return
    message = f"Two hypotheses differ from the full pass: {difference}."
    decoder.add(beams, "failed", message, cause, decoder.target, difference)


def _steps(decoder, model, ids, beams=1, parents=None):
    """Computes logits of all steps, float64 `(batch, beams, length, vocabulary)`.

    Args:
        ids: Inputs; the target is `(batch * beams, length)`.
        beams: Number of hypotheses per sentence.
        parents: Int `(batch, beams)`, the hypotheses to continue after half of the steps.
    """
    target = ids[decoder.target]
    length = target.shape[1]
    target = target.reshape(-1, beams, length)
    sources = [ids[name] for name in decoder.inputs.sources]
    # A decoder without a source gets the number of texts.
    source = sources[0] if sources else target[:, 0, :1]
    half = length // 2
    capacity = half if getattr(model, "is_extendable", False) and half else length
    cache = model.start_decoding(ops.convert_to_tensor(source), capacity, beams)
    step = model.step
    if hasattr(model, "step_function"):
        step = model.step_function(model.step_weights())
    outputs = []
    for position in range(length):
        if position == half and capacity < length:
            cache = model.extended(cache, length)
        if position == half and parents is not None:
            cache = model.reorder(cache, ops.convert_to_tensor(parents.astype("int32")))
        logits, cache = step(ops.convert_to_tensor(target[:, :, position]), cache)
        outputs.append(_numpy(ops.cast(logits, "float32")))
    return np.stack(outputs, axis=2).astype("float64")


def _beginning(decoder, count, ids=None):
    """Returns the first target tokens: a step takes as long as a full pass."""
    ids = ids or decoder.ids
    if decoder.target in decoder.inputs.fixed:
        return ids
    return {**ids, decoder.target: ids[decoder.target][:, :count]}


def _centered(logits):
    """Subtracts the median over the vocabulary: a search ignores a constant."""
    return logits - np.median(logits, axis=-1, keepdims=True)


def _difference_of_steps(decoder, model):
    """Returns the difference and its cause; the second sentences show what the first ones left."""

    def difference_of(ids):
        steps = _centered(_steps(decoder, model, ids)[:, 0])
        return decoder.compare(steps, _centered(decoder.restored(ids)))

    if (difference := difference_of(decoder.ids)) is not None:
        return difference, _step_cause(decoder, model, decoder.ids, difference)
    padded = others = _beginning(decoder, _FEW_STEPS, decoder.inputs.sentences())
    for name in decoder.inputs.sources:
        if decoder.checks[f"padding of {name}"].result == "passed":
            sentences = _padded(decoder, name, decoder.inputs.pad_id)
            padded = {**others, name: sentences.padded[name]}
    if (difference := difference_of(padded)) is None:
        return None, ""
    is_right = padded is not others and difference_of(others) is None
    return difference, _CAUSES["source mask" if is_right else "kept"]


def _is_kept(decoder, model, ids):
    """Returns True if steps depend on the calls before them."""
    results = []
    for before in (decoder.inputs.sentences(), ids):
        decoder.call_eagerly(before)
        _steps(decoder, model, before)
        results.append(_steps(decoder, model, ids)[:, 0])
    return decoder.compare(*results, same_shapes=True) is not None


def _step_cause(decoder, model, ids, difference):
    """Returns the likely cause of a difference for sentences without padding."""
    if _is_kept(decoder, model, ids):
        return _CAUSES["kept"]
    target = decoder.target
    full, steps = decoder.restored(ids), _steps(decoder, model, ids)[:, 0]
    centered, centered_steps = _centered(full), _centered(steps)
    factor = float((centered * centered_steps).sum() / ((centered**2).sum() or 1.0))
    if decoder.compare(centered_steps, factor * centered) is None:
        return _CAUSES["factor"].format(factor)
    for position in (0, 1):
        changed = decoder.changed(ids, target, np.s_[:, position])
        pairs = (decoder.restored(changed), full), (_steps(decoder, model, changed)[:, 0], steps)
        is_read, is_read_in_steps = (
            decoder.distance(*pair) > decoder.limit(pair[1], same_shapes=True) for pair in pairs
        )
        if (is_read.any(0) & ~is_read_in_steps.any(0))[position + 1 :].any():
            return _CAUSES["lost tokens"]
    # Without positions, steps that read the same token again and again are equal.
    same = {**ids, target: np.repeat(ids[target][:, :1], ids[target].shape[1], axis=1)}
    full_varies, steps_vary = (
        decoder.compare(outputs, np.repeat(outputs[:, :1], outputs.shape[1], axis=1)) is not None
        for outputs in (decoder.restored(same), _steps(decoder, model, same)[:, 0])
    )
    if full_varies != steps_vary:
        return _CAUSES["restarted" if full_varies else "empty places"]
    if not steps_vary:
        return _CAUSES["one path"]
    return _CAUSES["first step" if difference.place[1] == 0 else "later steps"]


def _difference_of_beams(decoder, model):
    """Compares the steps of two hypotheses per sentence, which are reordered on their way."""
    target, batch, beams = decoder.target, decoder.inputs.batch, 2
    ids = _beginning(decoder, _FEW_STEPS)
    length = ids[target].shape[1]
    hypotheses = decoder.inputs.draw((batch, beams, length))
    sentences = {**ids, target: hypotheses.reshape(-1, length)}
    parents = np.array([[1, 0], [1, 1], [0, 0]])[np.arange(batch) % 3]
    half = length // 2
    moved = np.take_along_axis(hypotheses, parents[:, :, None], axis=1)
    moved = np.concatenate([moved[..., :half], hypotheses[..., half:]], axis=2)

    def difference_of(rows, parents, start):
        steps = _centered(_steps(decoder, model, sentences, beams, parents))
        is_compared = np.arange(length)[None] >= start
        for beam in range(beams):
            expected = _centered(decoder.restored({**ids, target: rows[:, beam]}))
            difference = decoder.compare(steps[:, beam], expected, is_compared)
            if difference is not None:
                return difference
        return None

    difference = difference_of(moved, parents, half)
    if difference is None:
        return None, ""
    is_alike = difference_of(hypotheses, None, 0) is None
    return difference, _CAUSES["reorder" if is_alike else "tiled"]


def _check_saved_file(decoder: _Decoder, reload: bool) -> None:
    """Saves the model to a temporary file, loads it, and compares."""
    check, model = "saved file", decoder.model
    if not reload or not isinstance(model, keras.Model):
        decoder.add(check, "skipped", "needs a Keras model" if reload else "`reload=False`")
        return
    state = random.getstate()  # New layers draw their seeds from Python's generator.
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.keras"
            model.save(path)
            loaded = keras.saving.load_model(path, compile=False)
        outputs = decoder(decoder.ids, model=loaded)
    except Exception as error:
        found = (cause for words, cause in _LOADING_CAUSES.items() if re.search(words, str(error)))
        message = f"Saving or loading raises {_text_of(error)}"
        decoder.add(check, "failed", message, next(found, ""))
        return
    finally:
        random.setstate(state)
    difference = decoder.compare(outputs, decoder.expected)
    if difference is None:
        size = float(decoder.distance(outputs, decoder.expected).max())
        decoder.add(check, "passed", difference=size)
        return
    message = f"The loaded model differs: {difference}."
    decoder.add(check, "failed", message, _cause_of_loaded(model, loaded), None, difference)


def _cause_of_loaded(model, loaded):
    """Returns the likely cause of other outputs after loading."""
    weights, others = model.weights, loaded.weights
    if len(weights) != len(others):
        return (
            f"The loaded model has {len(others)} weights instead of {len(weights)}: `get_config` "
            "leaves out an argument, or `build` does not make all weights."
        )
    for weight, other in zip(weights, others, strict=True):
        if weight.shape != other.shape or not np.array_equal(_numpy(weight), _numpy(other)):
            return (
                f"The weight `{weight.path}` of shape {tuple(weight.shape)} is not restored: "
                "`save_own_variables`, or a layer that Keras does not track."
            )
    return (
        "All weights are equal: `get_config` leaves out an argument, or the model has a variable "
        "that Keras does not save."
    )


def _check_export(decoder: _Decoder, exported: Callable[[Any], Any] | None) -> None:
    """Compares an export for several shapes."""
    check, inputs, largest = "export", decoder.inputs, 0.0
    if exported is None:
        reason = "give `exported`, a function that calls the export"
        decoder.add(check, "skipped", reason)
        return
    batches = {"these sentences": decoder.ids}
    if not inputs.has_fixed_batch:
        batches["one sentence"] = {name: ids[:1] for name, ids in decoder.ids.items()}
    for name in inputs.sources:
        if name not in inputs.fixed and inputs.lengths[name] >= 2 + _NUM_PADDING:
            sentences = _padded(decoder, name, inputs.pad_id)
            batches[f"padding of {name}"] = sentences.padded
    for words, ids in batches.items():
        cause = _CAUSES["other export" if words == "these sentences" else "fixed shapes"]
        try:
            outputs = decoder.call_eagerly(ids, model=exported)
        except Exception as error:
            cause = "" if words == "these sentences" else cause
            message = f"The export raises {_text_of(error)} ({words})"
            decoder.add(check, "failed", message, cause)
            return
        expected = decoder.restored(ids)
        difference = decoder.compare(outputs, expected)
        if difference is not None:
            message = f"The export differs for {words}: {difference}."
            decoder.add(check, "failed", message, cause, None, difference)
            return
        largest = max(largest, float(decoder.distance(outputs, expected).max()))
    decoder.add(check, "passed", difference=largest)


# Inputs of a decoder: their structure, and sentences of random ids.


class _Input(NamedTuple):
    """An input of ids. `length` and `batch` are None where any size fits."""

    name: str
    batch: int | None = None
    length: int | None = None
    example_length: int | None = None
    is_mask: bool = False


class _Inputs:
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
        self.structure, inputs = _structure_of(model, example)
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
        self.pad_id, self.vocabulary_size = pad_id, vocabulary_size or _vocabulary_size(model)
        self.fixed = {entry.name for entry in ids if entry.length is not None}
        batches = {entry.batch for entry in ids} - {None}
        self.batch, self.has_fixed_batch = next(iter(batches), None) or _BATCH, bool(batches)
        limit = getattr(model, "position_limit", None) or math.inf
        self.lengths = {}
        for entry in ids:
            default = _TARGET_LENGTH if entry.name == self.target else _SOURCE_LENGTH
            longest = min(entry.example_length or default, _LONGEST, limit)
            self.lengths[entry.name] = int(entry.length or longest)
        self.example_ids = dict[str, np.ndarray]()
        if example is not None:
            leaves = iter(_leaves(example))
            self.example_ids = {entry.name: np.asarray(next(leaves)[1]) for entry in inputs}
        self._rng = np.random.default_rng(11)

    def draw(self, shape: Any, unequal: np.ndarray | None = None) -> np.ndarray:
        """Draws ids of tokens, each different from the id of `unequal` in its place."""
        size = self.vocabulary_size or _FEW_IDS
        first = _SPECIAL_IDS if size > _SPECIAL_IDS + 2 else 0
        choices = np.array([id for id in range(first, min(size, 5000)) if id != self.pad_id])
        places = self._rng.integers(0, len(choices), shape)
        if unequal is not None:
            places += choices[places] == unequal
        return choices[places % len(choices)].astype("int32")

    def sentences(self) -> _Ids:
        """Draws sentences without padding."""
        return {name: self.draw((self.batch, length)) for name, length in self.lengths.items()}

    def pack(self, ids: _Ids) -> Any:
        """Returns the inputs of the model, with masks if it takes masks."""
        masks = {mask: ids[name] != self.pad_id for mask, name in self._masks.items()}
        arrays = {**ids, **masks}
        return _mapped(lambda name: ops.convert_to_tensor(arrays[name]), self.structure)


def _structure_of(model, example):
    """Returns a structure of names, and the `_Input` of each name."""
    is_model = example is None and isinstance(model, keras.Model)
    if is_model and isinstance(model, SequenceModel):
        names = model.input_names
        return names if len(names) > 1 else names[0], [_Input(name) for name in names]
    symbolic = _symbolic_inputs(model) if is_model else None
    if example is None and symbolic is None:
        return "ids", [_Input("ids")]
    # A list of one symbolic tensor is called with the tensor.
    if isinstance(symbolic, (tuple, list)) and len(symbolic) == 1:
        symbolic = symbolic[0]
    given = example if symbolic is None else symbolic
    entries = [_input_of(value, path, symbolic is None) for path, value in _leaves(given)]
    is_unnamed = all(_KERAS_NAME.fullmatch(entry.name) for entry in entries)
    if is_unnamed or len({entry.name for entry in entries}) < len(entries):
        defaults = {1: ["ids"], 2: ["source_ids", "target_ids"]}.get(len(entries))
        names = defaults or [f"inputs[{index}]" for index in range(len(entries))]
        entries = [x._replace(name=name) for x, name in zip(entries, names, strict=True)]
    order = iter(entries)
    return _mapped(lambda _: next(order).name, given), entries


def _symbolic_inputs(model):
    try:
        return model.input if getattr(model, "inputs", None) is not None else None
    except (AttributeError, ValueError):  # A subclassed model has none.
        return None


def _leaves(structure, path=()):
    """Yields the paths and values of a structure; rows of ids, which are lists, are one value."""
    if isinstance(structure, Mapping):
        for key, item in structure.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(structure, (tuple, list)) and not _is_ids(structure):
        for index, item in enumerate(structure):
            yield from _leaves(item, (*path, index))
    else:
        yield path, structure


def _mapped(function, structure):
    if isinstance(structure, Mapping):
        return {key: _mapped(function, item) for key, item in structure.items()}
    if isinstance(structure, (tuple, list)) and not _is_ids(structure):
        items = [_mapped(function, item) for item in structure]
        return items if isinstance(structure, list) else tuple(items)
    return function(structure)


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
        return _Input(name, example_length=shape[1], is_mask=is_mask)
    return _Input(name, *shape, is_mask=is_mask)


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
    owners = [model]
    if not isinstance(model, keras.layers.Layer):
        values = getattr(model, "__dict__", {}).values()
        owners = [value for value in values if isinstance(value, keras.layers.Layer)]
    layers = {id(layer): layer for owner in owners for layer in owner._flatten_layers()}
    return list(layers.values())


def _layers_of_class(decoder, layer_class):
    return [layer for layer in decoder.layers if isinstance(layer, layer_class)]
