"""The addresses of a server: an ASGI application over a `ServedModel`."""

import asyncio
import concurrent.futures
import importlib.resources
import ipaddress
import json
import re
import time
import urllib.parse

from keras_transformer.serving.log import say_unexpected
from keras_transformer.serving.protocol import format_predict, parse_predict
from keras_transformer.serving.rejection import Rejection
from keras_transformer.serving.signatures import metadata

_MODEL = re.compile(
    r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d{1,18})|/labels/(?P<label>[^/:]+))?"
    r"(?P<rest>/metadata|:predict|:classify|:regress)?"
)
# The label that a client may use for "whichever version answers".
_STABLE = "stable"
_JSON, _TEXT = b"application/json", b"text/plain; charset=utf-8"
# What `curl -d` says of any body; together with no content type at all.
_FORM = "application/x-www-form-urlencoded"
# More numbers than these are written as JSON in a thread: these take about a millisecond.
_INLINE_NUMBERS = 1000
# The page is all in one file: nothing else is loaded, whatever a translation may contain.
_PAGE_HEADERS = [
    (b"content-security-policy", b"default-src 'none'; connect-src 'self'; style-src "
     b"'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"),
    (b"x-content-type-options", b"nosniff"),
]  # fmt: skip


class App:
    """Answers requests.

    Args:
        model: `ServedModel`.
        options: `ServerOptions`.
        metrics: `Metrics`.

    Attributes:
        replicas: How many replicas run; without one the server is not ready.
    """

    def __init__(self, model, options, metrics):
        self.replicas = 0
        self._model = model
        self._options = options
        self._metrics = metrics
        self._hosts = _allowed_hosts(options)
        # One thread: several would keep each other, and the event loop, from running.
        self._encoder = concurrent.futures.ThreadPoolExecutor(1, "encoder")
        page = importlib.resources.files(__package__).joinpath("page.html")
        self._page = page.read_text(encoding="utf-8")

    async def __call__(self, scope, receive, send):
        """ASGI."""
        if scope["type"] != "http":
            return
        headers = []
        try:
            status, kind, body, headers = await self._answer(scope, receive)
        except Rejection as rejection:
            status, kind, body = rejection.status, _JSON, _error(rejection.message)
            if status in (429, 503):
                headers = [(b"retry-after", b"1")]
        except _GoneError:
            return
        except Exception as error:  # A fault of this package: whoever runs the server must know.
            say_unexpected(error)
            rejection = Rejection(500, "Internal error", "internal")
            self._metrics.rejected(rejection)
            status, kind, body = rejection.status, _JSON, _error(rejection.message)
        start = {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", kind),
                (b"content-length", str(len(body)).encode()),
                *headers,
            ],
        }
        try:
            async with asyncio.timeout(self._options.read_timeout):
                await send(start)
                content = b"" if scope["method"] == "HEAD" else body
                await send({"type": "http.response.body", "body": content})
        except TimeoutError:
            # The client does not take its answer: what is left of it is in its own queue.
            scope.get("state", {}).get("abort", lambda: None)()

    async def _answer(self, scope, receive):
        path, method = scope["path"], scope["method"]
        self._check_host(_header(scope, b"host"))
        if path.startswith("/v1/"):
            return await self._answer_model(scope, receive, path, method)
        answers = {
            "/": self._index,
            "/healthz": self._health,
            "/readyz": self._readiness,
            "/metrics": self._exposition,
            "/monitoring/prometheus/metrics": self._exposition,
        }
        if path not in answers:
            raise Rejection(404, f"Not found: {_shown(path)}")
        if method not in ("GET", "HEAD"):
            raise Rejection(405, f"Method not allowed: {_shown(method)} {path}")
        return answers[path]()

    async def _answer_model(self, scope, receive, path, method):
        found = _MODEL.fullmatch(path)
        rest = found and found["rest"]
        wanted = "POST" if rest and rest.startswith(":") else "GET"
        if not found or method != wanted:
            raise Rejection(400, f"Malformed request: {_shown(method)} {_shown(path)}")
        version = self._version(found)
        if rest is None:
            return 200, _JSON, _json(self._model.states(version)), []
        if rest == ":predict":
            return 200, _JSON, await self._predict(scope, receive, version), []
        self._model.check_version(version)
        if rest != "/metadata":
            raise Rejection(400, f"No signature for {rest[1:]}: only predict is served")
        return 200, _JSON, _json(self._metadata()), []

    def _version(self, found):
        name = urllib.parse.unquote(found["name"])
        if name != self._model.name:
            raise Rejection(404, f"Servable not found for request: Latest({_shown(name)})")
        if found["label"] not in (None, _STABLE):
            raise Rejection(404, f"Unrecognized servable version label: {_shown(found['label'])}")
        return int(found["version"]) if found["version"] else None

    async def _predict(self, scope, receive, version):
        try:
            _check_content(scope)
            body = await self._body(scope, receive)
            started = time.monotonic()
            self._model.check_version(version)
            options = self._options
            signatures = self._model.signatures
            request = parse_predict(body, signatures, options.max_sentences, options.max_text_bytes)
            prediction = self._model.predict(request.signature, request.columns, request.count)
            outputs = await _unless_gone(prediction, receive)
            answer = await self._format(outputs, request.by_row)
        except Rejection as rejection:
            self._metrics.rejected(rejection)
            raise
        self._metrics.answered(time.monotonic() - started)
        return answer

    async def _format(self, outputs, by_row):
        values = outputs, by_row, self._options.max_answer_bytes
        if sum(getattr(each, "size", 0) for each in outputs.values()) <= _INLINE_NUMBERS:
            return format_predict(*values)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._encoder, format_predict, *values)

    def _check_host(self, host):
        """Keeps a web page whose name was made to mean this machine from asking (DNS rebinding)."""
        # Every browser sends one, and to a numeric address nobody's name can lead.
        if self._hosts is None or not host:
            return
        name = _host_name(host)
        if name not in self._hosts and _address(name) is None:
            rejection = Rejection(
                403,
                f"The host {_shown(host)} is none of this server's; --allowed-hosts adds names",
                "host",
            )
            self._metrics.rejected(rejection)
            raise rejection

    async def _body(self, scope, receive):
        most = self._options.max_body_bytes
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > most:
            raise Rejection(413, f"At most {most} bytes a request. Received: {int(announced)}")
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._options.read_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _GoneError
                    parts.append(message["body"])
                    size += len(message["body"])
                    if size > most:
                        raise Rejection(413, f"At most {most} bytes a request")
                    if not message["more_body"]:
                        return b"".join(parts)
        except TimeoutError:
            raise Rejection(
                408, f"The request did not arrive within {self._options.read_timeout} seconds"
            ) from None

    def _metadata(self):
        model = self._model
        name, version = model.name, str(model.number)
        definitions = {"signature_def": metadata(model.signatures)}
        return {
            "model_spec": {"name": name, "signature_name": "", "version": version},
            "metadata": {"signature_def": definitions},
        }

    def _index(self):
        # In JSON a `<` can only stand in a string, where this means the same.
        name = json.dumps(self._model.name).replace("<", "\\u003c")
        page = self._page.replace('"MODEL_NAME"', name)
        return 200, b"text/html; charset=utf-8", page.encode("utf-8"), _PAGE_HEADERS

    def _health(self):
        return 200, _TEXT, b"ok\n", []

    def _readiness(self):
        if self._model.number is None or not self.replicas:
            raise Rejection(503, "No replica runs")
        return 200, _TEXT, b"ready\n", []

    def _exposition(self):
        model = self._model
        text = self._metrics.exposition(model.waiting, model.number or 0, self.replicas)
        return 200, self._metrics.content_type.encode(), text, []


