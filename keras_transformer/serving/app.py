"""Application of Ray Serve: HTTP, batches and an export in a process that Ray can replace."""

import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import importlib.resources
import json
import os
import re
import threading
import time
from typing import Any

from ray import serve
from ray.serve.config import BackpressureConfig
from ray.util import metrics
from starlette.applications import Starlette
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
)
from starlette.routing import Route

from keras_transformer.errors import InputError
from keras_transformer.reading import digest_of
from keras_transformer.serving.batcher import Batcher
from keras_transformer.serving.guard import RETRY_SECONDS
from keras_transformer.serving.libretranslate import LibreTranslate, fields_of
from keras_transformer.serving.model import Model, Row, count_sentences
from keras_transformer.serving.protocol import (
    Parser,
    Rejection,
    beyond,
    check_content_type,
    check_same_site,
    definition,
    format_predict,
    shown,
    too_many_sentences,
)
from keras_transformer.serving.server_options import (
    ServedExport,
    ServerOptions,
    files_of,
    served_export,
)
from keras_transformer.serving.translated_files import TranslatedFiles
from keras_transformer.translation import Translation

# Label that a client may use for the version that answers.
_STABLE = "stable"
# The page is one file, and may load nothing else, whatever a translation contains.
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
}
_LONG_BYTES = 4096  # of a request that is read in a thread
_FULL_SECONDS = 1  # after which clients try again when all replicas are full
_MAX_REFUSED = 1000  # requests at the same time before the model is there
_WAITING = 32  # requests that may wait in Ray's proxy, which asks replicas again and again
_METRIC = "keras_transformer_"
_SECONDS = [0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 3, 5, 10, 30, 60]
_SIZES = [1.0, 2, 4, 8, 16, 32, 64, 128, 256]


class _Metrics:
    """Metrics of a replica.

    Attributes:
        sizes: Number of sentences of each batch, by its signature.
        seconds: Duration of each batch, by its signature.
        waiting: Number of sentences that wait for a batch.
        version: Version of the model.
    """

    def __init__(self):
        tags: dict[str, Any] = {"tag_keys": ("signature",)}
        self.sizes = metrics.Histogram(f"{_METRIC}batch_sentences", boundaries=_SIZES, **tags)
        self.seconds = metrics.Histogram(f"{_METRIC}batch_seconds", boundaries=_SECONDS, **tags)
        self.waiting = metrics.Gauge(f"{_METRIC}waiting_sentences")
        self.version = metrics.Gauge(f"{_METRIC}model_version")


class _FromThread:
    """Submits rows to a batcher from a thread, until the request has ended.

    Args:
        batcher: The batcher, in the loop of this thread.
        max_sentences: Maximum number of sentences of the request.
    """

    def __init__(self, batcher: Batcher, max_sentences: int):
        self._batcher, self._limit = batcher, max_sentences
        self._loop, self._lock = asyncio.get_running_loop(), threading.Lock()
        self._count, self._has_ended = 0, False
        self._running: concurrent.futures.Future | None = None

    def __call__(self, rows: list[Row]) -> list[Translation]:
        self._count += count_sentences(rows)
        if self._count > self._limit:
            raise too_many_sentences(self._count, self._limit, has_blocks=False)
        with self._lock:
            if self._has_ended:
                raise Rejection(504, "The request has ended")
            submitted = self._batcher.submit(rows)
            self._running = asyncio.run_coroutine_threadsafe(submitted, self._loop)
        return self._running.result()

    def end(self) -> None:
        """Cancels rows that still wait."""
        with self._lock:
            self._has_ended = True
            if self._running is not None:
                self._running.cancel()


