"""ASGI application: HTTP, batches and an export, in a process that its supervisor can replace."""

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
import urllib.parse
from collections.abc import Callable

import prometheus_client
import prometheus_client.multiprocess
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

from keras_transformer.serving.batcher import Batcher
from keras_transformer.serving.deepl import DeepL, Documents
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
from keras_transformer.serving.server_options import ServedExport, ServerOptions
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
        tell: Function that is called with the progress of the start.

    Raises:
        InputError: The export is damaged, or cannot do `options.markup`.
    """

    def __init__(
        self,
        export: ServedExport,
        options: ServerOptions,
        files_folder: str | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        from keras_transformer.compilation_cache import enable_compilation_cache

        enable_compilation_cache()
        self._number, self._name, self._options = export.number, export.name, options
        self._model = Model(export.path, options.threads, options.markup, options.languages)
        self._model.warm_up(options, tell)
        self.hosts = _own_hosts(options.allowed_hosts)
        self._page = _page_of(export.name)
        limits = options.max_sentences, options.max_text_characters
        self._parser = Parser(self._model.signatures, *limits, self._model.default_options)
        self._libretranslate = LibreTranslate(self._model, options)
        self._pool = concurrent.futures.ThreadPoolExecutor(options.threads)
        self._deepl = DeepL(self._libretranslate, options.max_answer_bytes)
        self._files = TranslatedFiles(files_folder)
        self._documents = Documents(self._files, options.request_timeout)
        self._readers_of_files = concurrent.futures.ThreadPoolExecutor(options.threads)
        self._readers = concurrent.futures.ThreadPoolExecutor()
        self._tasks: set[asyncio.Task] = set()  # asyncio itself does not keep them
        # A SavedModel would divide a larger batch into chunks.
        largest = self._model.engine.manifest.get("largest_chunk", options.max_batch_size)
        largest = min(largest, options.max_batch_size)
        wait_seconds = options.batch_wait_ms / 1000
        self._batcher = Batcher(self._run, options.threads, largest, wait_seconds)
        self._hung: Rejection | None = None
        self._held = 0  # requests for translations
        _Metrics.version.set(self._number)
        # A MiB of lists in JSON starts the garbage collector, which must not scan the model.
        gc.freeze()

    async def _run(self, key, rows, is_wanted):
        """Runs one batch in a thread."""
        name, *_ = key
        started = time.monotonic()
        _Metrics.waiting.set(self._batcher.waiting)
        loop = asyncio.get_running_loop()
        task = loop.run_in_executor(self._pool, self._model.run, key, rows, is_wanted)
        ended_tasks, _ = await asyncio.wait({task}, timeout=self._options.batch_timeout)
        if not ended_tasks:
            message = f"A batch has not ended within {self._options.batch_timeout:g} seconds"
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

    async def _in_thread(self, function, *arguments, pool=None):
        """Calls a function in a thread, which has hung if it does not end after its request."""
        future = (pool or self._readers).submit(function, *arguments)
        try:
            return await asyncio.wrap_future(future)
        finally:
            if future.running():
                self._begin(self._watch(future))

    def _begin(self, work):
        """Runs a coroutine while requests are answered."""
        self._tasks.add(task := asyncio.create_task(work))
        task.add_done_callback(self._tasks.discard)

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
        content = await self._in_thread(prometheus_client.generate_latest, registry)
        return Response(content, media_type=prometheus_client.CONTENT_TYPE_LATEST)

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

    async def _fields(self, request, **options):
        """Returns the parameters of a request by `fields_of`, and whether it is long."""
        body = await _body(request, self._options.max_body_bytes)
        query = request.url.query
        fields = fields_of(request.headers.get("content-type", ""), query, body, **options)
        if is_long := len(body) + len(query) > _LONG_BYTES:
            return await self._in_thread(asyncio.run, fields), is_long
        return await fields, is_long

    async def translate(self, request: Request) -> Response:
        """Returns translations, as LibreTranslate."""
        fields, is_long = await self._fields(request)
        is_detected = fields.get("source") == "auto"
        return await self._translated(self._libretranslate, fields, is_long, is_detected)

    async def _translated(self, api, fields, is_long, is_detected):
        # The first detection reads a model.
        read_request = await self._call(is_long or is_detected, api.read, fields)
        translations = await self._translations(read_request.prediction, is_long, 400)
        answer = await self._call(is_long, api.answer, read_request, translations)
        return Response(answer, media_type="application/json")

    async def translate_file(self, request: Request) -> Response:
        """Translates a file, and returns its address, as LibreTranslate."""
        url = _base_url(request)
        fields, _ = await self._fields(request, max_files=1)
        read_request = await self._in_thread(self._libretranslate.read_file, fields)
        content = await self._translated_file(read_request)
        token = await self._in_thread(self._files.add, read_request.name, content)
        address = f"{url}download_file/{urllib.parse.quote(token)}"
        return JSONResponse({"translatedFileUrl": address})

    async def _translated_file(self, read_request):
        submit = _FromThread(self._batcher, self._options.max_sentences)
        translator = self._model.translator(submit)
        translated_file = self._libretranslate.translated_file
        translate = functools.partial(translated_file, read_request, translator)
        try:
            return await self._in_thread(translate, pool=self._readers_of_files)
        finally:
            submit.end()

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

    async def deepl_translate(self, request: Request) -> Response:
        """Returns translations, as DeepL."""
        fields, is_long = await self._fields(request, list_name="text")
        return await self._translated(self._deepl, fields, is_long, not fields.get("source_lang"))

    async def deepl_languages(self, request: Request) -> Response:
        """Returns the languages, as DeepL."""
        fields, _ = await self._fields(request)
        return JSONResponse(self._deepl.languages(fields))

    async def deepl_usage(self, request: Request) -> Response:
        """Returns that nothing was used, as DeepL."""
        return JSONResponse(self._deepl.usage())

    async def deepl_document(self, request: Request) -> Response:
        """Begins the translation of a document, as DeepL, whose clients wait 10 s at most."""
        begun = asyncio.get_running_loop().create_future()
        self._begin(self._translate_document(request, begun))
        return JSONResponse(await asyncio.shield(begun))

    async def _translate_document(self, request, begun):
        """Sets the answer to a request, then translates its document."""
        try:
            async with self.holding():
                fields, _ = await self._fields(request, max_files=1)
                read_request = await self._in_thread(self._deepl.read_file, fields)
                begun.set_result(await self._in_thread(self._documents.begin))
                content = await self._translated_file(read_request)
            ended = functools.partial(self._documents.end, content=content)
        except Exception as error:
            if not begun.done():
                begun.set_exception(error)
                return
            message = str(error)
            if not isinstance(error, Rejection):
                message = _FAILED
                logs = asyncio.get_running_loop().call_exception_handler
                logs({"message": "A document was not translated", "exception": error})
            ended = functools.partial(self._documents.fail, message=message)
        await self._in_thread(ended, begun.result()["document_key"])

    async def deepl_document_status(self, request: Request) -> Response:
        """Returns how far a document is translated, as DeepL."""
        fields, _ = await self._fields(request)
        document_id = request.path_params["id"]
        return JSONResponse(await self._in_thread(self._documents.status, document_id, fields))

    async def deepl_document_result(self, request: Request) -> Response:
        """Returns a translated document, as DeepL."""
        fields, _ = await self._fields(request)
        document_id = request.path_params["id"]
        content = await self._in_thread(self._documents.result, document_id, fields)
        headers = {"x-content-type-options": "nosniff"}
        return Response(content, headers=headers, media_type="application/octet-stream")

    async def deepl_glossaries(self, request: Request) -> Response:
        """Returns that there are no glossaries, as DeepL."""
        return JSONResponse({"glossaries": [], "supported_languages": []})

    async def disabled(self, request: Request) -> Response:
        """Refuses a service that LibreTranslate's protocol lets a server switch off."""
        raise Rejection(403, f"{request.url.path} is disabled on this server")


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


