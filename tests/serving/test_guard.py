"""The wrapper of Ray's proxy: headers that reach it, and its errors as JSON."""

import asyncio
import json
import types

import pytest

pytest.importorskip("starlette", reason="comes with the extra [serve]")

from keras_transformer.serving.guard import Guard, middlewares  # noqa: E402
from keras_transformer.serving.server_options import MAX_REQUESTS  # noqa: E402

TEXT, JSON = b"text/plain; charset=utf-8", b"application/json"


class Proxy:
    """Ray's proxy: notes what reaches it; answers with a status and a type, or not at all."""

    def __init__(self, status=200, kind=JSON, body=b"{}"):
        self.scopes, self._answer = [], (status, kind, body)

    async def __call__(self, scope, receive, send):
        self.scopes.append(scope)
        status, kind, body = self._answer
        if status is None:
            return
        headers = [(b"content-type", kind), (b"x-request-id", b"7")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for part in (body[:1], body[1:]):
            await send({"type": "http.response.body", "body": part, "more_body": part != body[1:]})


def ask(proxy, path="/translate", headers=(), method="POST", kind="http"):
    """The answer of the guarded proxy."""
    messages = []

    async def send(message):
        messages.append(message)

    scope = {"type": kind, "path": path, "method": method, "headers": list(headers)}
    asyncio.run(Guard(proxy)(scope, None, send))
    if not messages:
        return None
    start, *bodies = messages
    headers = dict(start["headers"])
    body = b"".join(message["body"] for message in bodies)
    assert [message.get("more_body", False) for message in bodies][-1] is False
    if b"content-length" in headers:
        assert int(headers[b"content-length"]) == len(body)
    return types.SimpleNamespace(status=start["status"], headers=headers, body=body)


ANSWERS = [(200, JSON, b'{"a": 1}'), (200, TEXT, b"ready\n"), (400, JSON, b'{"error": "a"}')]
ANSWERS += [(503, JSON, b'{"error": "b"}'), (500, b"application/json; charset=utf-8", b"{}")]
ANSWERS += [(204, b"", b""), (301, TEXT, b"")]


@pytest.mark.parametrize(("status", "kind", "body"), ANSWERS)
def test_answers_of_the_application_pass_unchanged(status, kind, body):
    answer = ask(Proxy(status, kind, body))
    assert (answer.status, answer.body) == (status, body)
    assert answer.headers == {b"content-type": kind, b"x-request-id": b"7"}


# Status of Ray's proxy, then what clients get.
OF_RAY = [(404, 503, b"5", "No model is served"), (503, 503, b"1", "The server is full")]
OF_RAY += [(408, 504, None, "No answer within"), (None, 503, b"1", "has ended: send this again")]
OF_RAY += [(500, 500, None, "Not answered"), (405, 405, None, "Not answered")]


@pytest.mark.parametrize(("status", "given", "retry", "says"), OF_RAY)
def test_errors_of_rays_proxy_are_json_and_say_when_to_try_again(status, given, retry, says):
    answer = ask(Proxy(status, TEXT, b"Path '/' not found. Ping http://.../-/routes"))
    assert (answer.status, answer.headers[b"content-type"]) == (given, JSON)
    assert answer.headers.get(b"retry-after") == retry
    assert says in json.loads(answer.body)["error"] and b"routes" not in answer.body


def test_an_error_of_rays_proxy_itself_is_answered_and_goes_on_to_its_log():
    async def broken(scope, receive, send):
        raise RuntimeError("a bug")

    messages = []

    async def send(message):
        messages.append(message)

    scope = {"type": "http", "path": "/", "method": "GET", "headers": []}
    with pytest.raises(RuntimeError, match="a bug"):
        asyncio.run(Guard(broken)(scope, None, send))
    assert messages[0]["status"] == 503 and json.loads(messages[1]["body"])["error"]


HEADERS = [("serve-multiplexed-model-id", "a"), ("serve_multiplexed_model_id", "a")]
HEADERS += [("Serve-Multiplexed_Model-Id", "a"), ("x-session-id", "a"), ("x_session_id", "a")]
HEADERS += [("x-request-timeout-seconds", "9"), ("x-request-disconnect-disabled", "?1")]
HEADERS += [("x-request-id", "\xff"), ("x-request-id", "a" * 129)]


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(("name", "value"), HEADERS)
def test_headers_of_rays_own_callers_are_removed_and_others_stay(kind, name, value):
    proxy = Proxy(*[None] * (kind == "websocket"))
    others = [(b"host", b"a"), (b"x-any", b"\xff"), (b"x-request-id", b"a" * 128)]
    ask(proxy, headers=[*others, (name.encode(), value.encode("latin-1"))], kind=kind)
    (scope,) = proxy.scopes
    assert scope["headers"] == others


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    async def sleep(seconds):
        pass

    monkeypatch.setattr("keras_transformer.serving.guard.asyncio.sleep", sleep)


@pytest.mark.parametrize(("method", "tries"), [("GET", 3), ("HEAD", 3), ("POST", 1)])
def test_a_request_for_health_waits_for_a_place_and_one_for_translations_does_not(method, tries):
    proxies = [Proxy(503, TEXT), Proxy(503, TEXT), Proxy(200, TEXT, b"ready"), Proxy(500)]
    asked = []

    async def next_proxy(*arguments):
        asked.append(proxies.pop(0))
        await asked[-1](*arguments)

    answer = ask(next_proxy, "/readyz", method=method)
    assert len(asked) == tries and answer.status == (503 if tries == 1 else 200)
    for status in (404, 408, 500, None):
        proxy = Proxy(status, TEXT)
        ask(proxy, "/readyz", method=method)
        assert len(proxy.scopes) == 1
    full = Proxy(503, TEXT)
    assert ask(full, "/readyz", method="GET").status == 503 and len(full.scopes) == 30


def test_the_list_of_applications_is_hidden_and_liveness_needs_no_replica():
    proxy = Proxy(404, TEXT)
    for method in ("GET", "POST"):
        assert ask(proxy, "/-/routes", method=method).status == 404
    for method in ("GET", "HEAD"):
        answer = ask(proxy, "/healthz", method=method)
        assert (answer.status, answer.body) == (200, b"ok\n")
    assert not proxy.scopes
    assert ask(proxy, "/healthz", method="POST").status == 503  # The application's to refuse.
    # Kubernetes asks Ray's proxy.
    assert ask(Proxy(200, TEXT, b"success"), "/-/healthz", method="GET").body == b"success"


def test_requests_beyond_the_limit_are_refused_without_the_proxy(monkeypatch):
    release, asked = asyncio.Event(), []

    async def slow(scope, receive, send):
        asked.append(scope["path"])
        if scope["path"] == "/broken":
            raise RuntimeError("a bug")
        await release.wait()
        await Proxy(200)(scope, receive, send)

    monkeypatch.setenv(MAX_REQUESTS, "2")
    (middleware,) = middlewares()
    guard = middleware.cls(slow, *middleware.args, **middleware.kwargs)

    async def status_of(method, path):
        sent = []

        async def send(message):
            sent.append(message)

        await guard({"type": "http", "path": path, "method": method, "headers": []}, None, send)
        return sent[0]["status"], dict(sent[0]["headers"]).get(b"retry-after")

    async def talk():
        # Each of them gives its place back.
        for _ in range(3):
            with pytest.raises(RuntimeError, match="a bug"):
                await status_of("POST", "/broken")
            with pytest.raises(TimeoutError):  # As the client has gone.
                await asyncio.wait_for(status_of("POST", "/gone"), 0.01)
        asked.clear()
        held = [asyncio.create_task(status_of("POST", path)) for path in ("/a", "/b")]
        held.append(asyncio.create_task(status_of("GET", "/readyz")))
        for _ in range(3):
            await asyncio.wait({*held}, timeout=0.01)
            assert await status_of("POST", "/c") == (503, b"1")
        assert asked == ["/a", "/b", "/readyz"]
        release.set()
        assert await asyncio.gather(*held) == [(200, None)] * 3
        return await status_of("POST", "/d")

    assert asyncio.run(asyncio.wait_for(talk(), 10)) == (200, None)


def test_ray_is_given_the_wrapper_without_a_limit(monkeypatch):
    monkeypatch.delenv(MAX_REQUESTS, raising=False)
    (middleware,) = middlewares()
    assert middleware.cls is Guard and middleware.args == (None,)
