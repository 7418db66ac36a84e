"""Checks of any Keras decoder: what its outputs may depend on, and what computes the same.

Each check is a function of a `_Decoder`, which calls the model with random ids. A check returns the
largest difference, or raises `_Skipped` or `_Failed`. The cause of a failure is the layer that
differs first, or a row of `_CAUSES`, as far as other calls of the model show it.
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

from keras_transformer.base.errors import InputError, first_line
from keras_transformer.base.ids import PAD_ID
from keras_transformer.base.options import check_choice, values_of
from keras_transformer.decoding import SearchModel
from keras_transformer.models.sequence_model import SequenceModel

# Sizes of the test sentences, where neither the model nor an example says them.
_BATCH, _SOURCE_LENGTH, _TARGET_LENGTH, _LONGEST = 3, 7, 11, 64
_NUM_PADDING = 2
_SPECIAL_IDS = 4  # padding, BOS, EOS and the unknown id in most vocabularies
_FEW_IDS = 8  # A smaller table has types of segments rather than tokens.
_FEW_STEPS = 6  # Tokens of a search whose other checks have all tokens.
_MAX_PLACES = 20  # Positions of a long input whose tokens are changed.
_KERAS_NAME = re.compile(r"((keras_tensor|input_layer|input)(_\d+)?)?")
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

# Usual causes of what was seen: {0} is the layer that differs first, {1} what it reads.
_CAUSES = {
    "random": "Dropout or noise is active at inference: `training=True`, or random numbers.",
    "state": "A layer keeps a state from one call to the next, such as `stateful=True`.",
    "not finite": "A softmax with nothing to attend to, or numbers above the range of float16.",
    "batch": "Statistics over the batch, or a reshape or transpose mixes sentences or masks.",
    "row": "Positions or a mask made with `shape[0]`, or noise with a fixed seed.",
    "shifted ids": "The ids are shifted to the left inside the model: outputs read their labels.",
    "causal mask": "The causal mask is missing or lost, or an operation reads all positions.",
    "hidden": "A mask hides all tokens, or weights behind the attention are still zero.",
    "positions": "Positions count the padding on the left: the first token must have position 0.",
    "number of padding": "The number of padding tokens is read, as by a mean over the length.",
    "padding": "Padding is read without a mask, in attention or in another sum over positions.",
    "labels": "The labels are not shifted: feed `ids[:, :-1]`, and give labels `ids[:, 1:]`.",
    "kept": "Something of earlier sentences is kept, such as a cache or the encoder's outputs.",
    "source mask": "The cache lacks the padding mask of the source: steps attend to padding.",
    "factor": "The full pass' logits times {:.3g}: a factor is in only one of both.",
    "lost": "The cache loses earlier tokens: a wrong index, or the mask of the steps hides them.",
    "restarted": "Positions restart in cached steps: each step has the position of the first one.",
    "empty": "Only steps read positions: empty or old places are attended to (a wrong index).",
    "steps": "A position does not start at 0, the cache is written at the wrong index, or empty "
    "places are attended to. Or only one of both has a factor, a bias or a normalization.",
    "tiled": "Rows of the cache belong to other sentences: `tile` where beams need `repeat`.",
    "reorder": "`reorder` leaves a tensor of the cache as it is, or moves rows elsewhere.",
    "fixed shapes": "The export was made for fixed shapes, or has lost the padding mask.",
    "other export": "The export has other weights, another dtype, or was made in training mode.",
    # Of layers.
    "convolution": '{0} reads {1} next to tokens: `padding="causal"`, and zeros for padding.',
    "backwards": "{0} reads the sequence from its end.",
    "statistics": "{0}: Statistics over the batch. A decoder needs LayerNormalization.",
    "normalization": "{0} has statistics over all positions: normalize only features.",
    "other": "{0} reads {1} itself, such as in a sum or in statistics over positions.",
    "no causal mask": "{0} is called without a causal mask.",
    "no padding mask": "{0} gets no padding mask: an operation before it lost the mask, or no "
    "layer made one.",
    "inverted": "A mask is inverted: True means that a token may be attended to. It is of {0}.",
    "off by one": "The causal mask of {0} is off by one: it shows one position too many.",
    "shown": "The mask of {0} shows {1}: is it the mask of another sentence, the mask of another "
    "sequence, or too short?",
    "ignored": "{0} reads {1}, though its mask hides them.",
}  # fmt: skip
# Words in an error of saving or loading, and what they mean.
_LOADING_CAUSES = {
    r"[Ll]ambda|safe_mode": "A Lambda layer cannot be loaded safely: write a registered layer.",
    r"register_keras_serializable|Could not locate": "A class is not registered: decorate it with "
    "`register_keras_serializable`.",
    r"never built|could not be loaded|were not loaded|was not built|build\(\)": "A layer makes its "
    "weights in its first call: write `build`.",
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
        if decoder.run("repeated calls", _check_repeated_calls) == "failed":
            reason = "need outputs that are the same numbers in each call"
            first = decoder.checks["repeated calls"]
            return DecoderReport((first, DecoderCheck("other checks", "skipped", reason)))
        decoder.run("unchanged weights", _check_unchanged_weights)
        decoder.run("other sentences", _check_other_sentences)
        decoder.run("future tokens", _check_future_tokens)
        decoder.run("future tokens in training", _check_training)
        decoder.run("reads its inputs", _check_reading)
        for name in (*test_inputs.sources, test_inputs.target):
            decoder.run(f"padding of {name}", _check_padding, name)
        decoder.run("labels", _check_labels, labels)
        if decoder.run("cached steps", _check_steps, search_model) == "passed":
            decoder.run("reordered beams", _check_beams, search_model)
        decoder.run("saved file", _check_saved_file, reload)
        decoder.run("export", _check_export, exported)
    finally:
        decoder.restore()
    return DecoderReport(tuple(decoder.checks.values()))


# Calls of a model, and how they differ.

_Ids = dict[str, np.ndarray]  # integers `(batch, length)` of each input, by its name


class _Difference(NamedTuple):
    """The first place and the largest size of a difference of two outputs."""

    place: tuple[int, int]
    largest: float
    share: float  # of the largest output

    def __str__(self):
        if not np.isfinite(self.largest):
            return f"NaN, first at {self.place}"
        share = f"{self.share:.0%}" if self.share >= 0.01 else f"{self.share:.1g}"
        return f"first at {self.place}, by up to {self.largest:.2g}, {share} of the largest output"


class _Skipped(Exception):
    """The reason why a check cannot be made."""


class _Failed(Exception):
    """A failed check; the cause is a text or a key of `_CAUSES`."""

    def __init__(self, message, cause="", input_name=None, difference=None):
        super().__init__(message)
        place, largest = difference[:2] if difference else (None, None)
        cause = _CAUSES.get(cause, cause)
        self.result = DecoderCheck("", "failed", message, cause, input_name, place, largest)


class _Decoder:
    """Calls a model with test sentences, restores its variables, and collects results.

    Attributes:
        ids: Sentences without padding.
        expected, again: Outputs of two calls with `ids`.
        changed_at_inference: Variables that these calls changed.
        seen: Bool `(position, position)`: does the output of the row read the id of the column?
        columns: Positions whose ids were changed for `seen`.
    """

    def __init__(self, model, inputs: "_Inputs", side: str, tolerance: float | None):
        self.model, self.inputs, self.target = model, inputs, inputs.target
        self.is_right, self._tolerance = side == "right", tolerance
        self.checks = dict[str, DecoderCheck]()
        self.seen, self.columns = np.zeros((0, 0), bool), list[int]()
        self.changed_at_inference = list[Any]()
        self._compiled: dict[Any, Any] = {}
        self.layers = _layers_of(model)
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
        self.layers = _layers_of(model)
        self._state = {**self._values(), **self._state}
        self.restore()
        dtypes = {layer.compute_dtype for layer in self.layers} or {"float32"}
        shares = [_ROUNDING.get(dtype, 0.0) for dtype in dtypes]
        if any(getattr(layer, "quantization_mode", None) for layer in self.layers):
            shares.append(_ROUNDING_OF_INT8)
        if not all(device.startswith("cpu") for device in keras.distribution.list_devices()):
            shares.append(_ROUNDING_ON_ACCELERATORS)
        self._rounding = max(shares)
        self.ids = inputs.sentences()
        self.expected, self.again = self(self.ids), self(self.ids)
        self.changed_at_inference = self.changed_variables()
        self.restore()

    def run(self, name: str, check: Callable[..., float | None], *arguments: Any) -> str:
        """Makes a check, adds its result and returns it."""
        try:
            result = DecoderCheck(name, "passed", difference=check(self, *arguments))
        except InputError:
            raise
        except _Skipped as skipped:
            result = DecoderCheck(name, "skipped", str(skipped))
        except _Failed as failed:
            result = dataclasses.replace(failed.result, name=name)
        except Exception as error:
            result = DecoderCheck(name, "failed", f"A call raises {_text_of(error)}")
        self.checks[name] = result
        return result.result

    def failed(self, name: str) -> bool:
        """Returns True if a check has failed."""
        return name in self.checks and self.checks[name].result == "failed"

    def __call__(self, ids: _Ids, training: bool = False, model: Any = None) -> np.ndarray:
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
        return _float64(outputs[0])

    def recorded(self, ids: _Ids, training: bool = False, noise: float = 0.0):
        """Returns outputs and a list of `_LayerCall`, with noise in the vectors of padding."""
        with _recorded_calls(self.layers, self.inputs.pad_id, noise) as calls:
            outputs = self.call_eagerly(ids, training)
        self.restore()
        return outputs, calls

    def culprit(self, others: _Ids, part, training: bool = False) -> "_LayerCall | None":
        """Finds the layer whose outputs differ first for other ids; see `_first_culprit`."""
        calls, other_calls = (self.recorded(ids, training)[1] for ids in (self.ids, others))
        return _first_culprit(calls, other_calls, part)

    def changed(self, ids: _Ids, name: str, places: Any) -> _Ids:
        """Returns ids with another token in each place of an index `(row, position)`."""
        changed = ids[name].copy()
        changed[places] = self.inputs.draw(changed[places].shape, changed[places])
        return {**ids, name: changed}

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

    def compare(self, outputs, expected, where: Any = True, same_shapes: bool = False):
        """Compares outputs at the places of a mask `(batch, length)`.

        Returns:
            A `_Difference`, or None if no difference is larger than rounding.
        """
        distance = self.distance(outputs, expected, where)
        places = np.argwhere(distance > self.limit(expected, same_shapes))
        if not len(places):
            return None
        largest = float(distance.max())
        return _Difference(tuple(places[0].tolist()), largest, largest / _scale(expected))

    def check(self, message, cause, outputs, expected, where=True, same_shapes=False) -> float:
        """Returns the largest difference, or raises `_Failed`; `cause` may be a function."""
        difference = self.compare(outputs, expected, where, same_shapes)
        if difference is not None:
            cause = cause() if callable(cause) else cause
            raise _Failed(f"{message}: {difference}.", cause, self.target, difference)
        return float(self.distance(outputs, expected, where).max())

    def changed_variables(self) -> list[Any]:
        """Lists variables whose values are not those before the checks."""
        return [
            variable
            for variable, value in self._state.values()
            if not np.array_equal(_numpy(variable), value, equal_nan=value.dtype.kind == "f")
        ]

    def restore(self) -> None:
        """Gives all variables the values that they had before the checks."""
        for variable in self.changed_variables():
            variable.assign(self._state[id(variable)][1])

    def _values(self):
        variables = {id(x): x for layer in self.layers for x in layer.variables}
        return {key: (variable, _numpy(variable)) for key, variable in variables.items()}


class _Compiled(keras.Model):
    """Calls a model in one compiled function, as Keras' `predict` does."""

    def __init__(self, model, training):
        super().__init__()
        self._model, self._in_training = model, training

    def call(self, inputs):
        return self._model(inputs, training=self._in_training)


