"""ASGI application: HTTP, batches and an export, in a process that its supervisor can replace."""

import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import importlib.resources
import itertools
import json
import os
import threading
import time
from collections.abc import Callable

import prometheus_client
import prometheus_client.multiprocess
from starlette.applications import Starlette
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from keras_transformer.engine.translation import Translation
from keras_transformer.extras.serving import deepl, libretranslate, protocol
from keras_transformer.extras.serving.batcher import Batcher
from keras_transformer.extras.serving.endpoints import (
    FAILED,
    LONG_BYTES,
    Endpoint,
    Rejection,
    beyond,
    body_of,
    check_same_site,
    fields_of,
    shown,
    too_many_sentences,
)
from keras_transformer.extras.serving.model import Model, Row, count_sentences
from keras_transformer.extras.serving.server_options import ServedExport, ServerOptions
from keras_transformer.extras.serving.translated_files import Documents, TranslatedFiles

# The page is one file, and may load nothing else, whatever a translation contains.
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
}
RETRY_SECONDS = 1
"""Seconds after which a client may send a refused request again."""
_END_SECONDS = 1  # in which the requests of a process that has hung get their answers
_SECONDS = [0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 3, 5, 10, 30, 60]
_SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256]


class _Metrics:
    """Metrics of all processes, which share the folder PROMETHEUS_MULTIPROC_DIR."""

    _start = "keras_transformer_"
    sizes = prometheus_client.Histogram(
        f"{_start}batch_sentences", "Sentences per batch", ["signature"], buckets=_SIZES
    )
    batches = prometheus_client.Histogram(
        f"{_start}batch_seconds", "Seconds per batch", ["signature"], buckets=_SECONDS
    )
    requests = prometheus_client.Histogram(
        f"{_start}request_seconds", "Seconds per request", ["route", "status"], buckets=_SECONDS
    )
    waiting = prometheus_client.Gauge(
        f"{_start}waiting_sentences",
        "Sentences that wait for a batch",
        multiprocess_mode="livesum",
    )
    version = prometheus_client.Gauge(
        f"{_start}model_version", "Version of the model", multiprocess_mode="livemax"
    )


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


