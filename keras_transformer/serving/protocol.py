"""TensorFlow Serving's REST protocol: JSON to columns of values, rows of outputs to JSON.

Both formats of a request, error messages and answers follow
`tensorflow_serving/util/json_tensor.cc` and its documentation, "RESTful API".
"""

import base64
import binascii
import dataclasses
import gc
import ipaddress
import json
import math
import urllib.parse
from collections.abc import Iterable
from typing import Any, NamedTuple

DEFAULT = "serving_default"
_LARGEST_FLOAT32 = 3.4028234663852886e38
_INTEGERS = {"int32": 2**31, "int64": 2**63}
# Content type of any body that `curl -d` sends.
_FORM = "application/x-www-form-urlencoded"
# Values that fill an output where one sentence of a request has fewer than another.
_FILLERS = {"string": "", "float32": 0.0}
_DATA_TYPES = {"float32": "FLOAT"}


class Rejection(Exception):
    """A request without a result: its HTTP status and one clear line.

    Args:
        status: HTTP status code.
        message: The line that the client gets.
        reason: Short name for the metrics, by default the status.
    """

    def __init__(self, status: int, message: str, reason: str | None = None):
        super().__init__(status, message, reason)
        self.status = status
        self.message = message
        self.reason = reason or str(status)

    def __str__(self):
        return self.message


def answer_too_long(max_bytes: int) -> Rejection:
    """Returns the rejection of a request whose answer is longer than `max_bytes`."""
    message = f"At most {max_bytes} bytes an answer: send fewer or shorter sentences in a request"
    return Rejection(413, message, "answer")


def least_bytes(lengths: Iterable[int]) -> int:
    """Returns the fewest bytes of JSON for rows of so many numbers: `"0.0, "` each."""
    return 5 * sum(lengths)


class Tensor(NamedTuple):
    """An input or output: type by TensorFlow's name, sizes after the batch's, None if variable."""

    dtype: str
    shape: tuple[int | None, ...] = ()


class Signature(NamedTuple):
    """Inputs and outputs of one function of a model, by name."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]

    def definition(self) -> dict[str, Any]:
        """Returns the `SignatureDef` as TensorFlow Serving writes it in JSON."""

        def infos(tensors):
            return {
                name: {
                    "dtype": "DT_" + _DATA_TYPES.get(tensor.dtype, tensor.dtype.upper()),
                    "tensor_shape": {
                        "dim": [
                            {"size": str(-1 if size is None else size), "name": ""}
                            for size in (None, *tensor.shape)
                        ],
                        "unknown_rank": False,
                    },
                    "name": f"{name}:0",
                }
                for name, tensor in tensors.items()
            }

        method = "tensorflow/serving/predict"
        sides = {"inputs": infos(self.inputs), "outputs": infos(self.outputs)}
        return {**sides, "method_name": method, "defaults": {}}


@dataclasses.dataclass(frozen=True)
class Predict:
    """A checked request for a prediction.

    Attributes:
        columns: Value of each sentence, text or number, by the name of the input.
        by_row: True if it came as `"instances"`: the answer goes as `"predictions"`.
    """

    signature: str
    columns: dict[str, list]
    count: int
    by_row: bool


def shortened(text: str, length: int = 80) -> str:
    """Returns a text for a message, cut to a line."""
    return text if len(text) <= length else text[: length - 3] + "..."


def parse_predict(
    body: bytes, signatures: dict[str, Signature], max_sentences: int, max_text_bytes: int
) -> Predict:
    """Reads the body of a `:predict` request.

    `max_sentences` is the most values in a column, `max_text_bytes` the most bytes in a string.

    Raises:
        Rejection: 400 for a malformed request, 413 for one beyond a limit.
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
        key: [
            _value(item, inputs[key].dtype, max_text_bytes, key, place)
            for place, item in enumerate(items)
        ]
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
    # A MiB of empty lists takes 0.4 s with the garbage collector, 0.02 s without.
    gc.disable()
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
    finally:
        gc.enable()
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


def _value(item, dtype, max_text_bytes, key, place):
    """Returns a JSON value as the text or number of one sentence."""
    try:
        if dtype == "string":
            text = _text(item)
            if (size := len(text.encode("utf-8"))) > max_text_bytes:
                message = f"At most {max_text_bytes} bytes a text. Received: {size}"
                raise Rejection(413, message, "length")
            return text
        if not _is_number(item, dtype):
            raise _bad(f"JSON Value: {_shown(item)} is not of expected type: {dtype}")
        return item
    except Rejection as error:
        message = f"Failed to process element: {place} of the input {key}. {error.message}"
        raise Rejection(error.status, message, error.reason) from None


