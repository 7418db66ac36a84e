"""TensorFlow Serving's REST protocol: converts JSON to rows of values, and outputs to JSON.

Formats of requests and answers follow `tensorflow_serving/util/json_tensor.cc` and its
documentation, "RESTful API".
"""

import base64
import ipaddress
import itertools
import json
import math
import urllib.parse
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

import pydantic
import pydantic_core
from typing_extensions import TypedDict

from keras_transformer.errors import did_you_mean
from keras_transformer.export.signature import Signature
from keras_transformer.options import Int32
from keras_transformer.text.elements import count_blocks

DEFAULT = "serving_default"
FORM = "application/x-www-form-urlencoded"
"""Content type of a form, and of any body that `curl -d` sends."""
# Values that pad an output of sentences that have fewer values than others in the request.
_FILLERS = {"string": "", "float32": 0.0}
# Minimum bytes of a value in JSON, with its comma and space: `"", ` and `0.0, `.
_MIN_BYTES = {"string": 4, "float32": 5}
_DATA_TYPES = {"float32": "FLOAT"}
_NUMBERS = {"int32": Int32, "float32": pydantic.StrictFloat}
# A longer unknown name would take seconds to compare with the known names.
_MAX_NAME_LENGTH = 64
# A longer glossary would take seconds of a thread, which searches its terms at each word.
_MAX_TERMS = 1000


class _Options(TypedDict, total=False):
    """Fields of a request that apply to all of its sentences."""

    markup: Literal["none", "placeholders", "html"]
    tag: pydantic.StrictStr
    glossary: Annotated[
        dict[pydantic.StrictStr, pydantic.StrictStr], pydantic.Field(max_length=_MAX_TERMS)
    ]
    split_sentences: pydantic.StrictBool
    keep_case: pydantic.StrictBool


_OPTIONS = pydantic.TypeAdapter(_Options)
_FIELDS = ("signature_name", "instances", "inputs", *_Options.__annotations__)


