"""Endpoints of the protocols, what clients may send to them, and errors."""

import ipaddress
import itertools
import json
import re
import urllib.parse
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import pydantic_core
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import Response

from keras_transformer.text.elements import count_blocks

FORM = "application/x-www-form-urlencoded"
"""Content type of a form, and of any body that `curl -d` sends."""
FAILED = "The server has failed; its log says why"
"""Message of an error of the server."""
LONG_BYTES = 4096
"""Bytes of a request that is read in a thread."""
_MULTIPART = "multipart/form-data"
_MAX_FIELDS = 100


class Endpoint(NamedTuple):
    """An endpoint of the application.

    Attributes:
        path: Its path.
        answer: Function of the application's `Api` and the request.
        methods: Methods of HTTP.
        is_held: Whether a request has a limit of time, and a place among those that the server
            holds; None for all but requests by GET.
    """

    path: str
    answer: Callable[[Any, Any], Awaitable[Response]]
    methods: tuple[str, ...] = ("GET",)
    is_held: bool | None = None


class Rejection(Exception):
    """Error of a request: an HTTP status and a message of one line."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


def blocks_above(limit: int, texts: Sequence[str]) -> int:
    """Returns the number of blocks of texts in HTML if it is above a limit, else 0.

    Texts after the text with which the limit is exceeded are not read, and no text is read if all
    texts are short. A block and what separates it from the next have two characters or more.
    """
    if sum(len(text) // 2 + 1 for text in texts) <= limit:
        return 0
    for count in itertools.accumulate(map(count_blocks, texts)):
        if count > limit:
            return count
    return 0


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


def shown(value: Any, length: int = 100) -> str:
    """Returns a value for a message: a line of JSON, truncated to `length`."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):  # A file, or an integer of thousands of digits.
        text = f"a {type(value).__name__}"
    return text if len(text) <= length else text[: length - 3] + "..."


def as_json(answer: Any, max_bytes: int) -> bytes:
    """Returns the JSON of an answer, UTF-8; raises `Rejection` (413) for more than `max_bytes`."""
    body = json.dumps(answer, ensure_ascii=False).encode("utf-8")
    if len(body) > max_bytes:
        raise answer_too_long(max_bytes)
    return body


async def body_of(request: Request, max_bytes: int) -> bytes:
    """Returns a request's body, of at most `max_bytes` bytes."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise beyond("max_body_bytes", f"A request must have at most {max_bytes} bytes")
    return bytes(body)


class File(NamedTuple):
    """A file in a form: its name, and its content."""

    name: str
    content: bytes


async def fields_of(
    content_type: str, query: str, body: bytes, max_files: int = 0, list_name: str = ""
) -> dict[str, Any]:
    """Returns the parameters of a request: of JSON, or of a form and the query string.

    A form with a boundary may have `max_files`, whose values are `File`. The parameter `list_name`
    of a form is the list of its values.

    Raises:
        Rejection: 400, the request is malformed.
    """
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if re.fullmatch(r"application/([^/]*\+)?json", kind):
            fields = pydantic_core.from_json(body)
            if not isinstance(fields, dict):
                raise Rejection(400, "Invalid JSON format")
            return fields
        pairs = _form(query)
        if kind == FORM:
            pairs += _form(body.decode("utf-8"))
        elif kind == _MULTIPART:
            pairs += await _parts(content_type, body, max_files)
    except ValueError as error:
        raise Rejection(400, f"Malformed request: {error}") from None
    # Browsers send line breaks of forms as CRLF.
    pairs = [
        (name, value.replace("\r\n", "\n") if isinstance(value, str) else value)
        for name, value in pairs
    ]
    fields = dict(reversed(pairs))  # The first value of a name counts.
    if list_name in fields:
        fields[list_name] = [value for name, value in pairs if name == list_name]
    return fields


def _form(text):
    options: Any = {"keep_blank_values": True, "errors": "strict"}
    return urllib.parse.parse_qsl(text, max_num_fields=_MAX_FIELDS, **options)


async def _parts(content_type, body, max_files):
    """Returns names and values of a form with a boundary, with a limited number of files."""

    async def stream():
        yield body

    if not max_files:
        body.decode("utf-8")  # Starlette would take other bytes for Latin-1.
    headers = Headers({"content-type": content_type})
    limits = {"max_files": max_files, "max_fields": _MAX_FIELDS, "max_part_size": len(body)}
    try:
        form = await MultiPartParser(headers, stream(), **limits).parse()
    except MultiPartException as error:
        raise ValueError(error.message) from None
    try:
        return [
            (name, value)
            if isinstance(value, str)
            else (name, File(value.filename or "", await value.read()))
            for name, value in form.multi_items()
        ]
    finally:
        await form.close()


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
