"""Checks of any Keras decoder: what its outputs may depend on, and what computes the same.

Each check is a function of a `Decoder`, which calls the model with random ids. A check returns the
largest difference, or raises `_Skipped` or `_Failed`. The cause of a failure is the layer that
differs first, or a row of `_CAUSES`, as far as other calls of the model show it.
"""

import dataclasses
import math
import pathlib
import random
import re
import tempfile
import textwrap
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import keras
import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import PAD_ID
from keras_transformer.base.options import check_choice
from keras_transformer.decoding import SearchModel
from keras_transformer.extras.analysis.decoder_calls import (
    SPECIAL_IDS,
    Decoder,
    Difference,
    Ids,
    Inputs,
    LayerCall,
    centered,
    first_culprit,
    is_embedding,
    text_of,
    to_numpy,
)

_NUM_PADDING = 2
_FEW_STEPS = 6  # Tokens of a search whose other checks have all tokens.

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
    test_inputs = Inputs(model, inputs, target, pad_id, vocabulary_size)
    decoder = Decoder(model, test_inputs, padding_side, tolerance)
    if search_model is None and hasattr(model, "start_decoding") and hasattr(model, "step"):
        search_model = model
    results: dict[str, DecoderCheck] = {}

    def run(name, check, *arguments):
        results[name] = _result(name, check, decoder, *arguments)
        return results[name].result

    try:
        if run("repeated calls", _check_repeated_calls) == "failed":
            reason = "need outputs that are the same numbers in each call"
            skipped = DecoderCheck("other checks", "skipped", reason)
            return DecoderReport((*results.values(), skipped))
        run("unchanged weights", _check_unchanged_weights)
        run("other sentences", _check_other_sentences)
        run("future tokens", _check_future_tokens, results)
        run("future tokens in training", _check_training, results)
        run("reads its inputs", _check_reading)
        for name in (*test_inputs.sources, test_inputs.target):
            run(f"padding of {name}", _check_padding, name, results)
        run("labels", _check_labels, labels)
        if run("cached steps", _check_steps, search_model, results) == "passed":
            run("reordered beams", _check_beams, search_model)
        run("saved file", _check_saved_file, reload)
        run("export", _check_export, exported)
    finally:
        decoder.restore()
    return DecoderReport(tuple(results.values()))


class _Skipped(Exception):
    """The reason why a check cannot be made."""


class _Failed(Exception):
    """A failed check; the cause is a text or a key of `_CAUSES`."""

    def __init__(self, message, cause="", input_name=None, difference=None):
        super().__init__(message)
        place, largest = difference[:2] if difference else (None, None)
        cause = _CAUSES.get(cause, cause)
        self.result = DecoderCheck("", "failed", message, cause, input_name, place, largest)


_Results = dict[str, DecoderCheck]  # of earlier checks, by name


def _result(name, check, *arguments) -> DecoderCheck:
    try:
        return DecoderCheck(name, "passed", difference=check(*arguments))
    except InputError:
        raise
    except _Skipped as skipped:
        return DecoderCheck(name, "skipped", str(skipped))
    except _Failed as failed:
        return dataclasses.replace(failed.result, name=name)
    except Exception as error:
        return DecoderCheck(name, "failed", f"A call raises {text_of(error)}")


def _has_failed(results, name):
    return name in results and results[name].result == "failed"


def _check_equal(
    decoder, message, cause, outputs, expected, where=True, same_shapes=False
) -> float:
    """Returns the largest difference, or raises `_Failed`; `cause` may be a function."""
    difference = decoder.compare(outputs, expected, where, same_shapes)
    if difference is not None:
        cause = cause() if callable(cause) else cause
        raise _Failed(f"{message}: {difference}.", cause, decoder.target, difference)
    return float(decoder.distance(outputs, expected, where).max())


def _layer_cause(call: LayerCall, words: str, key: str = "") -> str:
    """Returns the cause of a layer that reads what it must not read."""
    return _CAUSES[key or call.kind].format(call.name, words)


# Checks. Each returns the largest difference, or raises. Later causes use what earlier checks saw.


def _check_repeated_calls(decoder: Decoder) -> float:
    """Compares two calls with the same ids."""
    changed, expected = decoder.changed_at_inference, decoder.expected
    if len(missing := np.argwhere(np.isnan(expected).any(-1))):
        difference = Difference(tuple(missing[0].tolist()), math.inf, math.inf)
        raise _Failed(f"Outputs are {difference}.", "not finite", None, difference)
    is_random = not changed or any("seed" in variable.path for variable in changed)
    cause, message = "random" if is_random else "state", "A second call differs"
    return _check_equal(decoder, message, cause, decoder.again, expected, same_shapes=True)


