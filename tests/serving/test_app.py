"""Every address of the server, asked in this process: no network, no Ray, no model."""

import asyncio
import contextlib
import json
import types

import numpy as np
import pytest

from keras_transformer.serving import ServerOptions
from keras_transformer.serving.app import App
from keras_transformer.serving.reporting import Rejection
from keras_transformer.serving.signatures import Signature, Tensor

TEXT = Tensor("string", (None,))
PREDICT = "/v1/models/toy:predict"
GONE = {"type": "http.disconnect"}


class Model:
    """Version 7 answers, in upper case, when `go` is set; `error` is raised instead."""

    def __init__(self, error=None, held=False):
        self.name, self.number, self.waiting, self.replicas = "toy", 7, 5, 3
        signature = Signature({"text": TEXT}, {"translation": TEXT}, definition={"inputs": "text"})
        self.signatures = {"serving_default": signature}
        self.asked, self.cancelled = [], False
        self._error, self._held = error, held

    def states(self, number=None):
        return {"model_version_status": [number]}

    def check_version(self, number):
        if number not in (None, 7):
            raise Rejection(404, f"Servable not found for request: Specific(toy, {number})")

    async def predict(self, signature, columns, count):
        self.asked.append((signature, columns, count))
        if self._error is not None:
            raise self._error
        try:
            await asyncio.sleep(10 if self._held else 0)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return {"translation": [text.upper() for text in columns["text"]]}


class Metrics:
    """Notes what it is told."""

    content_type = "text/plain; version=3"

    def __init__(self):
        self.latencies, self.reasons = [], []

    def answered(self, seconds):
        self.latencies.append(seconds)

    def rejected(self, rejection):
        self.reasons.append(rejection.reason)

    def exposition(self, waiting, version, replicas):
        return f"{waiting} wait, version {version}, {replicas} replicas".encode()


def make(model=None, metrics=None, **options):
    return App(model or Model(), ServerOptions(**options), metrics or Metrics())


def ask(app, method, path, *parts, headers=(), ending=None):
    """What an app answers to a request whose body comes in `parts`; None if it says nothing.

    After the body comes `ending`, or nothing more.
    """
    messages = [
        {"type": "http.request", "body": part, "more_body": at < len(parts) or ending is not None}
        for at, part in enumerate(parts, 1)
    ]
    messages += [ending] if ending else []
    sent = []

    async def receive():
        if not messages:
            await asyncio.sleep(10)
        return messages.pop(0)

    async def keep(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": list(headers)}
    asyncio.run(asyncio.wait_for(app(scope, receive, keep), 5))
    if not sent:
        return None
    start, body = sent
    assert (start["type"], body["type"]) == ("http.response.start", "http.response.body")
    content, headers = body["body"], dict(start["headers"])
    return types.SimpleNamespace(
        status=start["status"],
        headers=headers,
        body=content,
        json=json.loads(content) if content and b"json" in headers[b"content-type"] else None,
    )


def error_of(answer, status):
    """The message of an answer that must be an error."""
    assert answer.status == status, answer
    assert set(answer.json) == {"error"}
    return answer.json["error"]


def test_a_prediction_is_asked_for_answered_and_counted():
    model, metrics = Model(), Metrics()
    answer = ask(make(model, metrics), "POST", PREDICT, b'{"inputs": ["a', b'b", "c"]}')
    assert (answer.status, answer.json) == (200, {"outputs": ["AB", "C"]})
    assert answer.headers[b"content-type"] == b"application/json"
    assert int(answer.headers[b"content-length"]) == len(answer.body)
    assert model.asked == [("serving_default", {"text": [b"ab", b"c"]}, 2)]
    assert len(metrics.latencies) == 1 and metrics.reasons == []


@pytest.mark.parametrize(
    ("place", "status"),
    [("", 200), ("/versions/7", 200), ("/labels/stable", 200)]
    + [("/versions/8", 404), ("/labels/canary", 404)],
)
def test_the_version_of_an_address_must_be_the_one_that_answers(place, status):
    model = Model()
    predicted = ask(make(model), "POST", f"/v1/models/toy{place}:predict", b'{"inputs": ["a"]}')
    assert predicted.status == status
    assert len(model.asked) == (status == 200)
    assert ask(make(), "GET", f"/v1/models/toy{place}/metadata").status == status


@pytest.mark.parametrize(("place", "version"), [("", None), ("/versions/5", 5)])
def test_the_status_is_that_of_all_versions_or_of_one(place, version):
    answer = ask(make(), "GET", f"/v1/models/toy{place}")
    assert (answer.status, answer.json) == (200, {"model_version_status": [version]})


def test_the_metadata_names_the_model_and_its_signatures():
    told = ask(make(), "GET", "/v1/models/toy/metadata").json
    assert told["model_spec"] == {"name": "toy", "signature_name": "", "version": "7"}
    definitions = told["metadata"]["signature_def"]["signature_def"]
    assert definitions == {"serving_default": {"inputs": "text"}}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", PREDICT, 400),
        ("POST", "/v1/models/toy", 400),
        ("POST", "/v1/models/toy/metadata", 400),
        ("POST", "/v1/models/toy:train", 400),
        ("POST", "/v1/models/toy:classify", 400),
        ("POST", "/v1/models/other:predict", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/models/toy/versions/999999999999999999999", 400),
        ("GET", "/nothing", 404),
        ("GET", "/../../etc/passwd", 404),
        ("DELETE", "/metrics", 405),
        ("POST", "/", 405),
    ],
)
def test_a_wrong_address_or_method_is_an_error(method, path, status):
    assert "\n" not in error_of(ask(make(), method, path), status)


