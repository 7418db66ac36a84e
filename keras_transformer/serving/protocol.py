"""TensorFlow Serving's REST protocol: JSON to columns of values, and back.

Both formats of a request, the names of the errors and the form of the answers follow
`tensorflow_serving/util/json_tensor.cc` and its documentation, "RESTful API".
"""

import base64
import binascii
import dataclasses
import json

import numpy as np

from keras_transformer.serving.rejection import Rejection

_INTEGERS = {
    "int8": (-(2**7), 2**7),
    "uint8": (0, 2**8),
    "int16": (-(2**15), 2**15),
    "uint16": (0, 2**16),
    "int32": (-(2**31), 2**31),
    "uint32": (0, 2**32),
    "int64": (-(2**63), 2**63),
    "uint64": (0, 2**64),
}
DEFAULT = "serving_default"
# Bytes that the arrays of outputs may have for each byte of the longest answer: a number has eight,
# and most of them may be padding.
PADDED = 8
_LARGEST_FLOAT32 = 3.4028234663852886e38


@dataclasses.dataclass(frozen=True)
class Predict:
    """A request for a prediction, checked.

    Attributes:
        signature: Name of the signature.
        columns: Dict from the name of an input to a list with a value for each sentence: bytes,
            number, or list of such.
        count: Sentences.
        by_row: Whether it came as `"instances"`, and the answer goes as `"predictions"`.
    """

    signature: str
    columns: dict
    count: int
    by_row: bool


def parse_predict(body, signatures, max_sentences, max_text_bytes):
    """Reads the body of a `:predict` request.

    Args:
        body: Bytes.
        signatures: Dict of `Signature` by name.
        max_sentences: Most values in a column.
        max_text_bytes: Most bytes in a string.

    Returns:
        `Predict`.

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
    if by_row:
        raw = _from_rows(document["instances"], inputs, max_sentences)
    else:
        raw = _from_columns(document["inputs"], inputs, max_sentences)
    columns = {
        key: [_value(item, inputs[key], max_text_bytes, key, at) for at, item in enumerate(items)]
        for key, items in raw.items()
    }
    counts = {len(items) for items in columns.values()}
    if len(counts) > 1:
        sizes = ", ".join(f"{key}: {len(items)}" for key, items in columns.items())
        raise _bad(f"Expected the same number of values in each input. Received: {sizes}")
    return Predict(name, columns, counts.pop(), by_row)


def format_predict(outputs, by_row, max_bytes):
    """The JSON of an answer.

    Args:
        outputs: Dict from the name of an output to a list or array with a value for each sentence.
        by_row: As in `Predict`.
        max_bytes: Longest answer.

    Returns:
        Bytes. An output whose name ends in `_bytes` is base64-encoded; NaN and infinities are
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


def answer_too_long(max_bytes):
    """The `Rejection` of a request whose answer is longer than `max_bytes`."""
    message = f"At most {max_bytes} bytes an answer: send fewer or shorter sentences in a request"
    return Rejection(413, message, "answer")


def array_bytes(outputs):
    """Bytes of the arrays among outputs, whatever their values are in JSON."""
    return sum(getattr(values, "nbytes", 0) for values in outputs.values())


def _by_row(outputs):
    yield '{"predictions": ['
    for at, row in enumerate(zip(*outputs.values(), strict=True)):
        yield ", " if at else ""
        yield from _named(dict(zip(outputs, row, strict=True)))
    yield "]}"


def _by_column(outputs):
    yield '{"outputs": '
    yield from _named(outputs)
    yield "}"


def _named(values):
    """A single output stands without its name."""
    if len(values) == 1:
        ((key, value),) = values.items()
        yield from _encoded(value, key.endswith("_bytes"))
        return
    for at, (key, value) in enumerate(values.items()):
        yield f"{', ' if at else '{'}{json.dumps(key, ensure_ascii=False)}: "
        yield from _encoded(value, key.endswith("_bytes"))
    yield "}"


def _encoded(value, as_bytes):
    if isinstance(value, np.ndarray | list) and np.ndim(value[:1]) > 1:
        yield "["
        for at, part in enumerate(value):
            yield ", " if at else ""
            yield from _encoded(part, as_bytes)
        yield "]"
        return
    value = value.tolist() if isinstance(value, np.ndarray) else value
    yield json.dumps(_plain(value, as_bytes), ensure_ascii=False)


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
        raise Rejection(
            413, f"At most {max_sentences} sentences a request. Received: {count}", "sentences"
        )