class _Api:
    """Replica of a model; `Server` is its deployment in Ray.

    Args:
        export: The export, which has the same path on all nodes.
        digest: `reading.digest_of` the export when it was deployed. A replica does not start with
            other files.
        options: Options of the server.
        progress_file: Path of a file on this machine that the replica appends its progress to.
        files_folder: Folder on this machine for translated files, which all replicas share; None
            for a folder of this replica.

    Raises:
        InputError: The export is damaged or has changed, or cannot do `options.markup`.
    """

    def __init__(
        self,
        export: ServedExport,
        digest: str,
        options: ServerOptions,
        progress_file: str | None = None,
        files_folder: str | None = None,
    ):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        from keras_transformer.compilation_cache import enable_compilation_cache

        enable_compilation_cache()
        self._number, self._name, self._options = export.number, export.name, options
        tell = functools.partial(_append_line, progress_file)
        self._model = _load_model(export, digest, options, tell)
        self.hosts = _own_hosts(options.allowed_hosts)
        self._page = _page_of(export.name)
        limits = options.max_sentences, options.max_text_characters
        self._parser = Parser(self._model.signatures, *limits, self._model.default_options)
        self._libretranslate = LibreTranslate(self._model, options)
        self._pool = concurrent.futures.ThreadPoolExecutor(options.threads)
        self._files = TranslatedFiles(files_folder)
        self._readers_of_files = concurrent.futures.ThreadPoolExecutor(options.threads)
        self._readers = concurrent.futures.ThreadPoolExecutor()
        self._watches: set[asyncio.Task] = set()
        # A SavedModel would divide a larger batch into chunks.
        largest = self._model.engine.manifest.get("largest_chunk", options.max_batch_size)
        largest = min(largest, options.max_batch_size)
        wait_seconds = options.batch_wait_ms / 1000
        self._batcher = Batcher(self._run, options.threads, largest, wait_seconds)
        self._hung: Rejection | None = None
        self._held = 0  # requests for translations
        self._metrics = _Metrics()
        # A MiB of lists in JSON starts the garbage collector, which must not scan the model.
        gc.freeze()

    def check_health(self) -> None:
        """Raises if a thread has hung, so that Ray Serve starts another replica."""
        # Each second, because Ray forgets a value that is not told again.
        self._metrics.version.set(self._number)
        self._metrics.waiting.set(self._batcher.waiting)
        self._files.remove_old()
        if self._hung is not None:
            raise RuntimeError(str(self._hung))

    async def _run(self, key, rows, is_wanted):
        """Runs one batch in a thread."""
        name, *_ = key
        started = time.monotonic()
        loop = asyncio.get_running_loop()
        task = loop.run_in_executor(self._pool, self._model.run, key, rows, is_wanted)
        ended_tasks, _ = await asyncio.wait({task}, timeout=self._options.batch_timeout)
        if not ended_tasks:
            message = f"A batch has not ended within {self._options.batch_timeout:g} seconds"
            self._hang(message)
            raise Rejection(504, message)
        self._metrics.sizes.observe(len(rows), {"signature": name})
        self._metrics.seconds.observe(time.monotonic() - started, {"signature": name})
        return task.result()

    def _hang(self, message):
        """Refuses all requests from now on, because a thread cannot be stopped."""
        self._hung = Rejection(503, f"{message}: its process is replaced; send this again")
        self._batcher.reject_all(self._hung)

    async def _in_thread(self, function, *arguments, pool=None):
        """Calls a function in a thread, which has hung if it does not end after its request."""
        future = (pool or self._readers).submit(function, *arguments)
        try:
            return await asyncio.wrap_future(future)
        finally:
            if future.running():
                self._watches.add(watch := asyncio.create_task(self._watch(future)))
                watch.add_done_callback(self._watches.discard)

    async def _watch(self, future):
        seconds = self._options.batch_timeout
        ended, _ = await asyncio.wait({task := asyncio.wrap_future(future)}, timeout=seconds)
        if ended:
            task.exception()  # Nobody waits for it any more.
        else:
            self._hang(f"A thread has not ended within {seconds:g} seconds after its request")

    async def _call(self, is_slow, function, *arguments):
        """Calls a function, in a thread if it is slow, so that other clients do not wait."""
        if is_slow:
            return await self._in_thread(function, *arguments)
        return function(*arguments)

    def _check_version(self, request):
        """Raises `Rejection` (404) for another model or another version."""
        name, number = request.path_params["name"], request.path_params.get("version")
        label = request.path_params.get("label", _STABLE)
        if name != self._name:
            unknown = f"Servable not found for request: Latest({shown(name)})"  # as TF Serving's
            raise Rejection(404, f"{unknown} This server has `{self._name}`.")
        if label != _STABLE:
            raise Rejection(404, f"Unrecognized servable version label: {shown(label)}")
        # As texts: a number of thousands of digits is none that Python converts.
        if number is not None and (number.lstrip("0") or "0") != str(self._number):
            version = f"Specific({self._name}, {number:.30})"
            raise Rejection(404, f"Servable not found for request: {version}")

    async def index(self, request: Request) -> Response:
        """Returns the page."""
        return HTMLResponse(self._page, headers=_PAGE_HEADERS)

    async def health(self, request: Request) -> Response:
        """Answers while this process lives."""
        return PlainTextResponse("ok\n")

    async def readiness(self, request: Request) -> Response:
        """Answers 200 unless a batch or another thread has hung."""
        if self._hung is not None:
            raise self._hung
        return PlainTextResponse("ready\n")

    async def status(self, request: Request) -> Response:
        """Returns the state of the served version, in TensorFlow Serving's format."""
        self._check_version(request)
        status = {"error_code": "OK", "error_message": ""}
        state = {"version": str(self._number), "state": "AVAILABLE", "status": status}
        return JSONResponse({"model_version_status": [state]})

    async def metadata(self, request: Request) -> Response:
        """Returns the signatures."""
        self._check_version(request)
        spec = {"name": self._name, "signature_name": "", "version": str(self._number)}
        signatures = self._model.signatures.items()
        definitions = {name: definition(signature) for name, signature in signatures}
        metadata = {"signature_def": {"signature_def": definitions}}
        return JSONResponse({"model_spec": spec, "metadata": metadata})

    async def predict(self, request: Request) -> Response:
        """Returns translations."""
        check_content_type(request.headers)
        body = await _body(request, self._options.max_body_bytes)
        self._check_version(request)
        is_long = len(body) > _LONG_BYTES
        prediction = await self._call(is_long, self._parser.parse, body)
        translations = await self._translations(prediction, is_long, 413)
        name = prediction.signature
        signature = self._model.signatures[name]
        is_long |= any(len(tensor.shape) > 1 for tensor in signature.outputs.values())
        results = await self._call(is_long, self._model.outputs, name, translations)
        limits = prediction.by_row, self._options.max_answer_bytes
        answer = await self._call(is_long, format_predict, results, signature, *limits)
        return Response(answer, media_type="application/json")

    @contextlib.asynccontextmanager
    async def holding(self):
        """Holds a request for its time at most; raises `Rejection` (503, 504).

        The time begins before the body is read, and the rest of the body is not read for a 503.
        """
        if self._held >= self._options.max_ongoing:
            raise Rejection(503, f"The server holds {self._held} requests: send this again")
        self._held += 1
        try:
            async with asyncio.timeout(self._options.request_timeout):
                yield
        except TimeoutError:
            rule = f"No answer within {self._options.request_timeout:g} seconds"
            raise beyond("request_timeout", rule, status=504) from None
        finally:
            self._held -= 1

    async def _translations(self, prediction, is_long, status):
        """Runs the sentences of a request in batches; returns the `Translation` of each text.

        Args:
            prediction: The request.
            is_long: Whether its texts are prepared in a thread.
            status: HTTP status for too many sentences.
        """
        if self._hung is not None:
            raise self._hung
        has_ended = threading.Event()

        def check():
            if has_ended.is_set():
                raise Rejection(504, "The request has ended")

        name, rows, options = prediction.signature, prediction.rows, dict(prediction.options)
        try:
            is_slow = is_long or "glossary" in options  # Terms are searched at each word.
            work = await self._call(is_slow, self._model.prepare, name, rows, options, check)
            count = count_sentences(work.rows)
            if count > (limit := self._options.max_sentences):
                raise too_many_sentences(count, limit, options.get("markup") == "html", status)
            translations = await self._batcher.submit(work.rows)
            return await self._call(is_long, work.after, translations)
        finally:
            has_ended.set()

    async def _fields(self, request, max_files=0):
        """Returns the parameters of a request of LibreTranslate's API, and whether it is long."""
        body = await _body(request, self._options.max_body_bytes)
        query = request.url.query
        fields = fields_of(request.headers.get("content-type", ""), query, body, max_files)
        if is_long := len(body) + len(query) > _LONG_BYTES:
            return await self._in_thread(asyncio.run, fields), is_long
        return await fields, is_long

    async def translate(self, request: Request) -> Response:
        """Returns translations, as LibreTranslate."""
        fields, is_long = await self._fields(request)
        # The first detection reads a model.
        is_slow = is_long or fields.get("source") == "auto"
        read_request = await self._call(is_slow, self._libretranslate.read, fields)
        translations = await self._translations(read_request.prediction, is_long, 400)
        answer = await self._call(is_long, self._libretranslate.answer, read_request, translations)
        return Response(answer, media_type="application/json")

    async def translate_file(self, request: Request) -> Response:
        """Translates a file, and returns its address, as LibreTranslate."""
        url = _base_url(request)
        fields, _ = await self._fields(request, max_files=1)
        read_request = await self._in_thread(self._libretranslate.read_file, fields)
        submit = _FromThread(self._batcher, self._options.max_sentences)
        translator = self._model.translator(submit)
        translated_file = self._libretranslate.translated_file
        translate = functools.partial(translated_file, read_request, translator)
        try:
            content = await self._in_thread(translate, pool=self._readers_of_files)
        finally:
            submit.end()
        token = await self._in_thread(self._files.add, read_request.name, content)
        return JSONResponse({"translatedFileUrl": f"{url}download_file/{token}"})

    async def download_file(self, request: Request) -> Response:
        """Returns a translated file."""
        token = request.path_params["token"]
        if (path := self._files.path_of(token)) is None:
            raise Rejection(404, "There is no such file: it is kept for an hour")
        name = token.partition(".")[2]
        headers = {"x-content-type-options": "nosniff"}
        kind = "application/octet-stream"
        return FileResponse(path, headers=headers, media_type=kind, filename=name)

    async def detect(self, request: Request) -> Response:
        """Returns the most probable languages of a text, as LibreTranslate."""
        fields, _ = await self._fields(request)
        return JSONResponse(await self._in_thread(self._libretranslate.detect, fields))

    async def languages(self, request: Request) -> Response:
        """Returns the languages, as LibreTranslate."""
        return JSONResponse(self._libretranslate.languages())

    async def frontend_settings(self, request: Request) -> Response:
        """Returns limits and abilities, as LibreTranslate."""
        return JSONResponse(self._libretranslate.settings())

    async def libretranslate_health(self, request: Request) -> Response:
        """Answers while this process lives, as LibreTranslate."""
        return JSONResponse({"status": "ok"})

    async def disabled(self, request: Request) -> Response:
        """Refuses a service that LibreTranslate's protocol lets a server switch off."""
        raise Rejection(403, f"{request.url.path} is disabled on this server")