def _header(scope, name):
    """A header's value, "" if there is none; of several the values with commas between them."""
    values = [value for key, value in scope["headers"] if key == name]
    return b",".join(values).decode("latin-1").strip()


def _host_name(host):
    """The name in `name:port`, or None."""
    try:
        return (urllib.parse.urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return None


def _address(name):
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _allowed_hosts(options):
    """The names that a server may be asked by, None for any."""
    more = {each.strip().lower() for each in (options.allowed_hosts or "").split(",")} - {""}
    address = _address(options.host)
    is_local = options.host == "localhost" or (address is not None and address.is_loopback)
    if "*" in more or not (more or is_local):
        return None
    return {"localhost", options.host.lower(), *more}


def _check_content(scope):
    """Raises `Rejection` for a POST that a page of another site has its visitor's browser send.

    A browser asks nobody before it sends a form or plain text, but says whose page it was.
    """
    site, origin = _header(scope, b"sec-fetch-site"), _header(scope, b"origin")
    own = f"//{_header(scope, b'host')}"
    # Behind a proxy the host may be another, but then a browser sends the first of them.
    if site not in ("", "same-origin", "none") or (
        not site and origin and origin.partition(":")[2] != own
    ):
        raise Rejection(403, "Sent by a page of another site", "origin")
    content_type = _header(scope, b"content-type")
    if content_type.partition(";")[0].strip().lower() not in ("", "application/json", _FORM):
        raise Rejection(
            415,
            f"Expected content-type: application/json, none, or {_FORM} as `curl -d` sends it. "
            f"Received: {_shown(content_type)}",
        )


class _GoneError(Exception):
    """The client has closed its connection: nobody waits for an answer."""


async def _unless_gone(prediction, receive):
    """The result of a coroutine, which is cancelled if the client goes away."""
    task = asyncio.ensure_future(prediction)
    gone = asyncio.ensure_future(receive())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _GoneError
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


def _json(value):
    return json.dumps(value, indent=1).encode("utf-8")


def _error(message):
    return json.dumps({"error": message}).encode("utf-8")


def _shown(text):
    return text if len(text) <= 100 else text[:97] + "..."
