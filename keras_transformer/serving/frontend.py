"""The front end: a deployment that speaks HTTP and makes batches for the replicas."""

import asyncio
import functools
import importlib.resources
import json
import logging
import time
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.util import metrics
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from keras_transformer.serving.batcher import Batcher
from keras_transformer.serving.options import ServerOptions
from keras_transformer.serving.protocol import (
    Rejection,
    check_host,
    check_post,
    format_predict,
    parse_predict,
    shortened,
)
from keras_transformer.serving.replica import PER_BATCH

_logger = logging.getLogger("ray.serve")
# Label that a client may use for the version that answers.
_STABLE = "stable"
# The page is one file: it may load nothing else, whatever a translation contains.
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
}
_SECONDS = [0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 3, 5, 10, 30, 60]
_SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
# Pause between two looks at the replicas, and age at which the last answer of one is stale.
_LOOK_SECONDS, _STALE_SECONDS = 0.5, 5.0


class _SameSite:
    """Middleware: keeps pages of other sites from using a server through a visitor's browser."""

    def __init__(self, app):
        self._app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        request = Request(scope)
        try:
            frontend = _frontend()
            check_host(",".join(request.headers.getlist("host")), frontend.hosts)
            if request.method == "POST":
                check_post(request.headers)
        except Rejection as rejection:
            frontend.count(rejection)
            await _error(rejection)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _error(rejection):
    headers = {"retry-after": "1"} if rejection.status in (429, 503) else None
    return JSONResponse({"error": rejection.message}, rejection.status, headers)


def _frontend() -> Any:
    return serve.get_replica_context().servable_object


def _answers(function):
    """Turns a method of `Frontend` into an endpoint of Starlette, with errors as JSON."""

    @functools.wraps(function)
    async def endpoint(request):
        frontend = _frontend()
        try:
            return await function(frontend, request)
        except Rejection as rejection:
            frontend.count(rejection)
            return _error(rejection)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:
            _logger.exception("unexpected error")
            failure = Rejection(500, "Internal error", "internal")
            frontend.count(failure)
            return _error(failure)

    return endpoint


async def _no_such_address(request, error):
    method, path = shortened(request.method, 100), shortened(request.url.path, 100)
    if path.startswith("/v1/"):  # As TensorFlow Serving says of both.
        return _error(Rejection(400, f"Malformed request: {method} {path}"))
    if error.status_code == 405:
        return _error(Rejection(405, f"Method not allowed: {method} {path}"))
    return _error(Rejection(404, f"Not found: {path}"))


async def _read(request, options):
    """Returns a request's body, of `max_body_bytes` at most."""
    most = options.max_body_bytes
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > most:
        raise Rejection(413, f"At most {most} bytes a request. Received: {int(announced)}")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise Rejection(413, f"At most {most} bytes a request")
    return bytes(body)