def test_a_message_does_not_repeat_a_long_address():
    assert len(error_of(ask(make(), "GET", "/" + "a" * 10_000), 404)) < 200
    assert len(error_of(ask(make(), "GET", "/v1/models/" + "a" * 10_000), 404)) < 200


def test_a_body_that_is_announced_too_long_is_not_even_read():
    metrics = Metrics()
    app = make(metrics=metrics, max_body_bytes=29)
    # No body comes: reading would take until the test's own timeout.
    answer = ask(app, "POST", PREDICT, headers=[(b"content-length", b"31")])
    assert "At most 29 bytes a request. Received: 31" in error_of(answer, 413)
    assert metrics.reasons == ["413"]


def test_a_body_that_grows_too_long_is_not_read_to_its_end():
    body = b'{"inputs": ["' + b"a" * 13 + b'"]}'
    assert len(body) == 29
    assert ask(make(max_body_bytes=29), "POST", PREDICT, body).status == 200
    metrics = Metrics()
    app = make(metrics=metrics, max_body_bytes=28)
    error_of(ask(app, "POST", PREDICT, body[:17], body[17:], ending={"type": "never read"}), 413)
    assert metrics.reasons == ["413"]


def test_a_body_that_takes_too_long_is_told_so():
    metrics = Metrics()
    app = make(metrics=metrics, read_timeout=0.05)
    assert "0.05 seconds" in error_of(ask(app, "POST", PREDICT), 408)
    assert metrics.reasons == ["408"]


@pytest.mark.parametrize(
    ("error", "retry"),
    [
        (Rejection(429, "2 of 3 sentences wait", "queue"), b"1"),
        (Rejection(503, "it died", "replica"), b"1"),
        (Rejection(400, "this text fails", "model"), None),
        (Rejection(504, "No answer within 3 seconds", "timeout"), None),
    ],
)
def test_a_rejection_is_told_counted_and_may_be_tried_again(error, retry):
    metrics = Metrics()
    answer = ask(make(Model(error), metrics), "POST", PREDICT, b'{"inputs": ["a"]}')
    assert error_of(answer, error.status) == error.message
    assert answer.headers.get(b"retry-after") == retry
    assert (metrics.reasons, metrics.latencies) == ([error.reason], [])


