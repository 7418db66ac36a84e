"""The addresses of a server: a Starlette application over a `ServedModel`."""

import asyncio
import concurrent.futures
import functools
import importlib.resources
import ipaddress
import json
import time
import urllib.parse

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from keras_transformer.serving.model import ServedModel
from keras_transformer.serving.options import ServerOptions
from keras_transformer.serving.protocol import format_predict, parse_predict, shortened
from keras_transformer.serving.reporting import Metrics, Rejection, say_unexpected

# The label that a client may use for "whichever version answers".
_STABLE = "stable"
# What `curl -d` says of any body; together with no content type at all.
_FORM = "application/x-www-form-urlencoded"
# More numbers than these are written as JSON in a thread: these take about a millisecond.
_INLINE_NUMBERS = 1000
# The page is all in one file: nothing else is loaded, whatever a translation may contain.
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
}


class _Name(Convertor):
    regex = "[^/:]+"
    convert = to_string = staticmethod(str)


class _Version(Convertor):
    regex = r"\d{1,18}"
    convert, to_string = staticmethod(int), staticmethod(str)


register_url_convertor("name", _Name())
register_url_convertor("version", _Version())


class App:
    """An ASGI application that answers what a client asks of `model`."""

    def __init__(self, model: ServedModel, options: ServerOptions, metrics: Metrics):
        self._model = model
        self._options = options
        self._metrics = metrics
        self._hosts = _allowed_hosts(options)
        # One thread: several would keep each other, and the event loop, from running.
        self._encoder = concurrent.futures.ThreadPoolExecutor(1, "encoder")
        page = importlib.resources.files(__package__).joinpath("page.html")
        self._page = page.read_text(encoding="utf-8")
        answers = {
            "/": self._index,
            "/healthz": self._health,
            "/readyz": self._readiness,
            "/metrics": self._exposition,
            "/monitoring/prometheus/metrics": self._exposition,
        }
        routes = [Route(path, answer) for path, answer in answers.items()]
        for place in ("", "/versions/{version:version}", "/labels/{label:name}"):
            path = "/v1/models/{model:name}" + place
            routes += [
                Route(path, self._status),
                Route(f"{path}/metadata", self._metadata),
                Route(f"{path}:predict", self._predict, methods=["POST"]),
                Route(f"{path}:{{method:name}}", self._other_method, methods=["POST"]),
            ]
        errors = {
            Rejection: self._rejection,
            HTTPException: self._no_such_address,
            ClientDisconnect: self._nothing,
            Exception: self._unexpected,
        }
        self._app = Starlette(routes=routes, exception_handlers=errors)
        self._app.router.redirect_slashes = False

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        rejection = self._check_host(",".join(Request(scope).headers.getlist("host")))
        await (_error(rejection) if rejection else self._app)(scope, receive, send)

    def _check_host(self, host):
        """Keeps a web page whose name was made to mean this machine from asking (DNS rebinding)."""
        # Every browser sends one, and to a numeric address nobody's name can lead: Starlette's
        # TrustedHostMiddleware would refuse both.
        name = _host_name(host)
        if self._hosts is None or not host or name in self._hosts or _address(name):
            return None
        message = (
            f"The host {shortened(host, 100)} is none of this server's; --allowed-hosts adds names"
        )
        rejection = Rejection(403, message, "host")
        self._metrics.rejected(rejection)
        return rejection

    async def _rejection(self, request, rejection):
        return _error(rejection)

    async def _unexpected(self, request, error):
        """A fault of this package: whoever runs the server must know, a client need not."""
        say_unexpected(error)
        rejection = Rejection(500, "Internal error", "internal")
        self._metrics.rejected(rejection)
        return _error(rejection)

    async def _nothing(self, request, error):
        """The client has closed its connection: nobody waits for an answer."""

    async def _no_such_address(self, request, error):
        method, path = shortened(request.method, 100), shortened(request.scope["path"], 100)
        if request.scope["path"].startswith("/v1/"):  # As TensorFlow Serving says of both.
            return _error(Rejection(400, f"Malformed request: {method} {path}"))
        if error.status_code == 405:
            return _error(Rejection(405, f"Method not allowed: {method} {path}"))
        return _error(Rejection(404, f"Not found: {path}"))

    async def _index(self, request):
        # In JSON a `<` can only stand in a string, where this means the same.
        name = json.dumps(self._model.name).replace("<", "\\u003c")
        return HTMLResponse(self._page.replace('"MODEL_NAME"', name), headers=_PAGE_HEADERS)

    async def _health(self, request):
        return PlainTextResponse("ok\n")

    async def _readiness(self, request):
        if self._model.number is None or not self._model.replicas:
            raise Rejection(503, "No replica runs")
        return PlainTextResponse("ready\n")

    async def _exposition(self, request):
        model = self._model
        text = self._metrics.exposition(model.waiting, model.number or 0, model.replicas)
        return Response(text, headers={"content-type": self._metrics.content_type})

    def _version(self, request):
        """The version that an address names, None for whichever answers."""
        name = request.path_params["model"]
        label = request.path_params.get("label", _STABLE)
        if name != self._model.name:
            name = shortened(name, 100)
            raise Rejection(404, f"Servable not found for request: Latest({name})")
        if label != _STABLE:
            label = shortened(label, 100)
            raise Rejection(404, f"Unrecognized servable version label: {label}")
        return request.path_params.get("version")

    async def _status(self, request):
        return _json(self._model.states(self._version(request)))

    async def _metadata(self, request):
        model = self._model
        model.check_version(self._version(request))
        spec = {"name": model.name, "signature_name": "", "version": str(model.number)}
        definitions = {name: each.definition for name, each in model.signatures.items()}
        metadata = {"signature_def": {"signature_def": definitions}}
        return _json({"model_spec": spec, "metadata": metadata})

    async def _other_method(self, request):
        method = request.path_params["method"]
        if method not in ("classify", "regress"):
            raise HTTPException(404)
        self._model.check_version(self._version(request))
        raise Rejection(400, f"No signature for {method}: only predict is served")

    async def _predict(self, request):
        model, options = self._model, self._options
        version = self._version(request)
        try:
            _check_post(request)
            body = await self._body(request)
            started = time.monotonic()
            model.check_version(version)
            asked = parse_predict(
                body, model.signatures, options.max_sentences, options.max_text_bytes
            )
            prediction = model.predict(asked.signature, asked.columns, asked.count)
            outputs = await _unless_gone(prediction, request.receive)
            values = outputs, asked.by_row, options.max_answer_bytes
            write = functools.partial(format_predict, *values)
            if sum(getattr(each, "size", 0) for each in outputs.values()) <= _INLINE_NUMBERS:
                answer = write()
            else:
                answer = await asyncio.get_running_loop().run_in_executor(self._encoder, write)
        except Rejection as rejection:
            self._metrics.rejected(rejection)
            raise
        self._metrics.answered(time.monotonic() - started)
        return Response(answer, media_type="application/json")

    async def _body(self, request):
        most, seconds = self._options.max_body_bytes, self._options.read_timeout
        announced = request.headers.get("content-length", "0")
        if announced.isdigit() and int(announced) > most:
            raise Rejection(413, f"At most {most} bytes a request. Received: {int(announced)}")
        parts, size = [], 0
        try:
            async with asyncio.timeout(seconds):
                async for part in request.stream():
                    parts.append(part)
                    size += len(part)
                    if size > most:
                        raise Rejection(413, f"At most {most} bytes a request")
        except TimeoutError:
            message = f"The request did not arrive within {seconds} seconds"
            raise Rejection(408, message) from None
        return b"".join(parts)


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


def _check_post(request):
    """Raises `Rejection` for a POST that a page of another site has its visitor's browser send.

    A browser asks nobody before it sends a form or plain text, but says whose page it was.
    """
    headers = request.headers
    site, origin = headers.get("sec-fetch-site", ""), headers.get("origin", "")
    own = f"//{headers.get('host', '')}"
    # Behind a proxy the host may be another, but then a browser sends the first of them.
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


async def _unless_gone(prediction, receive):
    """The result of a coroutine, which is cancelled if the client goes away."""
    task = asyncio.ensure_future(prediction)
    gone = asyncio.ensure_future(receive())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


def _json(value):
    return Response(json.dumps(value, indent=1), media_type="application/json")


def _error(rejection):
    return Response(
        json.dumps({"error": rejection.message}),
        rejection.status,
        {"retry-after": "1"} if rejection.status in (429, 503) else None,
        "application/json",
    )