class _Api:
    """Addresses of the server; `Frontend` is Ray's deployment of it.

    Args:
        replicas: Handle of the deployment `Replica`.
        name: The model's name in the addresses.
        options: Options of the server.

    Attributes:
        hosts: Names that may stand in the Host header, None for any.
    """

    # Ray awaits it, in the loop of the requests.
    async def __init__(  # type: ignore[misc]
        self, replicas: DeploymentHandle, name: str, options: ServerOptions
    ):
        self._replicas = replicas
        self._name = name
        self._options = options
        more = {each.strip().lower() for each in (options.allowed_hosts or "").split(",")} - {""}
        self.hosts = None if "*" in more else {"localhost", *more}
        self._page = importlib.resources.files(__package__).joinpath("page.html").read_text("utf-8")
        self._states: dict[str, list[str]] = {}
        self._model: dict[str, Any] | None = None  # of `Replica.describe`
        self._seen = 0.0
        self._draining = False
        self._requests = _metric(metrics.Counter, "requests", "Predictions.", "status")
        self._rejections = _metric(metrics.Counter, "rejections", "Without a result.", "reason")
        self._latency = _metric(
            metrics.Histogram, "request_seconds", "Of answers.", boundaries=_SECONDS
        )
        self._sizes = _metric(
            metrics.Histogram,
            "batch_sentences",
            "Sentences of a batch.",
            "signature",
            boundaries=_SIZES,
        )
        self._batch_seconds = _metric(
            metrics.Histogram, "batch_seconds", "Time of a batch.", "signature", boundaries=_SECONDS
        )
        self._waiting = _metric(metrics.Gauge, "waiting_sentences", "Sentences that wait.")
        self._number = _metric(metrics.Gauge, "model_version", "Version that answers.")
        self._batcher = Batcher(
            self._run,
            options.max_batch_size,
            options.batch_wait_ms / 1000,
            options.max_queue,
            options.max_answer_bytes,
            self._on_batch,
        )
        self._application = serve.get_replica_context().app_name
        # Before requests come: a front end that replaces another refuses none of them.
        while self._model is None:
            await self._look()
        self._looking = asyncio.create_task(self._look_again())

    def reconfigure(self, states: dict[str, list[str]]) -> None:
        """Takes state and message of other versions, by number, for the status."""
        self._states = states

    async def drain(self) -> tuple[str, int]:
        """Refuses further requests; returns this process's name and how many wait for answers."""
        self._draining = True
        return serve.get_replica_context().replica_tag, self._batcher.unfinished

    def count(self, rejection: Rejection) -> None:
        """Counts a rejection."""
        self._requests.inc(tags={"status": str(rejection.status)})
        self._rejections.inc(tags={"reason": rejection.reason})

    async def _look_again(self):
        while True:
            await self._look()
            self._waiting.set(self._batcher.waiting)
            self._number.set(self._model["number"])

    async def _look(self):
        """Looks at the replicas: version, signatures, how many run; then waits half a second."""
        try:
            async with asyncio.timeout(_STALE_SECONDS):
                status = await asyncio.to_thread(serve.status)
                application = status.applications[self._application]
                states = application.deployments["Replica"].replica_states
                self._batcher.slots = self._options.threads * states.get("RUNNING", 0)
                self._batcher.dispatch()
                started = time.monotonic()
                self._model = await self._replicas.describe.remote()
                self._seen = 0.0 if self._model["hung"] else started
        except Exception as error:
            _logger.debug("no replica answers: %r", error)
        await asyncio.sleep(_LOOK_SECONDS)

    async def _run(self, key, columns):
        """Runs one batch; see `Replica.run`."""
        name, *shared = key
        columns |= {option: [value] for option, value in shared}
        # Longer than a replica itself needs to see that a batch has hung.
        seconds = self._options.batch_timeout + 30
        try:
            async with asyncio.timeout(seconds):
                result = await self._replicas.run.remote(name, columns)
            if "traceback" in result:
                _logger.error("unexpected error in a replica:\n%s", result["traceback"])
            if getattr(result.get("error"), "reason", "") == "hung":
                self._seen = 0.0  # Not ready until a replica says that it is well.
            return result
        except TimeoutError:
            raise Rejection(504, f"No answer within {seconds:g} seconds", "hung") from None
        # A batch is not sent a second time: a text that ends a process would end the next.
        except (RayError, RayServeException) as error:
            raise Rejection(
                503,
                "The process that held this request ended before it answered: send it again "
                f"({type(error).__name__})",
                "replica",
            ) from None

    def _on_batch(self, signature, sentences, seconds):
        self._sizes.observe(sentences, {"signature": signature})
        self._batch_seconds.observe(seconds, {"signature": signature})

    def _current(self):
        if self._model is None:
            raise Rejection(503, "No replica runs")
        return self._model

    def _check_version(self, request):
        """Returns the number that an address names, None for the version that answers."""
        name = request.path_params["name"]
        label = request.path_params.get("label", _STABLE)
        if ":" in name:  # A method of POST alone.
            path = shortened(request.url.path, 100)
            raise Rejection(400, f"Malformed request: {request.method} {path}")
        if name != self._name:
            name = shortened(name, 100)
            raise Rejection(404, f"Servable not found for request: Latest({name})")
        if label != _STABLE:
            label = shortened(label, 100)
            raise Rejection(404, f"Unrecognized servable version label: {label}")
        return request.path_params.get("version")

    def _check_answers(self, request):
        """Raises `Rejection` unless the address names the version that answers."""
        number = self._check_version(request)
        if number not in (None, self._current()["number"]):
            raise Rejection(
                404, f"Servable not found for request: Specific({self._name}, {number})"
            )

    async def index(self, request: Request) -> Response:
        """Answers with the page."""
        # In JSON a `<` can only stand in a string, where this means the same.
        name = json.dumps(self._name).replace("<", "\\u003c")
        return HTMLResponse(self._page.replace('"MODEL_NAME"', name), headers=_PAGE_HEADERS)

    async def health(self, request: Request) -> Response:
        """Answers while this process lives."""
        return PlainTextResponse("ok\n")

    async def readiness(self, request: Request) -> Response:
        """Answers 200 while a replica answers whose batches have not hung."""
        stale = time.monotonic() - self._seen > 2 * _STALE_SECONDS
        if stale or self._draining or not self._batcher.slots:
            raise Rejection(503, "No replica runs")
        return PlainTextResponse("ready\n")

    async def status(self, request: Request) -> Response:
        """Answers with the states of all versions, or of one, in TensorFlow Serving's form."""
        number = self._check_version(request)
        states = {int(key): value for key, value in self._states.items()}
        if self._model is not None:
            message = states.get(self._model["number"], ["", ""])[1]
            states[self._model["number"]] = ["AVAILABLE", message]
        if number is not None and number not in states:
            raise Rejection(404, f"Could not find version {number} of model {self._name}")
        found = []
        for each in sorted(states, reverse=True) if number is None else [number]:
            state, message = states[each]
            code = "INVALID_ARGUMENT" if message else "OK"
            status = {"error_code": code, "error_message": message}
            found.append({"version": str(each), "state": state, "status": status})
        return JSONResponse({"model_version_status": found})

    async def metadata(self, request: Request) -> Response:
        """Answers with the signatures."""
        self._check_answers(request)
        model = self._current()
        spec = {"name": self._name, "signature_name": "", "version": str(model["number"])}
        definitions = {name: each.definition() for name, each in model["signatures"].items()}
        metadata = {"signature_def": {"signature_def": definitions}}
        return JSONResponse({"model_spec": spec, "metadata": metadata})

    async def other_method(self, request: Request) -> Response:
        """Refuses `:classify` and `:regress`."""
        method = request.path_params["method"]
        if method not in ("classify", "regress"):
            return await _no_such_address(request, HTTPException(404))
        self._check_answers(request)
        raise Rejection(400, f"No signature for {method}: only predict is served")

    async def predict(self, request: Request) -> Response:
        """Answers with translations."""
        options = self._options
        body = await _read(request, options)
        started = time.monotonic()
        if self._draining:
            raise Rejection(503, "The server stops")
        self._check_answers(request)
        signatures = self._current()["signatures"]
        asked = parse_predict(body, signatures, options.max_sentences, options.max_text_bytes)
        shared = [name for name in PER_BATCH if name in asked.columns]
        own = [name for name in asked.columns if name not in shared]
        rows = [
            (
                (asked.signature, *((name, asked.columns[name][place]) for name in shared)),
                {name: asked.columns[name][place] for name in own},
            )
            for place in range(asked.count)
        ]
        try:
            async with asyncio.timeout(options.request_timeout):
                found = await self._batcher.submit(rows)
        except TimeoutError:
            message = f"No answer within {options.request_timeout:g} seconds"
            raise Rejection(504, message, "timeout") from None
        signature = signatures[asked.signature]
        answer = format_predict(found, signature, asked.by_row, options.max_answer_bytes)
        self._requests.inc(tags={"status": "200"})
        self._latency.observe(time.monotonic() - started)
        return Response(answer, media_type="application/json")


def _metric(kind, name, meaning, *tags, **boundaries):
    return kind(f"keras_transformer_{name}", meaning, tag_keys=tags, **boundaries)


def _http() -> Starlette:
    routes = [
        Route("/", _answers(_Api.index)),
        Route("/healthz", _answers(_Api.health)),
        Route("/readyz", _answers(_Api.readiness)),
    ]
    for place in ("", "/versions/{version:int}", "/labels/{label}"):
        path = "/v1/models/{name}" + place
        routes += [
            Route(f"{path}:predict", _answers(_Api.predict), methods=["POST"]),
            Route(f"{path}:{{method}}", _answers(_Api.other_method), methods=["POST"]),
            Route(f"{path}/metadata", _answers(_Api.metadata)),
            Route(path, _answers(_Api.status)),
        ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(_SameSite)],
        exception_handlers={HTTPException: _no_such_address},
    )
    app.router.redirect_slashes = False
    return app


Frontend: Any = serve.deployment(name="Frontend", max_surge_percent=100)(
    serve.ingress(_http())(_Api)
)
