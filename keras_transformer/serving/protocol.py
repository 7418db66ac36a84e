"""TensorFlow Serving's REST protocol: JSON to columns of values, and back.

Both formats of a request, the names of the errors and the form of the answers follow
`tensorflow_serving/util/json_tensor.cc` and its documentation, "RESTful API".
"""

import base64
import binascii
import itertools
import json
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.serving.reporting import Rejection, answer_too_long
from keras_transformer.serving.signatures import Signature

_INTEGERS = {
    f"{sign}int{bits}": (0, 2**bits) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}
DEFAULT = "serving_default"
_LARGEST_FLOAT32 = 3.4028234663852886e38


def shortened(text: str, length: int = 80) -> str:
    """A text for a message: of a hostile one no more than a line."""
    return text if len(text) <= length else text[: length - 3] + "..."


class Predict(NamedTuple):
    """A request for a prediction, checked.

    Attributes:
        columns: From the name of an input to a list with a value for each sentence: bytes, number,
            or list of such.
        by_row: Whether it came as `"instances"`, and the answer goes as `"predictions"`.
    """

    signature: str
    columns: dict[str, list]
    count: int
    by_row: bool


def parse_predict(
    body: bytes, signatures: dict[str, Signature], max_sentences: int, max_text_bytes: int
) -> Predict:
    """Reads the body of a `:predict` request.

    `max_sentences` is the most values in a column, `max_text_bytes` the most bytes in a string.

    Raises:
        Rejection: 400 for what is no such request, 413 for what is beyond a limit.
    """
    document = _object(body)
    name = document.get("signature_name", DEFAULT)
    if not isinstance(name, str):
        raise _bad(f"'signature_name' key must be a string value. Received: {_shown(name)}")
    name = name or DEFAULT  # TensorFlow Serving takes an empty name for the default.
    if name not in signatures:
        known = ", ".join(sorted(signatures))
        raise _bad(
            f"Serving signature name: {_shown(name)} not found in signature def. Known: {known}"
        )
    inputs = signatures[name].inputs
    by_row = "instances" in document
    if by_row and "inputs" in document:
        raise _bad("Expected only one of the keys 'inputs' and 'instances'. Received: both")
    if not by_row and "inputs" not in document:
        raise _bad("Missing 'inputs' or 'instances' key")
    read = _from_rows if by_row else _from_columns
    columns = {
        key: [_value(item, inputs[key], max_text_bytes, key, at) for at, item in enumerate(items)]
        for key, items in read(document, inputs, max_sentences).items()
    }
    counts = {len(items) for items in columns.values()}
    if len(counts) > 1:
        sizes = ", ".join(f"{key}: {len(items)}" for key, items in columns.items())
        raise _bad(f"Expected the same number of values in each input. Received: {sizes}")
    return Predict(name, columns, counts.pop(), by_row)


def _bad(message):
    return Rejection(400, message)


def _object(body):
    if not body:
        raise _bad("JSON Parse error: The document is empty")
    try:
        document = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _bad(
            f"JSON Parse error: expected UTF-8. Received: byte 0x{body[error.start]:02x} at "
            f"offset: {error.start}"
        ) from None
    except json.JSONDecodeError as error:
        raise _bad(f"JSON Parse error: {error.msg} at offset: {error.pos}") from None
    except RecursionError:
        raise _bad("JSON Parse error: nested too deeply") from None
    except ValueError as error:  # An integer of thousands of digits.
        raise _bad(f"JSON Parse error: {error}") from None
    if not isinstance(document, dict):
        raise _bad(f"JSON Value: {_shown(document)} Is not object")
    return document


def _is_base64(value):
    return isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str)


def _is_object(value):
    return isinstance(value, dict) and not _is_base64(value)


def _check_count(count, max_sentences):
    if count > max_sentences:
        message = f"At most {max_sentences} sentences a request. Received: {count}"
        raise Rejection(413, message, "sentences")


def _from_rows(document, inputs, max_sentences):
    rows = document["instances"]
    if not isinstance(rows, list):
        raise _bad("Expecting 'instances' to be a list/array")
    if not rows:
        raise _bad("No values in 'instances' array")
    _check_count(len(rows), max_sentences)
    named = _is_object(rows[0])
    if not named and len(inputs) > 1:
        raise _bad(
            "instances is a plain list, but expecting list of objects as multiple input "
            f"tensors required: {', '.join(inputs)}"
        )
    for at, row in enumerate(rows):
        if _is_object(row) != named:
            kinds = ("object but got value/list", "value/list but got object")
            raise _bad(f"Expecting {kinds[not named]} at item {at} of input list")
        if named and set(row) != set(inputs):
            raise _bad(
                f"Failed to process element: {at} of 'instances' list. JSON object: keys must be "
                f"equal to: {','.join(inputs)}. Received: {_shown(','.join(row))}"
            )
    return {key: [row[key] for row in rows] if named else rows for key in inputs}