def _numpy(tensor):
    return np.array(ops.convert_to_numpy(tensor))


def _float64(tensor):
    return _numpy(ops.cast(ops.convert_to_tensor(tensor), "float32")).astype("float64")


def _scale(outputs):
    # Logits of forbidden ids are far below others, or infinite.
    finite = np.abs(outputs[np.isfinite(outputs) & (np.abs(outputs) < 1e6)])
    return float(finite.max(initial=0.0)) or 1.0


def _text_of(error):
    return f"{type(error).__name__}: {first_line(error)}"


@dataclasses.dataclass(frozen=True, eq=False)
class _LayerCall:
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
        """`attention` for a layer that takes masks, or a key of `_CAUSES`."""
        layer = self.layer
        if getattr(layer, "go_backwards", False):
            return "backwards"
        if isinstance(layer, keras.layers.LayerNormalization) and 1 in np.ravel(layer.axis):
            return "normalization"
        kinds = [kind for kind_class, kind in _KINDS.items() if isinstance(layer, kind_class)]
        return (kinds or ["attention" if self.takes_mask else "other"])[0]

    def cause(self, words: str, key: str = "") -> str:
        """The cause of a layer that reads what it must not read."""
        return _CAUSES[key or self.kind].format(self.name, words)


@contextlib.contextmanager
def _recorded_calls(layers, pad_id, noise=0.0) -> Iterator[list[_LayerCall]]:
    """Records the calls of layers in the `with` block, in the order in which they end."""
    calls: list[_LayerCall] = []

    def recording(layer, call):
        signature = inspect.signature(call)

        def record(*arguments, **options):
            bound = signature.bind(*arguments, **options)
            bound.apply_defaults()
            tensors = _tensors(bound.arguments)
            num_masks = _count_masks(tensors)
            outputs = call(*arguments, **options)
            if noise and _is_embedding(layer) and len(tensors[0].shape) == 2:
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
            calls.append(_LayerCall(layer, *arrays, masks, bool(names), is_causal, removes_masks))
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