def _route(path, answer, *methods, is_held=None):
    """Returns the route of an endpoint.

    Args:
        path: Its path.
        answer: Method of `Api`.
        *methods: Methods of HTTP, GET by default.
        is_held: Whether a request has a limit of time, and a place among those that the server
            holds; by default if the endpoint is not for GET.
    """
    methods = methods or ("GET",)
    is_held = "GET" not in methods if is_held is None else is_held

    async def endpoint(request):
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

    return Route(path, endpoint, methods=methods)


async def _allow_post(request):
    return Response(headers={"allow": "OPTIONS, POST"})


_FAILED = "The server has failed; its log says why"


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
    return _error(request, _FAILED, 500)


class _NameConvertor(StringConvertor):
    """A part of an endpoint before its method, such as `:predict`."""

    regex = "[^/:]+"


class _NumberConvertor(StringConvertor):
    """A number as its digits."""

    regex = "[0-9]+"


register_url_convertor("name", _NameConvertor())
register_url_convertor("number", _NumberConvertor())


def _deepl_routes():
    """Returns the routes of DeepL's API, whose official client sends forms by GET."""
    methods = ("GET", "POST")
    return [
        _route("/v2/translate", Api.deepl_translate, "POST"),
        _route("/v2/languages", Api.deepl_languages, *methods, is_held=True),
        _route("/v2/usage", Api.deepl_usage, *methods),
        # It holds a request until its document is translated, which is after the answer.
        _route("/v2/document", Api.deepl_document, "POST", is_held=False),
        _route("/v2/document/{id}", Api.deepl_document_status, *methods, is_held=True),
        _route("/v2/document/{id}/result", Api.deepl_document_result, *methods, is_held=True),
        _route("/v2/glossaries", Api.deepl_glossaries),
        _route("/v2/glossary-language-pairs", Api.deepl_glossaries),
    ]


def application(api: Api) -> Starlette:
    """Returns the ASGI application of loaded endpoints."""
    routes = [
        _route("/", Api.index),
        _route("/healthz", Api.health),
        _route("/readyz", Api.readiness),
        _route("/metrics", Api.metrics),
    ]
    for index in ("", "/versions/{version:number}", "/labels/{label:name}"):
        path = "/v1/models/{name:name}" + index
        routes += [
            _route(f"{path}:predict", Api.predict, "POST"),
            _route(f"{path}/metadata", Api.metadata),
            _route(path, Api.status),
        ]
    posts = {
        "/translate": Api.translate,
        "/detect": Api.detect,
        "/suggest": Api.disabled,
        "/translate_file": Api.translate_file,
    }
    for path, answer in posts.items():
        routes += [_route(path, answer, "POST"), Route(path, _allow_post, methods=["OPTIONS"])]
    routes += [
        _route("/languages", Api.languages),
        _route("/download_file/{token}", Api.download_file),
        _route("/frontend/settings", Api.frontend_settings),
        _route("/health", Api.libretranslate_health),
        *_deepl_routes(),
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
    app.state.api = api
    return app