def _from_columns(document, inputs, max_sentences):
    values = document["inputs"]
    if not _is_object(values):
        if len(inputs) > 1:
            raise _bad(
                "inputs is a plain value/list, but expecting an object as multiple input tensors "
                f"required: {', '.join(inputs)}"
            )
        values = {next(iter(inputs)): values}
    for key in inputs:
        if key not in values:
            raise _bad(f"Missing named input: {key} in 'inputs' object.")
        if not isinstance(values[key], list):
            raise _bad(f"Expecting a list for the input {key}. Received: {_shown(values[key])}")
        _check_count(len(values[key]), max_sentences)
    return {key: values[key] for key in inputs}


def _value(item, tensor, max_text_bytes, key, at):
    """A JSON value as what `tensor` holds for one sentence."""
    try:
        return _nested(item, len(tensor.shape) - 1, tensor.dtype, max_text_bytes)
    except Rejection as error:
        message = f"Failed to process element: {at} of the input {key}. {error.message}"
        raise Rejection(error.status, message, error.reason) from None


def _nested(item, rank, dtype, max_text_bytes):
    if rank:
        if not isinstance(item, list):
            raise _bad(f"Expecting a list {rank} deep. Received: {_shown(item)}")
        _check_length(len(item), max_text_bytes, "values")
        return [_nested(part, rank - 1, dtype, max_text_bytes) for part in item]
    if dtype == "string":
        text = _text(item)
        _check_length(len(text), max_text_bytes, "bytes")
        return text
    if not _is_number(item, dtype):
        raise _bad(f"JSON Value: {_shown(item)} is not of expected type: {dtype}")
    return item


def _check_length(length, most, unit):
    if length > most:
        raise Rejection(413, f"At most {most} {unit} a text. Received: {length}", "length")


def _text(item):
    if not isinstance(item, str) and not _is_base64(item):
        raise _bad(f"JSON Value: {_shown(item)} is not of expected type: string")
    try:
        if isinstance(item, str):
            return item.encode("utf-8")
        text = base64.b64decode(item["b64"].encode("ascii"), validate=True)
        text.decode("utf-8")
        return text
    except binascii.Error:
        raise _bad("Unable to base64 decode") from None
    except UnicodeDecodeError as error:
        raise _bad(f"Expected UTF-8 in base64. Received: {error.reason}") from None
    except UnicodeEncodeError:
        if _is_base64(item):
            raise _bad("Unable to base64 decode: expected ASCII characters") from None
        raise _bad("Expected valid Unicode. Received: half a surrogate pair") from None


def _is_number(item, dtype):
    if dtype == "bool" or isinstance(item, bool):
        return dtype == "bool" and isinstance(item, bool)
    if dtype in _INTEGERS:
        least, end = _INTEGERS[dtype]
        return isinstance(item, int) and least <= item < end
    # NaN and infinities pass, as they do in TensorFlow Serving.
    is_real = isinstance(item, int | float)
    return is_real and not _LARGEST_FLOAT32 < abs(item) < float("inf")


def _shown(value):
    try:
        return shortened(json.dumps(value))
    except (RecursionError, ValueError):
        return f"a {type(value).__name__}"


def format_predict(outputs: dict[str, Any], by_row: bool, max_bytes: int) -> bytes:
    """The JSON of an answer.

    Args:
        outputs: From the name of an output to a list or array with a value for each sentence.
        by_row: As in `Predict`.

    Returns:
        UTF-8. An output whose name ends in `_bytes` is base64-encoded; NaN and infinities are
        written as TensorFlow Serving writes them, `NaN` and `-Infinity`.

    Raises:
        Rejection: 413, the answer is longer than `max_bytes`.
    """
    # In small parts: `json.dumps` lets no other thread run before it returns.
    parts, size = [], 0
    for part in _by_row(outputs) if by_row else _by_column(outputs):
        parts.append(part.encode("utf-8"))
        size += len(parts[-1])
        if size > max_bytes:
            raise answer_too_long(max_bytes)
    return b"".join(parts)


def _by_row(outputs):
    rows = (dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True))
    yield '{"predictions": '
    yield from _joined("[]", map(_named, rows))
    yield "}"


def _by_column(outputs):
    yield '{"outputs": '
    yield from _named(outputs)
    yield "}"


def _named(values):
    items = [(key, _encoded(value, key.endswith("_bytes"))) for key, value in values.items()]
    if len(items) == 1:  # It stands without its name.
        return items[0][1]
    return _joined("{}", (itertools.chain([json.dumps(key), ": "], parts) for key, parts in items))


def _encoded(value, as_bytes):
    if isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim > 1):
        yield from _joined("[]", (_encoded(part, as_bytes) for part in value))
    elif isinstance(value, np.ndarray):
        yield json.dumps(value.tolist())
    elif isinstance(value, bytes) and as_bytes:
        yield json.dumps({"b64": base64.b64encode(value).decode("ascii")})
    elif isinstance(value, bytes):  # A model may cut a character that it spells in bytes.
        yield json.dumps(value.decode("utf-8", "replace"), ensure_ascii=False)
    else:
        yield json.dumps(value, ensure_ascii=False)


def _joined(brackets, items):
    yield brackets[0]
    for at, parts in enumerate(items):
        yield ", " if at else ""
        yield from parts
    yield brackets[1]
