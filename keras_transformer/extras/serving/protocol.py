"""TensorFlow Serving's REST protocol: converts JSON to rows of values, and outputs to JSON.

Formats of requests and answers follow `tensorflow_serving/util/json_tensor.cc` and its
documentation, "RESTful API".
"""

import base64
import itertools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

import pydantic
import pydantic_core
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from keras_transformer.base.errors import did_you_mean
from keras_transformer.base.options import Int32
from keras_transformer.export.signature import Signature
from keras_transformer.extras.serving.endpoints import (
    FORM,
    LONG_BYTES,
    Endpoint,
    Rejection,
    answer_too_long,
    as_json,
    blocks_above,
    body_of,
    shown,
    too_many_sentences,
)

DEFAULT = "serving_default"
# Label that a client may use for the version that answers.
_STABLE = "stable"
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
        if count := blocks_above(self._max_sentences, texts):
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


def check_content_type(headers: Any) -> None:
    """Raises `Rejection` (415) for a body of TensorFlow Serving's protocol that is not JSON."""
    kind = ",".join(headers.getlist("content-type"))
    if kind.partition(";")[0].strip().lower() not in ("", "application/json", FORM):
        rule = f"Expected content-type: application/json, none, or {FORM} as `curl -d` sends it."
        raise Rejection(415, f"{rule} Received: {shown(kind)}")


def _check_version(api, request):
    """Raises `Rejection` (404) for another model or another version."""
    name, number = request.path_params["name"], request.path_params.get("version")
    label = request.path_params.get("label", _STABLE)
    if name != api.name:
        unknown = f"Servable not found for request: Latest({shown(name)})"  # as TF Serving's
        raise Rejection(404, f"{unknown} This server has `{api.name}`.")
    if label != _STABLE:
        raise Rejection(404, f"Unrecognized servable version label: {shown(label)}")
    # As texts: a number of thousands of digits is none that Python converts.
    if number is not None and (number.lstrip("0") or "0") != str(api.number):
        version = f"Specific({api.name}, {number:.30})"
        raise Rejection(404, f"Servable not found for request: {version}")


async def _status(api, request):
    """Returns the state of the served version, in TensorFlow Serving's format."""
    _check_version(api, request)
    status = {"error_code": "OK", "error_message": ""}
    state = {"version": str(api.number), "state": "AVAILABLE", "status": status}
    return JSONResponse({"model_version_status": [state]})


async def _metadata(api, request):
    """Returns the signatures."""
    _check_version(api, request)
    spec = {"name": api.name, "signature_name": "", "version": str(api.number)}
    signatures = api.model.signatures.items()
    definitions = {name: definition(signature) for name, signature in signatures}
    metadata = {"signature_def": {"signature_def": definitions}}
    return JSONResponse({"model_spec": spec, "metadata": metadata})


async def _predict(api, request):
    """Returns translations."""
    check_content_type(request.headers)
    body = await body_of(request, api.options.max_body_bytes)
    _check_version(api, request)
    is_long = len(body) > LONG_BYTES
    prediction = await api.call(is_long, api.parser.parse, body)
    translations = await api.translations(prediction, is_long, 413)
    name = prediction.signature
    signature = api.model.signatures[name]
    is_long |= any(len(tensor.shape) > 1 for tensor in signature.outputs.values())
    results = await api.call(is_long, api.model.outputs, name, translations)
    limits = prediction.by_row, api.options.max_answer_bytes
    answer = await api.call(is_long, format_predict, results, signature, *limits)
    return Response(answer, media_type="application/json")


ENDPOINTS = [
    endpoint
    for index in ("", "/versions/{version:number}", "/labels/{label:name}")
    for path in ["/v1/models/{name:name}" + index]
    for endpoint in (
        Endpoint(f"{path}:predict", _predict, ("POST",)),
        Endpoint(f"{path}/metadata", _metadata),
        Endpoint(path, _status),
    )
]
