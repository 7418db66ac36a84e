"""ASGI wrapper of Ray's HTTP proxy: what clients can reach before the application.

Ray's proxy answers in plain text where it has no replica, and obeys headers of its clients. Ray
calls `middlewares` in each proxy, if the environment names it:
`RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=keras_transformer.serving.guard.middlewares`.
`keras-transformer serve` does so.
"""

import asyncio
import json
import os

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keras_transformer.serving.server_options import MAX_REQUESTS

RETRY_SECONDS = 5
"""Seconds after which clients try again while no replica is there."""
_FULL_SECONDS = 1  # the same while all replicas are full
# How often a request that costs nothing, such as for health, is sent to full replicas, and when.
_TRIES, _PAUSE_SECONDS = 30, 0.1

# Headers of Ray's own callers. A client's identifiers of models and sessions would stay in the
# proxy's memory, and its timeout would replace the server's.
_HEADERS_OF_RAY = {
    b"serve-multiplexed-model-id",
    b"x-session-id",
    b"x-request-timeout-seconds",
    b"x-request-disconnect-disabled",
}
_REQUEST_ID = b"x-request-id"
_MAX_ID_LENGTH = 128
# It lists all applications of a cluster, for any Host header.
_HIDDEN_PATH = "/-/routes"
_LIVENESS_PATH = "/healthz"

# Status of an answer of Ray's proxy: the status, the message and the seconds that clients get.
_ANSWERS = {
    404: (503, "No model is served yet, or no longer: send this again later", RETRY_SECONDS),
    408: (504, "No answer within the time limit of the server", None),
    503: (503, "The server is full: send this again", _FULL_SECONDS),
}
_FULL = _ANSWERS[503]
_LOST = (503, "The process of this request has ended: send this again", _FULL_SECONDS)


def middlewares() -> list[Middleware]:
    """Returns what Ray's proxy is wrapped in."""
    max_requests = os.environ.get(MAX_REQUESTS)
    return [Middleware(Guard, int(max_requests) if max_requests else None)]


class Guard:
    """Removes headers that are not a client's, and gives errors of Ray's proxy as JSON.

    It answers `/healthz` itself, as a proxy that is full or has no replica is alive. Requests that
    read something wait for a place in a full replica; requests for translations are refused.

    Args:
        app: Ray's proxy.
        max_requests: Number of requests for translations that the proxy passes on at a time; by
            default all. A refusal here costs a hundredth of a replica's.
    """

    def __init__(self, app: ASGIApp, max_requests: int | None = None):
        self._app, self._max_requests = app, max_requests
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            headers = [header for header in scope["headers"] if _is_of_clients(*header)]
            scope = {**scope, "headers": headers}
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] == _HIDDEN_PATH:
            await _send_error(send, 404, "Not found", None)
        elif scope["path"] == _LIVENESS_PATH and scope["method"] in ("GET", "HEAD"):
            await _send(send, 200, b"ok\n", [(b"content-type", b"text/plain; charset=utf-8")])
        elif scope["method"] in ("GET", "HEAD"):
            await self._pass_on(scope, receive, send, _TRIES)
        elif self._max_requests is not None and self._held >= self._max_requests:
            await _send_error(send, *_FULL)
        else:
            self._held += 1
            try:
                await self._pass_on(scope, receive, send, 1)
            finally:
                self._held -= 1

    async def _pass_on(self, scope, receive, send, tries):
        for _ in range(tries):
            answer = _Answer(send)
            try:
                await self._app(scope, receive, answer.send)
            except Exception:
                await answer.end()
                raise
            if not answer.is_refused:
                break
            await asyncio.sleep(_PAUSE_SECONDS)
        await answer.end()


class _Answer:
    """Passes an application's answer on, and replaces an answer of Ray's proxy."""

    def __init__(self, send):
        self._send = send
        self._is_started = False
        self._replacement = _LOST  # of a proxy that sends nothing

    @property
    def is_refused(self) -> bool:
        """True if Ray's proxy found all replicas full."""
        return not self._is_started and self._replacement is _FULL

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            status, headers = message["status"], dict(message["headers"])
            # All errors of the application are JSON.
            is_own = headers.get(b"content-type", b"").startswith(b"application/json")
            if status >= 400 and not is_own:
                self._replacement = _ANSWERS.get(status, (status, "Not answered", None))
                return
            self._is_started = True
        if self._is_started:
            await self._send(message)

    async def end(self) -> None:
        if not self._is_started:
            await _send_error(self._send, *self._replacement)


def _is_of_clients(name, value):
    name = name.lower().replace(b"_", b"-")
    if name == _REQUEST_ID:
        return value.isascii() and len(value) <= _MAX_ID_LENGTH
    return name not in _HEADERS_OF_RAY


async def _send_error(send, status, message, retry_seconds):
    headers = [(b"content-type", b"application/json")]
    if retry_seconds is not None:
        headers.append((b"retry-after", str(retry_seconds).encode()))
    await _send(send, status, json.dumps({"error": message}).encode(), headers)


async def _send(send, status, body, headers):
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