class Rejection(Exception):
    """Error of a request: an HTTP status and a message of one line."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


def count_blocks_up_to(limit: int, texts: Iterable[str]) -> int:
    """Returns the number of blocks of texts in HTML, or a number above the limit.

    Texts after the text with which the limit is exceeded are not read.
    """
    count = 0
    for text in texts:
        count += count_blocks(text)
        if count > limit:
            break
    return count


def beyond(option: str, rule: str, received: Any = None, status: int = 413) -> Rejection:
    """Returns the rejection of a request beyond a limit, with the option that raises the limit.

    Args:
        option: Name of the field of `ServerOptions`.
        rule: What the limit is.
        received: Number that is beyond it, None if it is unknown.
        status: HTTP status.
    """
    told = "" if received is None else f" Received: {received}."
    return Rejection(status, f"{rule}.{told} The server's option `{option}` sets this limit.")


def too_many_sentences(count: int, limit: int, has_blocks: bool, status: int = 413) -> Rejection:
    """Returns the rejection of a request of more sentences, of which some are blocks of HTML."""
    rule = f"A request must have at most {limit} sentences"
    if has_blocks:
        return beyond(
            "max_sentences",
            f"{rule}, of which each block of HTML is one",
            f"at least {count}",
            status,
        )
    return beyond("max_sentences", rule, count, status)


def answer_too_long(max_bytes: int) -> Rejection:
    """Returns the rejection of a request whose answer is longer than `max_bytes`."""
    rule = f"An answer must have at most {max_bytes} bytes: send fewer or shorter texts"
    return beyond("max_answer_bytes", rule)


def definition(signature: Signature) -> dict[str, Any]:
    """Returns the `SignatureDef` as TensorFlow Serving writes it in JSON."""

    def info(name, tensor):
        sizes = [-1 if size is None else size for size in (None, *tensor.shape)]
        dims = [{"size": str(size), "name": ""} for size in sizes]
        return {
            "dtype": "DT_" + _DATA_TYPES.get(tensor.dtype, tensor.dtype.upper()),
            "tensor_shape": {"dim": dims, "unknown_rank": False},
            "name": f"{name}:0",
        }

    sides = {
        side: {name: info(name, tensor) for name, tensor in getattr(signature, side).items()}
        for side in ("inputs", "outputs")
    }
    return {**sides, "method_name": "tensorflow/serving/predict", "defaults": {}}


class Predict(NamedTuple):
    """A checked request for a prediction.

    Attributes:
        signature: Name of the signature.
        rows: Inputs of each sentence by name, texts or numbers.
        by_row: True for a request with `"instances"`, whose answer has `"predictions"`.
        options: Names and values of the request's fields in `_Options`, which are options of
            `Translator.translate`; a glossary is a tuple of pairs.
    """

    signature: str
    rows: list[dict[str, Any]]
    by_row: bool
    options: tuple[tuple[str, Any], ...] = ()


class Parser:
    """Reads bodies of `:predict` requests.

    Args:
        signatures: Signatures of the model by name.
        max_sentences: Maximum number of sentences per request.
        max_text_characters: Maximum number of characters of a text.
        default_options: Fields that a request without them has, by signature.
    """

    def __init__(
        self,
        signatures: dict[str, Signature],
        max_sentences: int,
        max_text_characters: int,
        default_options: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ):
        self._signatures, self._default_options = signatures, default_options
        self._max_sentences = max_sentences

        def text(value):
            if _is_base64(value):
                value = base64.b64decode(value["b64"], validate=True).decode("utf-8")
            if not isinstance(value, str):
                raise ValueError("expected a string")
            if len(value) > max_text_characters:
                rule: Any = f"a text must have at most {max_text_characters} characters, which the "
                rule += f"server's option `max_text_characters` sets; it has {len(value)}"
                raise pydantic_core.PydanticCustomError("too_long", rule)
            return value

        types = {**_NUMBERS, "string": Annotated[str, pydantic.PlainValidator(text)]}
        self._rows: dict[str, pydantic.TypeAdapter] = {}
        for name, signature in signatures.items():
            row: Any = {key: types[tensor.dtype] for key, tensor in signature.inputs.items()}
            rows: Any = list[TypedDict(name, row)]  # type: ignore[misc, operator]
            self._rows[name] = pydantic.TypeAdapter(rows)

    def parse(self, body: bytes) -> Predict:
        """Reads a body.

        Raises:
            Rejection: 400 for a malformed request, 413 for a request beyond a limit.
        """
        try:
            document = pydantic_core.from_json(body)
        except ValueError as error:
            raise Rejection(400, f"JSON Parse error: {error}") from None
        if not isinstance(document, dict):
            raise Rejection(400, f"JSON Value: {shown(document)} Is not object")
        # In TensorFlow Serving an empty name means the default.
        name = document.get("signature_name") or DEFAULT
        if not isinstance(name, str) or name not in self._signatures:
            known_names = ", ".join(sorted(self._signatures))
            message = f"Serving signature name: {shown(name)} not found. Known: {known_names}"
            raise Rejection(400, message)
        if ("instances" in document) == ("inputs" in document):
            raise Rejection(400, "Expected one of the keys 'inputs' and 'instances'")
        self._check_names(document, _FIELDS, "A request has no field")
        by_row = "instances" in document
        fields = document["instances" if by_row else "inputs"]
        rows = self._listed(fields, name, by_row)
        try:
            checked = self._rows[name].validate_python(rows)
            defaults = self._default_options.get(name, {})
            options = _OPTIONS.validate_python({**defaults, **document})
            request = Predict(name, checked, by_row, tuple(_hashable(options)))
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
        else:
            self._check_blocks(request)
            return request
        where = ", ".join(map(str, first["loc"]))  # place and name
        message = f"{first['msg'].removeprefix('Value error, ')}. Received: {shown(first['input'])}"
        status = 413 if first["type"] == "too_long" else 400
        raise Rejection(status, f"Failed to process element: {where}: {message}")

    def _check_blocks(self, request):
        """Raises `Rejection` (413) for HTML of too many blocks, which are texts for the model."""
        if ("markup", "html") not in request.options:
            return
        texts = [row["text"] for row in request.rows if "text" in row]
        if (count := count_blocks_up_to(self._max_sentences, texts)) > self._max_sentences:
            raise too_many_sentences(count, self._max_sentences, has_blocks=True)

    def _check_names(self, names, known_names, rule):
        """Raises `Rejection` (400) for an unknown name, with the nearest known name."""
        for name in names:
            if name in known_names:
                continue
            signatures = ", ".join(
                other.name for other in self._signatures.values() if name in other.inputs
            )
            if signatures:
                hint = f" It is an input of: {signatures}."
            else:
                near = did_you_mean(name[:_MAX_NAME_LENGTH], known_names)
                hint = near or f" Known: {', '.join(known_names)}."
            raise Rejection(400, f"{rule} {shown(name)}.{hint}")

    def _listed(self, values_of_request, signature_name, by_row):
        """Returns the inputs of each sentence by name; their values are unchecked."""
        inputs = list(self._signatures[signature_name].inputs)

        def check_names(names):
            self._check_names(names, inputs, f"The signature {signature_name} has no input")

        def named(value):
            # The name of a single input is optional.
            is_bare = not isinstance(value, dict) or _is_base64(value)
            return {inputs[0]: value} if is_bare and len(inputs) == 1 else value

        columns = {"instances": values_of_request} if by_row else named(values_of_request)
        if isinstance(columns, dict) and not by_row:
            check_names(columns)
        if not isinstance(columns, dict) or not by_row and set(columns) != set(inputs):
            raise Rejection(400, f"Expected an object of the inputs: {', '.join(inputs)}")
        if not all(isinstance(values, list) for values in columns.values()):
            raise Rejection(400, f"Expected a list: {', '.join(columns)}")
        counts = {len(values) for values in columns.values()}
        if len(counts) > 1:
            raise Rejection(400, "Expected the same number of values in each input")
        if (count := max(counts)) > self._max_sentences:
            raise too_many_sentences(count, self._max_sentences, has_blocks=False)
        if by_row and not count:
            raise Rejection(400, "No values in 'instances' array")
        if by_row:
            rows = list(map(named, values_of_request))
            for row in rows:
                check_names(row if isinstance(row, dict) else ())
            return rows
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _hashable(options):
    """Yields names and values of options without the defaults."""
    for name, value in options.items():
        if value not in ("", {}, "none"):
            yield name, tuple(value.items()) if isinstance(value, dict) else value


def _is_base64(value):
    return isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str)


def shown(value: Any, length: int = 100) -> str:
    """Returns a value for a message: a line of JSON, truncated to `length`."""
    try:
        text = json.dumps(value)
    except ValueError:  # An integer of thousands of digits.
        text = f"a {type(value).__name__}"
    return text if len(text) <= length else text[: length - 3] + "..."


def format_predict(
    rows: list[dict[str, Any]], signature: Signature, by_row: bool, max_bytes: int
) -> bytes:
    """Returns the JSON of an answer, UTF-8.

    NaN and infinities are written as TensorFlow Serving does, `NaN` and `-Infinity`.

    Args:
        rows: Outputs of each sentence by name: texts, numbers, or nested lists, which are padded to
            the longest list of the request. Matrices of numbers may be float32 arrays.
        signature: The signature of the outputs.
        by_row: As in `Predict`.
        max_bytes: Maximum bytes of an answer.

    Raises:
        Rejection: 413, the answer is longer than `max_bytes`.
    """
    columns = {name: [row[name] for row in rows] for name in signature.outputs}
    # Before anything is padded: a short request may need a thousand times its bytes.
    min_bytes = sum(
        _MIN_BYTES.get(dtype, 3) * _padded_size(columns[name], len(shape))
        for name, (dtype, shape) in signature.outputs.items()
    )
    if min_bytes > max_bytes:
        raise answer_too_long(max_bytes)
    outputs: dict[str, list] = {}
    for name, (dtype, shape) in signature.outputs.items():
        if dtype == "float32" and len(shape) == 2:
            columns[name] = [
                [list(map(shortest_decimal, row)) for row in matrix] for matrix in columns[name]
            ]
        outputs[name] = _padded(columns[name], len(shape), _FILLERS.get(dtype, 0))
    answer: Any = outputs
    if by_row:
        answer = [
            dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)
        ]
    if len(outputs) == 1:  # TensorFlow Serving omits the name of a single output.
        (answer,) = outputs.values()
    answer = {"predictions" if by_row else "outputs": answer}
    return as_json(answer, max_bytes)


def as_json(answer: Any, max_bytes: int) -> bytes:
    """Returns the JSON of an answer, UTF-8; raises `Rejection` (413) for more than `max_bytes`."""
    body = json.dumps(answer, ensure_ascii=False).encode("utf-8")
    if len(body) > max_bytes:
        raise answer_too_long(max_bytes)
    return body


def _padded_size(values, depth):
    """Returns how many values `_padded` returns, at its innermost axis."""
    sizes = [len(values)]
    for _ in range(depth):
        sizes.append(max(map(len, values), default=0))
        values = list(itertools.chain.from_iterable(values)) if len(sizes) <= depth else ()
    return math.prod(sizes)


def shortest_decimal(number: Any) -> float:
    """Returns the shortest decimal of a float32 value, as TensorFlow Serving writes it."""
    return float(str(number))


def _padded(values, depth, filler):
    """Pads nested lists of sentences to one shape, as TensorFlow Serving has no ragged axes."""
    if not depth:
        return values
    length = max(map(len, values), default=0)
    filling = [] if depth > 1 else filler
    flat = [element for value in values for element in [*value, *[filling] * (length - len(value))]]
    flat = _padded(flat, depth - 1, filler)
    return [flat[start * length : (start + 1) * length] for start in range(len(values))]


def check_same_site(method: str, headers: Any, hosts: set[str] | None) -> None:
    """Raises `Rejection` for a request that a page of another site sent by its visitor's browser.

    Args:
        method: HTTP method.
        headers: Headers of Starlette.
        hosts: Allowed names in the Host header, None for any.
    """
    host = ",".join(headers.getlist("host"))
    # Protects from DNS rebinding, in which a page's name means this machine. All browsers send a
    # Host, and a rebound page cannot have a numeric address.
    name = ""
    try:
        name = (urllib.parse.urlsplit(f"//{host}").hostname or "").removesuffix(".")
        ipaddress.ip_address(name)
    except ValueError:
        if host and hosts is not None and name not in hosts:
            rule = "is none of this server's; allowed_hosts adds names"
            raise Rejection(403, f"The host {shown(host)} {rule}") from None
    if method != "POST":
        return
    # A browser sends forms and plain text without a preflight request, but tells the page's origin.
    site, origin = headers.get("sec-fetch-site", ""), headers.get("origin", "")
    # Behind a proxy the host may differ, but then a browser sends `Sec-Fetch-Site`.
    scheme, _, address = origin.partition(":")
    # No page has the scheme of an extension, which the user has installed.
    is_own = address == f"//{host}" or scheme.endswith("-extension")
    is_foreign = not site and origin and not is_own
    if site not in ("", "same-origin", "none") or is_foreign:
        raise Rejection(403, "Sent by a page of another site")
    if "upgrade" in headers:
        # The parser of HTTP drops the body of such a request.
        raise Rejection(400, "Expected a request without an Upgrade header")


def check_content_type(headers: Any) -> None:
    """Raises `Rejection` (415) for a body of TensorFlow Serving's protocol that is not JSON."""
    kind = ",".join(headers.getlist("content-type"))
    if kind.partition(";")[0].strip().lower() not in ("", "application/json", FORM):
        rule = f"Expected content-type: application/json, none, or {FORM} as `curl -d` sends it."
        raise Rejection(415, f"{rule} Received: {shown(kind)}")