def _text(item):
    if not isinstance(item, str) and not _is_base64(item):
        raise _bad(f"JSON Value: {_shown(item)} is not of expected type: string")
    try:
        if isinstance(item, str):
            item.encode("utf-8")
            return item
        return base64.b64decode(item["b64"].encode("ascii"), validate=True).decode("utf-8")
    except binascii.Error:
        raise _bad("Unable to base64 decode") from None
    except UnicodeDecodeError as error:
        raise _bad(f"Expected UTF-8 in base64. Received: {error.reason}") from None
    except UnicodeEncodeError:
        if _is_base64(item):
            raise _bad("Unable to base64 decode: expected ASCII characters") from None
        raise _bad("Expected valid Unicode. Received: half a surrogate pair") from None


def _is_number(item, dtype):
    if isinstance(item, bool) or not isinstance(item, int | float):
        return False
    if dtype in _INTEGERS:
        return isinstance(item, int) and -_INTEGERS[dtype] <= item < _INTEGERS[dtype]
    # NaN and infinities pass, as they do in TensorFlow Serving.
    return not _LARGEST_FLOAT32 < abs(item) < math.inf


def _shown(value):
    try:
        return shortened(json.dumps(value))
    except (RecursionError, ValueError):
        return f"a {type(value).__name__}"


def format_predict(
    rows: list[dict[str, Any]], signature: Signature, by_row: bool, max_bytes: int
) -> bytes:
    """Returns the JSON of an answer, UTF-8.

    Args:
        rows: Outputs of each sentence by name: text, number, or nested lists, which are padded to
            the longest of the request.
        by_row: As in `Predict`.

    NaN and infinities are written as TensorFlow Serving writes them, `NaN` and `-Infinity`.

    Raises:
        Rejection: 413, the answer is longer than `max_bytes`.
    """
    outputs = {
        name: _rectangular([row[name] for row in rows], tensor)
        for name, tensor in signature.outputs.items()
    }
    only = len(outputs) == 1  # It stands without its name.
    if by_row:
        named = [
            dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)
        ]
        answer = {"predictions": next(iter(outputs.values())) if only else named}
    else:
        answer = {"outputs": next(iter(outputs.values())) if only else outputs}
    body = json.dumps(answer, ensure_ascii=False).encode("utf-8")
    if len(body) > max_bytes:
        raise answer_too_long(max_bytes)
    return body


def _rectangular(values, tensor):
    """Pads nested lists of sentences to one shape: arrays of TensorFlow have no ragged axes."""
    filler = _FILLERS.get(tensor.dtype, 0)
    if len(tensor.shape) == 1:
        length = max(map(len, values), default=0)
        return [[*value, *[filler] * (length - len(value))] for value in values]
    if len(tensor.shape) == 2:
        length = max(map(len, values), default=0)
        width = max((len(row) for value in values for row in value), default=0)
        empty = [[filler] * width]
        return [
            [[*row, *[filler] * (width - len(row))] for row in value]
            + empty * (length - len(value))
            for value in values
        ]
    return values


def check_host(host: str, hosts: set[str] | None) -> None:
    """Raises `Rejection` for a page whose name was made to mean this machine (DNS rebinding)."""
    # Every browser sends a Host, and no page can have a numeric address.
    try:
        name = (urllib.parse.urlsplit(f"//{host}").hostname or "").removesuffix(".")
        ipaddress.ip_address(name)
    except ValueError:
        if host and hosts is not None and name not in hosts:
            message = (
                f"The host {shortened(host, 100)} is none of this server's; allowed_hosts adds"
            )
            raise Rejection(403, f"{message} names", "host") from None


def check_post(headers: Any) -> None:
    """Raises `Rejection` for a POST that a page of another site has its visitor's browser send.

    A browser asks nobody before it sends a form or plain text, but says whose page it was.
    """
    site, origin = headers.get("sec-fetch-site", ""), headers.get("origin", "")
    own = f"//{headers.get('host', '')}"
    # Behind a proxy the host may be another, but then a browser sends `Sec-Fetch-Site`.
    if site not in ("", "same-origin", "none") or (
        not site and origin and origin.partition(":")[2] != own
    ):
        raise Rejection(403, "Sent by a page of another site", "origin")
    kind = ",".join(headers.getlist("content-type"))
    if kind.partition(";")[0].strip().lower() not in ("", "application/json", _FORM):
        raise Rejection(
            415,
            f"Expected content-type: application/json, none, or {_FORM} as `curl -d` sends it. "
            f"Received: {shortened(kind, 100)}",
        )
    if "upgrade" in headers:
        # Ray's proxy loses the body of such a request.
        raise Rejection(400, "Expected a request without an Upgrade header", "upgrade")