def _from_rows(rows, inputs, max_sentences):
    if not isinstance(rows, list):
        raise _bad("Expecting 'instances' to be a list/array")
    if not rows:
        raise _bad("No values in 'instances' array")
    _check_count(len(rows), max_sentences)
    if not _is_object(rows[0]):
        if len(inputs) > 1:
            raise _bad(
                "instances is a plain list, but expecting list of objects as multiple input "
                f"tensors required: {', '.join(inputs)}"
            )
        for at, row in enumerate(rows):
            if _is_object(row):
                raise _bad(f"Expecting value/list but got object at item {at} of input list")
        return {next(iter(inputs)): rows}
    for at, row in enumerate(rows):
        if not _is_object(row):
            raise _bad(f"Expecting object but got value/list at item {at} of input list")
        if set(row) != set(inputs):
            raise _bad(
                f"Failed to process element: {at} of 'instances' list. JSON object: keys must be "
                f"equal to: {','.join(inputs)}. Received: {_shown(','.join(row))}"
            )
    return {key: [row[key] for row in rows] for key in inputs}


def _from_columns(values, inputs, max_sentences):
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
    rank = len(tensor.shape) - 1
    try:
        return _nested(item, rank, tensor.dtype, max_text_bytes)
    except Rejection as error:
        message = f"Failed to process element: {at} of the input {key}. {error.message}"
        raise Rejection(error.status, message, error.reason) from None


def _nested(item, rank, dtype, max_text_bytes):
    if rank:
        if not isinstance(item, list):
            raise _bad(f"Expecting a list {rank} deep. Received: {_shown(item)}")
        if len(item) > max_text_bytes:
            raise _too_long(len(item), max_text_bytes, "values")
        return [_nested(part, rank - 1, dtype, max_text_bytes) for part in item]
    if dtype == "string":
        return _text(item, max_text_bytes)
    return _number(item, dtype)


def _text(item, max_text_bytes):
    try:
        if _is_base64(item):
            text = base64.b64decode(item["b64"].encode("ascii"), validate=True)
            text.decode("utf-8")
        elif isinstance(item, str):
            text = item.encode("utf-8")
        else:
            raise _bad(f"JSON Value: {_shown(item)} is not of expected type: string")
    except binascii.Error:
        raise _bad("Unable to base64 decode") from None
    except UnicodeDecodeError as error:
        raise _bad(f"Expected UTF-8 in base64. Received: {error.reason}") from None
    except UnicodeEncodeError:
        if _is_base64(item):
            raise _bad("Unable to base64 decode: expected ASCII characters") from None
        raise _bad("Expected valid Unicode. Received: half a surrogate pair") from None
    if len(text) > max_text_bytes:
        raise _too_long(len(text), max_text_bytes, "bytes")
    return text


def _too_long(count, most, unit):
    return Rejection(413, f"At most {most} {unit} a text. Received: {count}", "length")


def _number(item, dtype):
    if dtype == "bool":
        good = isinstance(item, bool)
    elif isinstance(item, bool) or not isinstance(item, int | float):
        good = False
    elif dtype in _INTEGERS:
        least, end = _INTEGERS[dtype]
        good = isinstance(item, int) and least <= item < end
    else:
        # NaN and infinities pass, as they do in TensorFlow Serving.
        good = not _LARGEST_FLOAT32 < abs(item) < float("inf")
    if not good:
        raise _bad(f"JSON Value: {_shown(item)} is not of expected type: {dtype}")
    return item


def _shown(value):
    """A value for a message: of a hostile one no more than a line."""
    try:
        text = json.dumps(value)
    except (RecursionError, ValueError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def _plain(value, as_bytes):
    if isinstance(value, list):
        return [_plain(part, as_bytes) for part in value]
    if isinstance(value, bytes):
        if as_bytes:
            return {"b64": base64.b64encode(value).decode("ascii")}
        # A model may cut a character that it spells in bytes.
        return value.decode("utf-8", "replace")
    return value