def _check_unchanged_weights(decoder: Decoder) -> None:
    """Looks for variables that a call at inference changes."""
    paths = [variable.path for variable in decoder.changed_at_inference]
    if paths := [path for path in paths if "seed" not in path]:
        message = f"A call at inference changes {len(paths)} variables, such as `{paths[0]}`."
        is_average = any("moving" in path for path in paths)
        cause = _CAUSES["statistics"].format(f"`{paths[0]}`") if is_average else "state"
        raise _Failed(message, cause)


def _check_other_sentences(decoder: Decoder) -> float:
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
            return _layer_cause(call, "other sentences")
        return (f"{call.name} differs first. " if call else "") + _CAUSES[key]

    outputs, expected = decoder.expected.copy(), decoder.expected
    outputs[is_equal] = part(decoder(others))
    return _check_equal(decoder, message, cause, outputs, expected, same_shapes=not is_single)


def _check_future_tokens(decoder: Decoder, results: _Results) -> float:
    """Changes each token, and looks for earlier outputs that change."""
    expected, name = decoder.expected, decoder.target
    if expected.shape[1] < 2:
        raise _Skipped("needs two positions")
    distance = decoder.change_each_token(not _has_failed(results, "other sentences"))
    largest, leaks = float(np.triu(distance, 1).max()), np.argwhere(np.triu(decoder.seen, 1))
    if not len(leaks):
        return largest
    position, column = leaks[0].tolist()
    difference = Difference.of((0, position), largest, expected)
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
        return _layer_cause(call, words) if call else _CAUSES["causal mask"]
    masks = [x for x in call.masks.values() if x.ndim > 2 and x.shape[-2:] == (length, length)]
    if not masks and not call.is_causal:
        how = " Give `use_causal_mask=True`." if call.is_causal is False else ""
        return _layer_cause(call, words, "no causal mask") + how
    causal = [np.tri(length, dtype=bool)] if call.is_causal else []
    shown = np.logical_and.reduce(causal + [x.reshape(-1, length, length).any(0) for x in masks])
    if not np.tril(shown, -1).any():
        return _layer_cause(call, words, "inverted")
    if not np.triu(shown, 1).any():
        return _layer_cause(call, words, "ignored")
    return _layer_cause(call, words, "shown" if np.triu(shown, 2).any() else "off by one")