def _is_embedding(layer):
    return "Embedding" in type(layer).__name__ and hasattr(layer, "embeddings")


def _first_culprit(calls, other_calls, part) -> _LayerCall | None:
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


def _first_row(is_place):
    return lambda x: x[0][is_place] if x.shape[1] == len(is_place) else x[0]


# Checks. Each returns the largest difference, or raises. Later causes use what earlier checks saw.


def _check_repeated_calls(decoder: _Decoder) -> float:
    """Compares two calls with the same ids."""
    changed, expected = decoder.changed_at_inference, decoder.expected
    if len(missing := np.argwhere(np.isnan(expected).any(-1))):
        difference = _Difference(tuple(missing[0].tolist()), math.inf, math.inf)
        raise _Failed(f"Outputs are {difference}.", "not finite", None, difference)
    is_random = not changed or any("seed" in variable.path for variable in changed)
    cause, message = "random" if is_random else "state", "A second call differs"
    return decoder.check(message, cause, decoder.again, expected, same_shapes=True)


def _check_unchanged_weights(decoder: _Decoder) -> None:
    """Looks for variables that a call at inference changes."""
    paths = [variable.path for variable in decoder.changed_at_inference]
    if paths := [path for path in paths if "seed" not in path]:
        message = f"A call at inference changes {len(paths)} variables, such as `{paths[0]}`."
        is_average = any("moving" in path for path in paths)
        cause = _CAUSES["statistics"].format(f"`{paths[0]}`") if is_average else "state"
        raise _Failed(message, cause)