def _append_line(path, text):
    """Appends a line to the file of a replica's progress, if there is one."""
    if path is not None:
        # The file no longer exists when a later replica replaces a dead one.
        with contextlib.suppress(OSError), open(path, "a") as file:
            file.write(f"{text}\n")


def _load_model(export, digest, options, tell):
    """Loads and warms up a model; raises `InputError` if its files have changed."""
    tell("reading the model")
    model = Model(export.path, options.threads, options.markup, options.languages)
    # After loading, to detect files that change while they are loaded.
    if digest_of(export.folder, files_of(export.folder)) != digest:
        raise InputError(f"{export.path}: the files have changed since they were deployed.")
    model.warm_up(options, tell)
    return model


def _own_hosts(allowed_hosts):
    """Returns the names of hosts that requests may have; None for any name."""
    names = {name.strip().lower() for name in (allowed_hosts or "").split(",")} - {""}
    return None if "*" in names else {"localhost", *names}


def _page_of(model_name):
    """Returns the page of a model."""
    page = importlib.resources.files(__package__).joinpath("page.html").read_text("utf-8")
    # JSON has `<` only in strings, where `\u003c` means the same.
    return page.replace('"MODEL_NAME"', json.dumps(model_name).replace("<", "\\u003c"))


_FORWARDED = {"host": r"[\w.-]+(:\d{1,5})?|\[[\da-fA-F:.]+\](:\d{1,5})?", "proto": "https?"}