class Api:
    """The endpoints of a model, which it loads.

    Args:
        export: The export.
        options: Options of the server.
        files_folder: Folder for translated files, which all processes share; None for a folder of
            this process.
        report: Function that is called with the progress of the start.

    Raises:
        InputError: The export is damaged, or cannot do `options.markup`.
    """

    def __init__(
        self,
        export: ServedExport,
        options: ServerOptions,
        files_folder: str | None = None,
        report: Callable[[str], None] = lambda text: None,
    ):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        from keras_transformer.base.compilation_cache import enable_compilation_cache

        enable_compilation_cache()
        self.number, self.name, self.options = export.number, export.name, options
        self.model = Model(export.path, options.threads, options.markup, options.languages)
        self.model.warm_up(options, report)
        self.hosts = _own_hosts(options.allowed_hosts)
        self._page = _page_of(export.name)
        limits = options.max_sentences, options.max_text_characters
        self.parser = protocol.Parser(self.model.signatures, *limits, self.model.default_options)
        self.libretranslate = libretranslate.LibreTranslate(self.model, options)
        self._pool = concurrent.futures.ThreadPoolExecutor(options.threads)
        self.deepl = deepl.DeepL(self.libretranslate, options.max_answer_bytes)
        self.files = TranslatedFiles(files_folder)
        self.documents = Documents(self.files, options.request_timeout)
        self._readers_of_files = concurrent.futures.ThreadPoolExecutor(options.threads)
        self._readers = concurrent.futures.ThreadPoolExecutor()
        self._tasks: set[asyncio.Task] = set()  # asyncio itself does not keep them
        # A SavedModel would divide a larger batch into chunks.
        largest = self.model.engine.manifest.get("largest_chunk", options.max_batch_size)
        largest = min(largest, options.max_batch_size)
        wait_seconds = options.batch_wait_ms / 1000
        self._batcher = Batcher(self._run, options.threads, largest, wait_seconds)
        self._hung: Rejection | None = None
        self._held = 0  # requests for translations
        _Metrics.version.set(self.number)
        # A MiB of lists in JSON starts the garbage collector, which must not scan the model.
        gc.freeze()

    async def _run(self, key, rows, is_wanted):
        """Runs one batch in a thread."""
        name, *_ = key
        started = time.monotonic()
        _Metrics.waiting.set(self._batcher.waiting)
        loop = asyncio.get_running_loop()
        task = loop.run_in_executor(self._pool, self.model.run, key, rows, is_wanted)
        ended_tasks, _ = await asyncio.wait({task}, timeout=self.options.batch_timeout)
        if not ended_tasks:
            message = f"A batch has not ended within {self.options.batch_timeout:g} seconds"
            self._hang(message)
            raise Rejection(504, message)
        _Metrics.sizes.labels(name).observe(len(rows))
        _Metrics.batches.labels(name).observe(time.monotonic() - started)
        _Metrics.waiting.set(self._batcher.waiting)
        return task.result()

    def _hang(self, message):
        """Refuses all requests and ends this process, because a thread cannot be stopped."""
        self._hung = Rejection(503, f"{message}: its process is replaced; send this again")
        self._batcher.reject_all(self._hung)
        asyncio.get_running_loop().call_later(_END_SECONDS, end_process)

    async def in_thread(self, function, *arguments, pool=None):
        """Calls a function in a thread, which has hung if it does not end after its request."""
        future = (pool or self._readers).submit(function, *arguments)
        try:
            return await asyncio.wrap_future(future)
        finally:
            if future.running():
                self.begin(self._watch(future))

    def begin(self, work):
        """Runs a coroutine while requests are answered."""
        self._tasks.add(task := asyncio.create_task(work))
        task.add_done_callback(self._tasks.discard)

    async def _watch(self, future):
        seconds = self.options.batch_timeout
        ended, _ = await asyncio.wait({task := asyncio.wrap_future(future)}, timeout=seconds)
        if ended:
            task.exception()  # Nobody waits for it any more.
        else:
            self._hang(f"A thread has not ended within {seconds:g} seconds after its request")

    async def call(self, is_slow, function, *arguments):
        """Calls a function, in a thread if it is slow, so that other clients do not wait."""
        if is_slow:
            return await self.in_thread(function, *arguments)
        return function(*arguments)

    async def index(self, request: Request) -> Response:
        """Returns the page."""
        return HTMLResponse(self._page, headers=_PAGE_HEADERS)

    async def health(self, request: Request) -> Response:
        """Answers while this process lives."""
        return PlainTextResponse("ok\n")

    async def readiness(self, request: Request) -> Response:
        """Answers 200 unless a thread has hung."""
        if self._hung is not None:
            raise self._hung
        return PlainTextResponse("ready\n")

    async def metrics(self, request: Request) -> Response:
        """Returns the metrics of all processes, for Prometheus."""
        registry = prometheus_client.REGISTRY
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = prometheus_client.CollectorRegistry()
            prometheus_client.multiprocess.MultiProcessCollector(registry)
        content = await self.in_thread(prometheus_client.generate_latest, registry)
        return Response(content, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    @contextlib.asynccontextmanager
    async def holding(self):
        """Holds a request for its time at most; raises `Rejection` (503, 504).

        The time begins before the body is read, and the rest of the body is not read for a 503.
        """
        if self._held >= self.options.max_ongoing:
            raise Rejection(503, f"The server holds {self._held} requests: send this again")
        self._held += 1
        try:
            async with asyncio.timeout(self.options.request_timeout):
                yield
        except TimeoutError:
            rule = f"No answer within {self.options.request_timeout:g} seconds"
            raise beyond("request_timeout", rule, status=504) from None
        finally:
            self._held -= 1

    async def translations(self, prediction, is_long, status):
        """Runs the sentences of a request in batches; returns the `Translation` of each text.

        Args:
            prediction: The request.
            is_long: Whether its texts are prepared in a thread.
            status: HTTP status for too many sentences.
        """
        if self._hung is not None:
            raise self._hung
        has_ended = threading.Event()

        def check_cancelled():
            if has_ended.is_set():
                raise Rejection(504, "The request has ended")

        name, rows, options = prediction.signature, prediction.rows, dict(prediction.options)
        try:
            is_slow = is_long or "glossary" in options  # Terms are searched at each word.
            work = await self.call(
                is_slow, self.model.prepare, name, rows, options, check_cancelled
            )
            count = count_sentences(work.rows)
            if count > (limit := self.options.max_sentences):
                raise too_many_sentences(count, limit, options.get("markup") == "html", status)
            translations = await self._batcher.submit(work.rows)
            return await self.call(is_long, work.to_translations, translations)
        finally:
            has_ended.set()

    async def fields(self, request, **options):
        """Returns the parameters of a request by `fields_of`, and whether it is long."""
        body = await body_of(request, self.options.max_body_bytes)
        query = request.url.query
        fields = fields_of(request.headers.get("content-type", ""), query, body, **options)
        if is_long := len(body) + len(query) > LONG_BYTES:
            return await self.in_thread(asyncio.run, fields), is_long
        return await fields, is_long

    async def translated(self, api, fields, is_long, is_detected):
        # The first detection reads a model.
        read_request = await self.call(is_long or is_detected, api.read, fields)
        translations = await self.translations(read_request.prediction, is_long, 400)
        answer = await self.call(is_long, api.answer, read_request, translations)
        return Response(answer, media_type="application/json")

    async def translated_file(self, read_request):
        submit = _FromThread(self._batcher, self.options.max_sentences)
        translator = self.model.translator(submit)
        translated_file = self.libretranslate.translated_file
        translate = functools.partial(translated_file, read_request, translator)
        try:
            return await self.in_thread(translate, pool=self._readers_of_files)
        finally:
            submit.end()


def end_process() -> None:
    """Ends this process at once, whatever its threads do; its supervisor starts another."""
    os._exit(1)


def _own_hosts(allowed_hosts):
    """Returns the names of hosts that requests may have; None for any name."""
    names = {name.strip().lower() for name in (allowed_hosts or "").split(",")} - {""}
    return None if "*" in names else {"localhost", *names}


def _page_of(model_name):
    """Returns the page of a model."""
    page = importlib.resources.files(__package__).joinpath("page.html").read_text("utf-8")
    # JSON has `<` only in strings, where `\u003c` means the same.
    return page.replace('"MODEL_NAME"', json.dumps(model_name).replace("<", "\\u003c"))


def _route(endpoint):
    """Returns the route of an endpoint."""
    path, answer, methods, is_held = endpoint
    is_held = "GET" not in methods if is_held is None else is_held

    async def measured(request):
        api, started = request.app.state.api, time.monotonic()
        status = 500
        try:
            check_same_site(request.method, request.headers, api.hosts)
            async with api.holding() if is_held else contextlib.nullcontext():
                response = await answer(api, request)
            status = response.status_code
            return response
        except Rejection as error:
            status = error.status
            raise
        finally:
            _Metrics.requests.labels(path, status).observe(time.monotonic() - started)

    return Route(path, measured, methods=methods)


async def _allow_post(request):
    return Response(headers={"allow": "OPTIONS, POST"})


def _error(request, message, status, headers=None):
    """Returns an error, in DeepL's form for its endpoints."""
    name = "message" if request.url.path.startswith("/v2/") else "error"
    return JSONResponse({name: message}, status, headers)


async def _rejected(request, error):
    headers = {"retry-after": str(RETRY_SECONDS)} if error.status == 503 else None
    return _error(request, str(error), error.status, headers)


async def _no_such_address(request, error):
    # For unknown endpoints below /v1/ TensorFlow Serving returns 400.
    status = 400 if request.url.path.startswith("/v1/") else error.status_code
    message = f"Malformed request: {shown(f'{request.method} {request.url.path}')}"
    return _error(request, message, status, error.headers)


async def _failed(request, error):
    return _error(request, FAILED, 500)


class _NameConvertor(StringConvertor):
    """A part of an endpoint before its method, such as `:predict`."""

    regex = "[^/:]+"


class _NumberConvertor(StringConvertor):
    """A number as its digits."""

    regex = "[0-9]+"


register_url_convertor("name", _NameConvertor())
register_url_convertor("number", _NumberConvertor())


_ENDPOINTS = [
    Endpoint("/", Api.index),
    Endpoint("/healthz", Api.health),
    Endpoint("/readyz", Api.readiness),
    Endpoint("/metrics", Api.metrics),
]


def application(api: Api) -> Starlette:
    """Returns the ASGI application of loaded endpoints."""
    protocols = protocol, libretranslate, deepl
    endpoints = itertools.chain(_ENDPOINTS, *(module.ENDPOINTS for module in protocols))
    # As LibreTranslate, for browsers that ask before they send JSON.
    posts = (row.path for row in libretranslate.ENDPOINTS if row.methods == ("POST",))
    app = Starlette(
        routes=[
            *map(_route, endpoints),
            *(Route(path, _allow_post, methods=["OPTIONS"]) for path in posts),
        ],
        exception_handlers={
            Rejection: _rejected,
            HTTPException: _no_such_address,
            Exception: _failed,
        },
    )
    app.router.redirect_slashes = False
    app.state.api = api
    return app