def _check_other_sentences(decoder: _Decoder) -> float:
    """Changes one sentence after the other, and calls each sentence without the others."""
    rows, largest = range(decoder.inputs.batch), 0.0
    if len(rows) < 2:
        raise _Skipped("needs two sentences in a batch")
    for is_single in (False,) if decoder.inputs.has_fixed_batch else (False, True):
        largest = max(largest, *(_check_sentence(decoder, row, is_single) for row in rows))
    return largest


def _check_sentence(decoder, row, is_single):
    others, is_row = decoder.ids, np.arange(decoder.inputs.batch) == row
    if is_single:
        others, is_equal = {name: ids[is_row] for name, ids in others.items()}, is_row
        key, message = "row", f"Sentence {row} differs if it is the only one"
    else:
        for name in decoder.ids:
            others, is_equal = decoder.changed(others, name, np.s_[row : row + 1]), ~is_row
        key, message = "batch", f"Sentence {row} changes outputs of another one"

    def part(array):
        return array[is_equal] if len(array) == len(is_equal) else array

    def cause():
        call = decoder.culprit(others, part)
        if call and call.kind == "statistics":
            return call.cause("other sentences")
        return (f"{call.name} differs first. " if call else "") + _CAUSES[key]

    outputs, expected = decoder.expected.copy(), decoder.expected
    outputs[is_equal] = part(decoder(others))
    return decoder.check(message, cause, outputs, expected, same_shapes=not is_single)


def _check_future_tokens(decoder: _Decoder) -> float:
    """Changes each token, and looks for earlier outputs that change."""
    expected, name, length = decoder.expected, decoder.target, decoder.expected.shape[1]
    if length < 2:
        raise _Skipped("needs two positions")
    decoder.columns = sorted(set(np.linspace(0, length - 1, _MAX_PLACES).astype(int).tolist()))
    distance = np.zeros((length, length))  # --> [output, token]
    # Sentences that do not depend on each other are changed together.
    count = 1 if decoder.failed("other sentences") else decoder.inputs.batch
    for start in range(0, len(decoder.columns), count):
        columns = decoder.columns[start : start + count]
        places = np.arange(len(columns))
        outputs = decoder(decoder.changed(decoder.ids, name, (places, columns)))
        distance[:, columns] = decoder.distance(outputs, expected)[places].T
    decoder.seen = distance > decoder.limit(expected, same_shapes=True)
    largest, leaks = float(np.triu(distance, 1).max()), np.argwhere(np.triu(decoder.seen, 1))
    if not len(leaks):
        return largest
    position, column = leaks[0].tolist()
    difference = _Difference((0, position), largest, largest / _scale(expected))
    message = f"Another id at {name}[0, {column}] changes earlier outputs: {difference}."
    raise _Failed(message, _future_cause(decoder, column), name, difference)


def _future_cause(decoder, column):
    """Returns the cause of outputs that read the token of a later column."""
    seen, later = decoder.seen, np.array(decoder.columns[1:])
    # The last output may read the first id, which a rotation moves to the end.
    is_shifted = seen[later - 1, later].all() and not seen[:-1, 0].any()
    if is_shifted and not np.triu(seen, 2).any():
        return "shifted ids"
    is_leaking = np.triu(seen, 1).any(1)[:-1]
    first = int(np.argmax(is_leaking))
    if first > 1 and is_leaking[first:].all():
        return f"Only outputs from {first} on read later tokens: a mask ends at position {first}."
    return _cause_in_future(decoder, column)


def _cause_in_future(decoder, column, training=False):
    """Explains the layer whose earlier outputs change with tokens from a column on."""
    changed = decoder.changed(decoder.ids, decoder.target, np.s_[:1, column:])
    length, words = decoder.expected.shape[1], "later positions"
    call = decoder.culprit(changed, _first_row(np.arange(length) < column), training)
    if call is None or call.kind != "attention":
        return call.cause(words) if call else _CAUSES["causal mask"]
    masks = [x for x in call.masks.values() if x.ndim > 2 and x.shape[-2:] == (length, length)]
    if not masks and not call.is_causal:
        how = " Give `use_causal_mask=True`." if call.is_causal is False else ""
        return call.cause(words, "no causal mask") + how
    causal = [np.tri(length, dtype=bool)] if call.is_causal else []
    shown = np.logical_and.reduce(causal + [x.reshape(-1, length, length).any(0) for x in masks])
    if not np.tril(shown, -1).any():
        return call.cause(words, "inverted")
    if not np.triu(shown, 1).any():
        return call.cause(words, "ignored")
    return call.cause(words, "shown" if np.triu(shown, 2).any() else "off by one")