def test_a_client_that_leaves_before_its_body_is_there_asks_for_nothing():
    model, metrics = Model(), Metrics()
    assert ask(make(model, metrics), "POST", PREDICT, b'{"inputs": ', ending=GONE) is None
    assert (model.asked, metrics.reasons, metrics.latencies) == ([], [], [])


def test_the_work_for_a_client_that_leaves_is_cancelled():
    model, metrics = Model(held=True), Metrics()
    app = make(model, metrics)
    messages = [{"type": "http.request", "body": b'{"inputs": ["a"]}', "more_body": False}, GONE]
    sent = []

    async def scenario():
        async def receive():
            await asyncio.sleep(0.01)
            return messages.pop(0)

        async def send(message):
            sent.append(message)

        await app({"type": "http", "method": "POST", "path": PREDICT, "headers": []}, receive, send)
        await asyncio.sleep(0)
        # Now: at its end the loop cancels whatever is left.
        assert len(model.asked) == 1 and model.cancelled

    asyncio.run(asyncio.wait_for(scenario(), 5))
    assert (sent, metrics.reasons, metrics.latencies) == ([], [], [])


@pytest.mark.parametrize(
    ("number", "replicas", "status", "retry"),
    [(None, 0, 503, b"1"), (None, 1, 503, b"1"), (7, 0, 503, b"1"), (7, 1, 200, None)],
)
def test_it_is_ready_with_a_version_and_a_replica(number, replicas, status, retry):
    model = Model()
    app = make(model)
    model.number, model.replicas = number, replicas
    answer = ask(app, "GET", "/readyz")
    assert (answer.status, answer.headers.get(b"retry-after")) == (status, retry)
    # The process itself is well: nobody should start it anew.
    assert ask(app, "GET", "/healthz").body == b"ok\n"


@pytest.mark.parametrize("path", ["/metrics", "/monitoring/prometheus/metrics"])
def test_prometheus_is_told_what_is_known_now(path):
    model = Model()
    app = make(model)
    answer = ask(app, "GET", path)
    assert answer.body == b"5 wait, version 7, 3 replicas"
    assert answer.headers[b"content-type"] == b"text/plain; version=3"
    model.number = None
    assert ask(app, "GET", path).body == b"5 wait, version 0, 3 replicas"


def test_head_has_the_headers_of_get():
    # The HTTP server keeps its body back.
    got, head = (ask(make(), method, "/") for method in ("GET", "HEAD"))
    assert (head.status, head.headers) == (200, got.headers)
    assert int(head.headers[b"content-length"]) == len(got.body) > 0


def test_the_page_has_the_models_name_and_loads_nothing():
    model = Model()
    model.name = '</script><img src="x">'
    answer = ask(make(model), "GET", "/")
    page = answer.body.decode("utf-8")
    # The name is the script's own value, which has no tag in it.
    (line,) = [line for line in page.splitlines() if line.startswith("const model = ")]
    assert json.loads(line.removeprefix("const model = ").removesuffix(";")) == model.name
    assert "<" not in line and "MODEL_NAME" not in page
    rules = answer.headers[b"content-security-policy"].decode().split("; ")
    assert "default-src 'none'" in rules and "connect-src 'self'" in rules