def _check_training(decoder: Decoder, results: _Results) -> float:
    """Repeats the check of future tokens with `training=True`."""
    ids, name, length = decoder.ids, decoder.target, decoder.expected.shape[1]
    if length < 2 or not isinstance(decoder.model, keras.layers.Layer):
        raise _Skipped("needs a Keras model")
    expected, again = (decoder(ids, training=True) for _ in range(2))
    if decoder.compare(again, expected, same_shapes=True):
        raise _Skipped("random numbers of the model have no seed that can be restored")

    def check(start):
        def cause():
            if _has_failed(results, "future tokens"):
                return "See `future tokens`, which fails, too."
            cause = _cause_in_future(decoder, start, training=True)
            return f"Only with `training=True`, as when dropout is active: {cause}"

        outputs = decoder(decoder.changed(ids, name, np.s_[:1, start:]), training=True)
        message = f"Other ids from {name}[0, {start}] change earlier outputs with training=True"
        where = (np.arange(length) < start) & (np.arange(len(outputs)) == 0)[:, None]
        return _check_equal(decoder, message, cause, outputs, expected, where, same_shapes=True)

    return max(check(start) for start in sorted({1, length // 2, length - 1}))


def _check_reading(decoder: Decoder) -> None:
    """Checks that outputs depend on earlier tokens, and on each source."""
    name = decoder.target
    if len(decoder.seen) > 1 and not np.tril(decoder.seen, -1).any():
        raise _Failed(f"No output depends on an earlier token of {name}.", "hidden", name)
    for name in decoder.inputs.sources:
        outputs = decoder(decoder.changed(decoder.ids, name, np.s_[:]))
        if decoder.compare(outputs, decoder.expected, same_shapes=True) is None:
            raise _Failed(f"No output depends on {name}.", "hidden", name)


def _first_row(is_place):
    return lambda x: x[0][is_place] if x.shape[1] == len(is_place) else x[0]


class _Padding(NamedTuple):
    """Sentences with padding in row 0 of one input, and the same without."""

    name: str
    ids: Ids
    full: Ids  # with tokens instead of the padding
    short: Ids  # without the padding and its places in other rows
    is_token: np.ndarray  # bool (length,): places of tokens in row 0

    @classmethod
    def of(cls, decoder, name, pad_id):
        length, batch = decoder.inputs.lengths[name], decoder.inputs.batch
        if length < 2 + _NUM_PADDING:
            raise _Skipped(f"needs a length of at least {2 + _NUM_PADDING}")
        ids, places = decoder.inputs.draw((batch, length)), np.arange(length)
        # A sentence must not have the id that is taken for padding here.
        ids[ids == pad_id] = decoder.inputs.draw((), np.int32(pad_id))
        is_token = places < length - _NUM_PADDING if decoder.is_right else places >= _NUM_PADDING
        padded = ids.copy()
        padded[0, ~is_token] = pad_id
        sides = ({**decoder.ids, name: x} for x in (padded, ids, ids[:, is_token]))
        return cls(name, *sides, is_token)

    def difference(self, decoder) -> Difference | None:
        """Compares outputs of padded sentences with outputs of the same without padding."""
        expected = decoder(self.full)
        places = self.is_token if self.name == decoder.target else slice(None)
        expected[0, places] = decoder(self.short)[0]
        return self._compare(decoder, decoder(self.ids), expected)

    def difference_of_vectors(self, decoder):
        """Compares outputs of tokens with outputs for other vectors of padding.

        Returns:
            The difference, and the calls of layers with both vectors; None for the calls if no
            layer embeds the padding.
        """
        (outputs, calls), (others, noisy) = (decoder.recorded(self.ids, noise=x) for x in (0, 2.0))
        if not any(is_embedding(call.layer) for call in calls):
            return None, None
        return self._compare(decoder, others, outputs, same_shapes=True), (calls, noisy)

    def _compare(self, decoder, outputs, expected, same_shapes=False):
        # A loss multiplies outputs of padding by 0: then the gradients of NaN are NaN.
        where = np.isnan(outputs).any(-1)
        where[1:] = True
        where[0] |= self.is_token if self.name == decoder.target else True
        return decoder.compare(outputs, expected, where, same_shapes)


def _check_padding(decoder: Decoder, name: str, results: _Results) -> None:
    """Compares sentences with padding and the same without, or with other vectors of padding."""
    padding = _Padding.of(decoder, name, decoder.inputs.pad_id)
    if name in decoder.inputs.fixed:  # Shorter sentences are impossible.
        difference, calls = padding.difference_of_vectors(decoder)
        if calls is None:
            raise _Skipped("needs an embedding, or more than one length")
    else:
        difference = padding.difference(decoder)
    if difference is not None:
        message = f"Padding of {name} changes outputs of tokens: {difference}."
        cause = _padding_cause(decoder, padding, difference, results)
        raise _Failed(message, cause, name, difference)
    if name == decoder.target and decoder.is_right:
        return  # Earlier outputs must not read it.
    # Attention of new models may be so weak that padding is not seen, with a mask or without: does
    # another token next to padding change outputs?
    place = np.flatnonzero(padding.is_token)[-1 if decoder.is_right else 0]
    changed = decoder(decoder.changed(padding.ids, name, np.s_[:1, place]))
    where = np.arange(decoder.expected.shape[1]) > place if name == decoder.target else True
    if decoder.compare(changed, decoder(padding.ids), where) is None:
        raise _Skipped("a token changes less than rounding: check trained weights")


def _padding_cause(decoder, padding, difference, results):
    name, is_token, pad_id = padding.name, padding.is_token, decoder.inputs.pad_id
    if not np.isfinite(difference.largest):
        return "not finite"
    for check in ("other sentences", "future tokens"):
        is_related = check == "other sentences" or (name == decoder.target and decoder.is_right)
        if is_related and _has_failed(results, check):
            return f"See `{check}`, which fails, too."
    others = () if name in decoder.inputs.fixed else range(SPECIAL_IDS + 1)
    for other in set(others) - {pad_id}:
        if not _Padding.of(decoder, name, other).difference(decoder):
            return f"The model takes id {other} as padding, and not {pad_id}: give `pad_id`."
    of_vectors, calls = padding.difference_of_vectors(decoder)
    if calls is not None and of_vectors is None:
        return "number of padding" if decoder.is_right else "positions"
    call = calls and first_culprit(*calls, _first_row(is_token))
    if not call or call.kind != "attention":
        return _layer_cause(call, "padding") if call else "padding"
    for key, mask in call.masks.items():
        if key == "query_mask" or mask.shape[-1] != len(is_token):
            continue
        if not mask[0].reshape(-1, len(is_token)).any(0)[is_token].any():
            return _layer_cause(call, "padding", "inverted")
        is_causal = mask.ndim > 2 and not np.triu(mask, 1).any()
        if not is_causal and len(mask) > 1:
            return _layer_cause(call, f"the padding of {name}", "shown")
    cause = _layer_cause(call, "padding", "no padding mask")
    removing = [x.name for x in calls[0][: calls[0].index(call)] if x.removes_masks]
    if not removing:
        return cause
    return (
        f"{cause} {removing[0]} removes the Keras masks of its inputs: use this package's "
        "`MultiHeadAttention`, or give masks by hand."
    )


def _check_labels(decoder: Decoder, labels: Any) -> None:
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
        raise _Failed(message, "labels", name, Difference(place, 1.0, 1.0))
    if best > 1:
        message = f"Labels are {best} tokens after the last token that an output reads."
        raise _Failed(message, "The labels or the ids are shifted twice.", name)


def _first_tokens(decoder, ids):
    """Shortens the target: a step takes as long as a full pass."""
    count = None if decoder.target in decoder.inputs.fixed else _FEW_STEPS
    return {**ids, decoder.target: ids[decoder.target][:, :count]}


def _check_steps(decoder: Decoder, model: Any, results: _Results) -> float:
    """Compares decoding step by step, as `decoding.search` does, with one full pass."""
    if model is None:
        raise _Skipped("the model has no `start_decoding` and `step`: give `search_model`")
    if len(decoder.inputs.sources) > 1:
        raise _Skipped("a search reads one source")
    decoder.call_eagerly(decoder.inputs.sentences())  # Steps may read what this call leaves.
    steps = decoder.steps(model, decoder.ids)[:, 0]
    if steps.shape != decoder.expected.shape:
        raise _Skipped(f"the call returns no logits, and steps {steps.shape[-1]} logits")
    message, full = "Cached steps differ from the full pass", centered(decoder.expected)
    largest = _check_equal(decoder, message, lambda: _step_cause(decoder, model), steps, full)
    # The second sentences show what the first ones left.
    others = padded = _first_tokens(decoder, decoder.inputs.sentences())
    for name in decoder.inputs.sources:
        if results[f"padding of {name}"].result == "passed":
            padding = _Padding.of(decoder, name, decoder.inputs.pad_id)
            padded = {**others, name: padding.ids[name]}

    def compared(ids):
        return decoder.steps(model, ids)[:, 0], centered(decoder(ids))

    def cause():
        is_mask = padded is not others and decoder.compare(*compared(others)) is None
        return "source mask" if is_mask else "kept"

    return max(largest, _check_equal(decoder, message, cause, *compared(padded)))


def _step_cause(decoder, model):
    """Returns the cause of a difference for sentences without padding."""
    ids, target = decoder.ids, decoder.target

    def calls_with(ids):
        return centered(decoder(ids)), decoder.steps(model, ids)[:, 0]

    results = []
    for before in (decoder.inputs.sentences(), ids):
        decoder.call_eagerly(before)
        decoder.steps(model, before)
        results.append(decoder.steps(model, ids)[:, 0])
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


def _check_beams(decoder: Decoder, model: Any) -> None:
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
        steps = decoder.steps(model, sentences, beams, parents)
        full = [decoder({**ids, target: rows[:, beam]}) for beam in range(beams)]
        rows_of = (batch * beams, length, -1)
        expected = centered(np.stack(full, axis=1)).reshape(rows_of)
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


def _check_saved_file(decoder: Decoder, reload: bool) -> float:
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
        message = f"Saving or loading raises {text_of(error)}"
        raise _Failed(message, causes[0] if causes else "") from error
    finally:
        random.setstate(state)

    def cause():
        values = [to_numpy(weight) for weight in loaded.weights] + [None] * len(model.weights)
        for weight, value in zip(model.weights, values, strict=False):
            if not np.array_equal(to_numpy(weight), value):
                return f"The weight `{weight.path}` of shape {tuple(weight.shape)} is not restored."
        return "`get_config` leaves out an argument, or a variable is not saved."

    return _check_equal(decoder, "The loaded model differs", cause, outputs, decoder.expected)


def _check_export(decoder: Decoder, exported: Callable[[Any], Any] | None) -> float:
    """Compares an export for several shapes."""
    inputs, distances = decoder.inputs, []
    if exported is None:
        raise _Skipped("give `exported`, a function that calls the export")
    batches = {"these sentences": decoder.ids}
    if not inputs.has_fixed_batch:
        batches["one sentence"] = {name: ids[:1] for name, ids in decoder.ids.items()}
    for name in inputs.sources:
        if name not in inputs.fixed and inputs.lengths[name] >= 2 + _NUM_PADDING:
            batches[f"padding of {name}"] = _Padding.of(decoder, name, inputs.pad_id).ids
    for words, ids in batches.items():
        cause = "fixed shapes" if distances else "other export"
        try:
            outputs = decoder.call_eagerly(ids, model=exported)
        except Exception as error:
            message = f"The export raises {text_of(error)} ({words})"
            raise _Failed(message, cause if distances else "") from error
        message, expected = f"The export differs for {words}", decoder(ids)
        distances.append(_check_equal(decoder, message, cause, outputs, expected))
    return max(distances)