def _check_training(decoder: _Decoder) -> float:
    """Repeats the check of future tokens with `training=True`."""
    ids, name, length = decoder.ids, decoder.target, decoder.expected.shape[1]
    if length < 2 or not isinstance(decoder.model, keras.layers.Layer):
        raise _Skipped("needs a Keras model")
    expected, again = (decoder(ids, training=True) for _ in range(2))
    if decoder.compare(again, expected, same_shapes=True):
        raise _Skipped("random numbers of the model have no seed that can be restored")

    def check(start):
        def cause():
            if decoder.failed("future tokens"):
                return "See `future tokens`, which fails, too."
            cause = _cause_in_future(decoder, start, training=True)
            return f"Only with `training=True`, as when dropout is active: {cause}"

        outputs = decoder(decoder.changed(ids, name, np.s_[:1, start:]), training=True)
        message = f"Other ids from {name}[0, {start}] change earlier outputs with training=True"
        where = (np.arange(length) < start) & (np.arange(len(outputs)) == 0)[:, None]
        return decoder.check(message, cause, outputs, expected, where, same_shapes=True)

    return max(check(start) for start in sorted({1, length // 2, length - 1}))


def _check_reading(decoder: _Decoder) -> None:
    """Checks that outputs depend on earlier tokens, and on each source."""
    name = decoder.target
    if len(decoder.seen) > 1 and not np.tril(decoder.seen, -1).any():
        raise _Failed(f"No output depends on an earlier token of {name}.", "hidden", name)
    for name in decoder.inputs.sources:
        outputs = decoder(decoder.changed(decoder.ids, name, np.s_[:]))
        if decoder.compare(outputs, decoder.expected, same_shapes=True) is None:
            raise _Failed(f"No output depends on {name}.", "hidden", name)


def _padded(decoder, name, pad_id):
    """Returns ids with padding in row 0, with tokens in its place, and all ids shorter.

    The last result, bool `(length,)`, is the places of tokens in row 0.
    """
    length, batch = decoder.inputs.lengths[name], decoder.inputs.batch
    if length < 2 + _NUM_PADDING:
        raise _Skipped(f"needs a length of at least {2 + _NUM_PADDING}")
    ids, places = decoder.inputs.draw((batch, length)), np.arange(length)
    # A sentence must not have the id that is taken for padding here.
    ids[ids == pad_id] = decoder.inputs.draw((), np.int32(pad_id))
    is_token = places < length - _NUM_PADDING if decoder.is_right else places >= _NUM_PADDING
    padded = ids.copy()
    padded[0, ~is_token] = pad_id
    return *({**decoder.ids, name: x} for x in (padded, ids, ids[:, is_token])), is_token


def _check_padding(decoder: _Decoder, name: str) -> None:
    """Compares sentences with padding and the same without, or with other vectors of padding."""
    padded, full, short, is_token = _padded(decoder, name, decoder.inputs.pad_id)
    if name in decoder.inputs.fixed:  # Shorter sentences are impossible.
        difference, calls = _difference_of_vectors(decoder, name, padded, is_token)
        if calls is None:
            raise _Skipped("needs an embedding, or more than one length")
    else:
        difference = _difference_of_padding(decoder, name, padded, full, short, is_token)
    if difference is not None:
        message = f"Padding of {name} changes outputs of tokens: {difference}."
        cause = _padding_cause(decoder, name, padded, is_token, difference)
        raise _Failed(message, cause, name, difference)
    if name == decoder.target and decoder.is_right:
        return  # Earlier outputs must not read it.
    # Attention of new models may be so weak that padding is not seen, with a mask or without: does
    # another token next to padding change outputs?
    place = np.flatnonzero(is_token)[-1 if decoder.is_right else 0]
    changed = decoder(decoder.changed(padded, name, np.s_[:1, place]))
    where = np.arange(decoder.expected.shape[1]) > place if name == decoder.target else True
    if decoder.compare(changed, decoder(padded), where) is None:
        raise _Skipped("a token changes less than rounding: check trained weights")


def _difference_of_padding(decoder, name, padded, full, short, is_token) -> _Difference | None:
    """Compares outputs of padded sentences with outputs of the same without padding."""
    expected = decoder(full)
    expected[0, is_token if name == decoder.target else slice(None)] = decoder(short)[0]
    return _difference_of_tokens(decoder, name, is_token, decoder(padded), expected)


def _difference_of_vectors(decoder, name, padded, is_token):
    """Compares outputs of tokens with outputs for other vectors of padding.

    Returns:
        The difference, and the calls of layers with both vectors; None for the calls if no layer
        embeds the padding.
    """
    (outputs, calls), (others, noisy) = (decoder.recorded(padded, noise=x) for x in (0.0, 2.0))
    if not any(_is_embedding(call.layer) for call in calls):
        return None, None
    return _difference_of_tokens(decoder, name, is_token, others, outputs, True), (calls, noisy)


def _difference_of_tokens(decoder, name, is_token, outputs, expected, same_shapes=False):
    # A loss multiplies outputs of padding by 0: then the gradients of NaN are NaN.
    where = np.isnan(outputs).any(-1)
    where[1:] = True
    where[0] |= is_token if name == decoder.target else True
    return decoder.compare(outputs, expected, where, same_shapes)


def _padding_cause(decoder, name, padded, is_token, difference):
    pad_id = decoder.inputs.pad_id
    if not np.isfinite(difference.largest):
        return "not finite"
    for check in ("other sentences", "future tokens"):
        is_related = check == "other sentences" or (name == decoder.target and decoder.is_right)
        if is_related and decoder.failed(check):
            return f"See `{check}`, which fails, too."
    others = () if name in decoder.inputs.fixed else range(_SPECIAL_IDS + 1)
    for other in set(others) - {pad_id}:
        if not _difference_of_padding(decoder, name, *_padded(decoder, name, other)):
            return f"The model takes id {other} as padding, and not {pad_id}: give `pad_id`."
    of_vectors, calls = _difference_of_vectors(decoder, name, padded, is_token)
    if calls is not None and of_vectors is None:
        return "number of padding" if decoder.is_right else "positions"
    call = calls and _first_culprit(*calls, _first_row(is_token))
    if not call or call.kind != "attention":
        return call.cause("padding") if call else "padding"
    for key, mask in call.masks.items():
        if key == "query_mask" or mask.shape[-1] != len(is_token):
            continue
        if not mask[0].reshape(-1, len(is_token)).any(0)[is_token].any():
            return call.cause("padding", "inverted")
        is_causal = mask.ndim > 2 and not np.triu(mask, 1).any()
        if not is_causal and len(mask) > 1:
            return call.cause(f"the padding of {name}", "shown")
    cause = call.cause("padding", "no padding mask")
    for before in calls[0][: calls[0].index(call)]:
        if before.removes_masks:
            return (
                f"{cause} {before.name} removes the Keras masks of its inputs: use this package's "
                "`MultiHeadAttention`, or give masks by hand."
            )
    return cause


def _check_labels(decoder: _Decoder, labels: Any) -> None:
    """Looks for the labels of an example among the ids that outputs have read."""
    name, ids = decoder.target, decoder.inputs.example_ids.get(decoder.target)
    if labels is None:
        raise _Skipped("give `inputs` and `labels`, an example of the training data")
    if ids is None:
        raise InputError("`labels` need `inputs`, the example that they belong to.")
    labels = np.asarray(labels)
    if labels.shape != ids.shape or labels.dtype.kind not in "iu":
        rule = f"`labels` must be integers of the shape {ids.shape}, as {name}."
        raise InputError(f"{rule} Received: {labels.dtype} of shape {labels.shape}.")
    if not decoder.columns:
        raise _Skipped("needs two positions")
    # How many positions after its own does an output read? 0, or -1 if the model shifts ids.
    middle = decoder.columns[len(decoder.columns) // 2]
    read = np.flatnonzero(decoder.seen[middle, : middle + 1])
    ahead = int(read[-1]) - middle if len(read) else 0
    pad_id, most = decoder.inputs.pad_id, middle + 4
    wide = np.pad(ids, ((0, 0), (most, most)), constant_values=pad_id)
    equal, shares = {}, {}  # by the distance of the label to the last token that is read
    for shift in range(-1, 4):
        later = wide[:, most + ahead + shift :][:, : ids.shape[1]]
        is_counted = (later != pad_id) & (labels != pad_id)
        equal[shift] = np.argwhere((later == labels) & is_counted)
        shares[shift] = len(equal[shift]) / max(1, is_counted.sum())
    best = max(shares, key=lambda shift: shares[shift])
    if not len(equal[best]):
        message = f"The labels are not the ids of {name} at any shift."
        raise _Failed(message, "Labels of other sentences or another vocabulary.")
    if best < 1:
        place = tuple(equal[best][0].tolist())
        message = f"The label at {place} is an id of {name} that its output has read."
        raise _Failed(message, "labels", name, _Difference(place, 1.0, 1.0))
    if best > 1:
        message = f"Labels are {best} tokens after the last token that an output reads."
        raise _Failed(message, "The labels or the ids are shifted twice.", name)


def _steps(decoder, model, ids, beams=1, parents=None):
    """Computes centered logits of all steps, float64 `(batch, beams, length, vocabulary)`.

    Args:
        ids: Inputs; the target is `(batch * beams, length)`.
        beams: Number of hypotheses per sentence.
        parents: Int `(batch, beams)`, the hypotheses to continue after half of the steps.
    """
    length, half = ids[decoder.target].shape[1], ids[decoder.target].shape[1] // 2
    target = ids[decoder.target].reshape(-1, beams, length)
    # A decoder without a source gets the number of texts.
    source = ([ids[name] for name in decoder.inputs.sources] or [target[:, 0, :1]])[0]
    capacity = half if getattr(model, "is_extendable", False) and half else length
    cache, step = model.start_decoding(ops.convert_to_tensor(source), capacity, beams), model.step
    if hasattr(model, "step_function"):
        step = model.step_function(model.step_weights())
    outputs = []
    for position in range(length):
        if position == half and capacity < length:
            cache = model.extended(cache, length)
        if position == half and parents is not None:
            cache = model.reorder(cache, ops.convert_to_tensor(parents.astype("int32")))
        logits, cache = step(ops.convert_to_tensor(target[:, :, position]), cache)
        outputs.append(_float64(logits))
    return _centered(np.stack(outputs, axis=2))


def _centered(logits):
    """Subtracts the median over the vocabulary: a search ignores a constant."""
    return logits - np.median(logits, axis=-1, keepdims=True)


def _first_tokens(decoder, ids):
    """Shortens the target: a step takes as long as a full pass."""
    count = None if decoder.target in decoder.inputs.fixed else _FEW_STEPS
    return {**ids, decoder.target: ids[decoder.target][:, :count]}


def _check_steps(decoder: _Decoder, model: Any) -> float:
    """Compares decoding step by step, as `decoding.search` does, with one full pass."""
    if model is None:
        raise _Skipped("the model has no `start_decoding` and `step`: give `search_model`")
    if len(decoder.inputs.sources) > 1:
        raise _Skipped("a search reads one source")
    decoder.call_eagerly(decoder.inputs.sentences())  # Steps may read what this call leaves.
    steps = _steps(decoder, model, decoder.ids)[:, 0]
    if steps.shape != decoder.expected.shape:
        raise _Skipped(f"the call returns no logits, and steps {steps.shape[-1]} logits")
    message, full = "Cached steps differ from the full pass", _centered(decoder.expected)
    largest = decoder.check(message, lambda: _step_cause(decoder, model), steps, full)
    # The second sentences show what the first ones left.
    others = padded = _first_tokens(decoder, decoder.inputs.sentences())
    for name in decoder.inputs.sources:
        if decoder.checks[f"padding of {name}"].result == "passed":
            sentences, *_ = _padded(decoder, name, decoder.inputs.pad_id)
            padded = {**others, name: sentences[name]}

    def compared(ids):
        return _steps(decoder, model, ids)[:, 0], _centered(decoder(ids))

    def cause():
        is_mask = padded is not others and decoder.compare(*compared(others)) is None
        return "source mask" if is_mask else "kept"

    return max(largest, decoder.check(message, cause, *compared(padded)))


def _step_cause(decoder, model):
    """Returns the cause of a difference for sentences without padding."""
    ids, target = decoder.ids, decoder.target

    def calls_with(ids):
        return _centered(decoder(ids)), _steps(decoder, model, ids)[:, 0]

    results = []
    for before in (decoder.inputs.sentences(), ids):
        decoder.call_eagerly(before)
        _steps(decoder, model, before)
        results.append(_steps(decoder, model, ids)[:, 0])
    if decoder.compare(*results, same_shapes=True):
        return "kept"
    full, steps = calls_with(ids)
    factor = float((full * steps).sum() / ((full**2).sum() or 1.0))
    if decoder.compare(steps, factor * full) is None:
        return _CAUSES["factor"].format(factor)
    limit = decoder.limit(full, same_shapes=True)
    for position in (0, 1):
        changed = calls_with(decoder.changed(ids, target, np.s_[:, position]))
        reads, step_reads = (
            (decoder.distance(x, y) > limit).any(0)
            for x, y in zip(changed, (full, steps), strict=True)
        )
        if (reads & ~step_reads)[position + 1 :].any():
            return "lost"
    # Without positions, steps that read the same token again and again are equal.
    same = {**ids, target: np.repeat(ids[target][:, :1], ids[target].shape[1], axis=1)}
    varies, steps_vary = (decoder.compare(x, x[:, :1]) is not None for x in calls_with(same))
    if varies == steps_vary:
        return "steps"
    return "restarted" if varies else "empty"


def _check_beams(decoder: _Decoder, model: Any) -> None:
    """Compares the steps of two hypotheses per sentence, which are reordered on their way."""
    ids, target = _first_tokens(decoder, decoder.ids), decoder.target
    (batch, length), beams = ids[target].shape, 2
    hypotheses = decoder.inputs.draw((batch, beams, length))
    parents = np.array([[1, 0], [1, 1], [0, 0]])[np.arange(batch) % 3]
    half = length // 2
    moved = np.take_along_axis(hypotheses, parents[:, :, None], axis=1)
    moved[..., half:] = hypotheses[..., half:]

    def compare(rows, parents=None, start=0):
        sentences = {**ids, target: hypotheses.reshape(-1, length)}
        steps = _steps(decoder, model, sentences, beams, parents)
        full = [decoder({**ids, target: rows[:, beam]}) for beam in range(beams)]
        rows_of = (batch * beams, length, -1)
        expected = _centered(np.stack(full, axis=1)).reshape(rows_of)
        return decoder.compare(steps.reshape(rows_of), expected, np.arange(length) >= start)

    try:
        difference = compare(moved, parents, half)
    except NotImplementedError as error:
        raise _Skipped(str(error)) from error
    if difference is not None:
        cause = "reorder" if compare(hypotheses) is None else "tiled"
        row, position = difference.place
        difference = difference._replace(place=(row // beams, position))
        message = f"Two hypotheses differ from the full pass: {difference}."
        raise _Failed(message, cause, target, difference)


def _check_saved_file(decoder: _Decoder, reload: bool) -> float:
    """Saves the model to a temporary file, loads it, and compares."""
    model = decoder.model
    if not reload or not isinstance(model, keras.Model):
        raise _Skipped("needs a Keras model" if reload else "`reload=False`")
    state = random.getstate()  # New layers draw their seeds from Python's generator.
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.keras"
            model.save(path)
            loaded = keras.saving.load_model(path, compile=False)
        outputs = decoder(decoder.ids, model=loaded)
    except Exception as error:
        causes = [cause for words, cause in _LOADING_CAUSES.items() if re.search(words, str(error))]
        message = f"Saving or loading raises {_text_of(error)}"
        raise _Failed(message, causes[0] if causes else "") from error
    finally:
        random.setstate(state)

    def cause():
        values = [_numpy(weight) for weight in loaded.weights] + [None] * len(model.weights)
        for weight, value in zip(model.weights, values, strict=False):
            if not np.array_equal(_numpy(weight), value):
                return f"The weight `{weight.path}` of shape {tuple(weight.shape)} is not restored."
        return "`get_config` leaves out an argument, or a variable is not saved."

    return decoder.check("The loaded model differs", cause, outputs, decoder.expected)


def _check_export(decoder: _Decoder, exported: Callable[[Any], Any] | None) -> float:
    """Compares an export for several shapes."""
    inputs, distances = decoder.inputs, []
    if exported is None:
        raise _Skipped("give `exported`, a function that calls the export")
    batches = {"these sentences": decoder.ids}
    if not inputs.has_fixed_batch:
        batches["one sentence"] = {name: ids[:1] for name, ids in decoder.ids.items()}
    for name in inputs.sources:
        if name not in inputs.fixed and inputs.lengths[name] >= 2 + _NUM_PADDING:
            batches[f"padding of {name}"] = _padded(decoder, name, inputs.pad_id)[0]
    for words, ids in batches.items():
        cause = "fixed shapes" if distances else "other export"
        try:
            outputs = decoder.call_eagerly(ids, model=exported)
        except Exception as error:
            message = f"The export raises {_text_of(error)} ({words})"
            raise _Failed(message, cause if distances else "") from error
        message, expected = f"The export differs for {words}", decoder(ids)
        distances.append(decoder.check(message, cause, outputs, expected))
    return max(distances)


# Inputs of a decoder: their structure, and sentences of random ids.


class _Input(NamedTuple):
    """An input of ids, or their mask. A size is None where any size fits."""

    name: str
    shape: tuple[int | None, int | None]
    is_mask: bool


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
        is_example = example is not None
        given = _mapped(lambda _, x: np.asarray(x), example) if is_example else _symbolic(model)
        values: list[Any] = []
        _mapped(lambda path, value: values.append((path, value)), given)
        entries = _named([_input_of(path, value, is_example) for path, value in values])
        order = iter(entries)
        self.structure = _mapped(lambda *_: next(order).name, given)
        ids = {entry.name: entry.shape for entry in entries if not entry.is_mask}
        if not ids:
            raise InputError("A decoder needs an input of ids. Received: only masks.")
        if target is not None and target not in ids:
            raise InputError(f"`target` must be one of {', '.join(ids)}. Received: {target!r}.")
        likely = [name for name in ids if any(word in name for word in _TARGET_WORDS)]
        self.target: str = target or (likely or list(ids))[-1]
        self.sources = [name for name in ids if name != self.target]
        # The ids of a mask: most letters at the beginning of their names agree.
        self._masks = {
            entry.name: max(
                (len(os.path.commonprefix([entry.name, name])), name == self.target, name)
                for name in ids
            )[-1]
            for entry in entries
            if entry.is_mask
        }
        self.pad_id, self.vocabulary_size = pad_id, vocabulary_size or _vocabulary_size(model)
        batches = [] if is_example else [batch for batch, _ in ids.values() if batch]
        self.batch, self.has_fixed_batch = (batches or [_BATCH])[0], bool(batches)
        self.fixed = {name for name, (_, length) in ids.items() if length and not is_example}
        limit = getattr(model, "position_limit", None) or math.inf
        self.lengths = {}
        for name, (_, length) in ids.items():
            default = _TARGET_LENGTH if name == self.target else _SOURCE_LENGTH
            longest = int(min(length or default, _LONGEST, limit))
            self.lengths[name] = length if name in self.fixed else longest
        names, arrays = [entry.name for entry in entries], [value for _, value in values]
        self.example_ids = dict(zip(names, arrays, strict=True)) if is_example else {}
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


def _input_of(path, value, is_example):
    name, shape, dtype = getattr(value, "name", ""), tuple(value.shape), str(value.dtype)
    if path and isinstance(path[-1], str):
        name = path[-1]
    if len(shape) != 2:
        received = f"Received: {name or 'an input'} of shape {shape}."
        raise InputError(f"An input must be ids `(batch, length)`, or their mask. {received}")
    is_mask = "bool" in dtype or name.endswith("mask")
    if not is_mask and is_example and "int" not in dtype:
        raise InputError(f"An input must be integers. Received: {name or 'ids'} of dtype {dtype}.")
    return _Input(name, shape, is_mask)


def _named(entries):
    """Gives names to inputs that have only the names that Keras makes."""
    names = [entry.name for entry in entries]
    if len(set(names)) == len(names) and not all(map(_KERAS_NAME.fullmatch, names)):
        return entries
    names = {1: ["ids"], 2: ["source_ids", "target_ids"]}.get(len(entries))
    names = names or [f"inputs[{index}]" for index in range(len(entries))]
    return [entry._replace(name=name) for entry, name in zip(entries, names, strict=True)]


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
    layers = {id(layer): layer for owner in owners for layer in owner._flatten_layers()}
    return list(layers.values())