@pytest.mark.parametrize(
    ("host", "options", "status"),
    [(host, {}, 200) for host in ("localhost", "LOCALHOST.:8501", "127.0.0.1:8501", "[::1]:8501")]
    # Nobody's name leads to a numeric address.
    + [("10.1.1.7", {}, 200), (None, {}, 200)]
    + [(host, {}, 403) for host in ("evil.example", "evil.example:8501", "localhost.evil", "[")]
    + [(f"{name}.example", {"allowed_hosts": "A.example, b.example"}, 200) for name in "ab"]
    + [("c.example", {"allowed_hosts": "a.example,b.example"}, 403)]
    + [("c.example", {"allowed_hosts": "*"}, 200), ("c.example", {"host": "0.0.0.0"}, 200)]
    + [("c.example", {"host": "0.0.0.0", "allowed_hosts": "a.example"}, 403)]
    + [("c.example", {"host": "c.example", "allowed_hosts": "a.example"}, 200)],
)
def test_a_name_that_is_not_the_servers_gets_nothing(host, options, status):
    headers = [(b"host", host.encode())] if host else []
    for method, path in (("GET", "/"), ("GET", "/metrics"), ("POST", PREDICT)):
        metrics = Metrics()
        answer = ask(
            make(metrics=metrics, **options), method, path, b'{"inputs": ["a"]}', headers=headers
        )
        assert answer.status == status
        assert metrics.reasons == (["host"] if status == 403 else [])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/json"}, 200),
        ({"content-type": "Application/JSON; charset=utf-8"}, 200),
        ({"content-type": "application/x-www-form-urlencoded"}, 200),  # curl -d
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "multipart/form-data; boundary=x"}, 415),
        ({"origin": "http://localhost:8501"}, 200),
        ({"origin": "http://localhost:3000"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),  # Another port of this machine.
        ({"sec-fetch-site": "none"}, 200),
        # A proxy may change the host, the browser has seen another.
        ({"sec-fetch-site": "same-origin", "origin": "https://translate.example"}, 200),
    ],
)
def test_a_page_of_another_site_cannot_have_its_visitors_ask(headers, status):
    model, metrics = Model(), Metrics()
    pairs = [(key.encode(), value.encode()) for key, value in headers.items()]
    answer = ask(
        make(model, metrics),
        "POST",
        PREDICT,
        b'{"inputs": ["a"]}',
        headers=[(b"host", b"localhost:8501"), *pairs],
    )
    assert answer.status == status
    assert len(model.asked) == (status == 200) and len(metrics.reasons) == (status != 200)


def test_an_error_that_nobody_foresaw_is_logged_and_counted_but_not_told(monkeypatch, capsys):
    monkeypatch.setattr("keras_transformer.serving.reporting._last_traceback", -1.0)
    metrics = Metrics()
    app = make(Model(KeyError("a secret")), metrics)

    async def without_the_error(*values):
        with contextlib.suppress(KeyError):  # Starlette raises it again for the HTTP server.
            await app(*values)

    answer = ask(without_the_error, "POST", PREDICT, b'{"inputs": ["a"]}')
    assert error_of(answer, 500) == "Internal error"
    assert metrics.reasons == ["internal"]
    log = capsys.readouterr().err
    assert "KeyError: 'a secret'" in log and "Traceback" in log and "in predict" in log


def test_a_large_answer_is_written_while_others_are_served():
    class Large(Model):
        async def predict(self, signature, columns, count):
            return {"translation": np.full((10, 100, 300), 1 / 3)}

    app = make(Large())

    async def scenario():
        turns, done = 0, asyncio.ensure_future(answer())
        while not done.done():
            await asyncio.sleep(0.001)
            turns += 1
        # In one piece, 300,000 numbers would take a third of a second in a single turn.
        assert await done > 300_000 * 18 and turns > 10

    async def answer():
        sent = []

        async def send(message):
            sent.append(message)

        parts = [{"type": "http.request", "body": b'{"inputs": ["a"]}', "more_body": False}]

        async def receive():
            return parts.pop() if parts else await asyncio.sleep(10)

        scope = {"type": "http", "method": "POST", "path": PREDICT, "headers": []}
        await app(scope, receive, send)
        return len(sent[1]["body"])

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_what_is_no_http_request_is_passed_over():
    async def never(*message):
        raise AssertionError(message)

    asyncio.run(make()({"type": "lifespan"}, never, never))