def _base_url(request):
    """Returns the address of the server, as its clients see it.

    Proxies in front may replace the host and the scheme. Each proxy adds a value. The proxy that a
    client sees has written the first value.

    Raises:
        Rejection: 400 for a header of another form.
    """
    url, values = request.base_url, {}
    for name, pattern in _FORWARDED.items():
        header = request.headers.get(f"x-forwarded-{name}", "")
        values[name] = header.partition(",")[0].strip()
        if header and not re.fullmatch(pattern, values[name], re.ASCII | re.IGNORECASE):
            rule = f"X-Forwarded-{name.title()} must begin with a valid value"
            raise Rejection(400, f"{rule}. Received: {shown(header)}")
    scheme = values["proto"].lower() or url.scheme
    return str(url.replace(netloc=values["host"] or url.netloc, scheme=scheme))


async def _body(request, max_bytes):
    """Returns a request's body, of at most `max_bytes` bytes."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise beyond("max_body_bytes", f"A request must have at most {max_bytes} bytes")
    return bytes(body)


def _route(path, answer, method="GET"):
    async def endpoint(request):
        server: Any = serve.get_replica_context().servable_object
        check_same_site(request.method, request.headers, server.hosts)
        if method == "GET":
            return await answer(server, request)
        async with server.holding():
            return await answer(server, request)

    return Route(path, endpoint, methods=[method])


async def _allow_post(request):
    return Response(headers={"allow": "OPTIONS, POST"})


async def _rejected(request, error):
    headers = {"retry-after": "1"} if error.status == 503 else None
    return JSONResponse({"error": str(error)}, error.status, headers)


async def _no_such_address(request, error):
    # For unknown endpoints below /v1/ TensorFlow Serving returns 400.
    status = 400 if request.url.path.startswith("/v1/") else error.status_code
    message = f"Malformed request: {shown(f'{request.method} {request.url.path}')}"
    return JSONResponse({"error": message}, status, error.headers)


async def _failed(request, error):
    return JSONResponse({"error": "The server has failed; its log says why"}, 500)


class _NameConvertor(StringConvertor):
    """A part of an endpoint before its method, such as `:predict`."""

    regex = "[^/:]+"


class _NumberConvertor(StringConvertor):
    """A number as its digits."""

    regex = "[0-9]+"


register_url_convertor("name", _NameConvertor())
register_url_convertor("number", _NumberConvertor())


def _http():
    routes = [
        _route("/", _Api.index),
        _route("/healthz", _Api.health),
        _route("/readyz", _Api.readiness),
    ]
    for index in ("", "/versions/{version:number}", "/labels/{label:name}"):
        path = "/v1/models/{name:name}" + index
        routes += [
            _route(f"{path}:predict", _Api.predict, "POST"),
            _route(f"{path}/metadata", _Api.metadata),
            _route(path, _Api.status),
        ]
    posts = {
        "/translate": _Api.translate,
        "/detect": _Api.detect,
        "/suggest": _Api.disabled,
        "/translate_file": _Api.translate_file,
    }
    for path, answer in posts.items():
        routes += [_route(path, answer, "POST"), Route(path, _allow_post, methods=["OPTIONS"])]
    routes += [
        _route("/languages", _Api.languages),
        _route("/download_file/{token}", _Api.download_file),
        _route("/frontend/settings", _Api.frontend_settings),
        _route("/health", _Api.libretranslate_health),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            Rejection: _rejected,
            HTTPException: _no_such_address,
            Exception: _failed,
        },
    )
    app.router.redirect_slashes = False
    return app


async def _alive(request):
    return PlainTextResponse("ok\n")


class _Waiting:
    """Answers 503 to everything except `/healthz`, before and after the model is there.

    Args:
        message: What clients are told.
    """

    def __init__(self, message: str):
        self.message = message


async def _refused(request):
    waiting: Any = serve.get_replica_context().servable_object
    error = f"{waiting.message}: send this again later"
    return JSONResponse({"error": error}, 503, {"retry-after": str(RETRY_SECONDS)})


def _deployment(app, answering):
    # Both deployments have one name: the model's replaces the waiting one.
    return serve.deployment(name="Server", max_surge_percent=100)(serve.ingress(app)(answering))


Server: Any = _deployment(_http(), _Api)
_METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]


def _waiting():
    any_path = Route("/{path:path}", _refused, methods=_METHODS)
    return Starlette(routes=[Route("/healthz", _alive), any_path])


Waiting: Any = _deployment(_waiting(), _Waiting)


def _limits(max_ongoing):
    """Returns options of a deployment whose replicas take some requests and refuse others."""
    return {
        "max_ongoing_requests": max_ongoing,
        "max_queued_requests": _WAITING,
        "backpressure_config": BackpressureConfig(retry_after_s=_FULL_SECONDS),
    }


def build_waiting(message: str) -> serve.Application:
    """Builds an application that answers 503 with a message.

    The application of `build` replaces it when it is ready, and is replaced by it at the end.
    """
    return Waiting.options(
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=1,
        **_limits(_MAX_REFUSED),
    ).bind(message)


def build(
    options: ServerOptions,
    progress_file: str | None = None,
    export: ServedExport | None = None,
    files_folder: str | None = None,
) -> serve.Application:
    """Builds the application.

    A later deployment under the same name, by `serve deploy`, starts new replicas next to the old
    ones. The old replicas answer until the new ones are warm, and also if these fail to start.

    Args:
        options: Options of the server.
        progress_file: Path of a file that replicas append their progress to, until they are ready.
        export: The export, by default `served_export(options)`.
        files_folder: Folder for translated files, which all replicas reach; by default each replica
            has a folder of its own.

    Raises:
        InputError: The export does not exist.
    """
    export = export or served_export(options)
    try:
        digest = digest_of(export.folder, files_of(export.folder))
    except OSError as error:
        raise InputError(f"{export.path}: cannot be read: {error.strerror}.") from None
    scaling: dict[str, Any] = {"num_replicas": options.replicas}
    if options.replicas == "auto":
        scaling["autoscaling_config"] = {
            "min_replicas": 1,
            "max_replicas": options.max_replicas,
            # More requests than full batches in all threads need another replica.
            "target_ongoing_requests": options.threads * options.max_batch_size,
        }
    deployment = Server.options(
        ray_actor_options={"num_cpus": options.replica_cpus},
        health_check_period_s=1,
        health_check_timeout_s=30,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=options.request_timeout + 5,
        max_constructor_retry_count=1,
        **_limits(options.max_ongoing + options.max_queue),
        **scaling,
    )
    return deployment.bind(export, digest, options, progress_file, files_folder)
