"""What one client may send, how slowly, and how many there may be: with a plain application."""

import asyncio
import contextlib
import json

import pytest

uvicorn = pytest.importorskip("uvicorn", reason="comes with the extra [serve]")

from uvicorn.server import ServerState  # noqa: E402

from keras_transformer.serving.connection import connection_class  # noqa: E402

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 7\r\n\r\n"


class App:
    """Answers with the length of the body, after `seconds`; notes who came and who left."""

    def __init__(self, seconds=0.0):
        self.requests, self.left = 0, 0
        self._seconds = seconds

    async def __call__(self, scope, receive, send):
        self.requests += 1
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left += 1
                return
            size, more = size + len(message["body"]), message["more_body"]
        await asyncio.sleep(self._seconds)
        await answer(send, str(size).encode())


async def answer(send, body):
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Server:
    """Connections of one class, on a free port.

    Attributes:
        refused: The statuses of the refusals.
    """

    def __init__(self, app, max_connections, read_timeout, keep_alive):
        self.refused = []
        self._writers = []
        self._config = uvicorn.Config(
            app,
            http=connection_class(max_connections, read_timeout, self.refused.append),
            ws="none",
            lifespan="off",
            log_config=None,
            timeout_keep_alive=keep_alive,
        )
        self._config.load()
        self._state = ServerState()

    async def start(self):
        self._listener = await asyncio.get_running_loop().create_server(self._make, "127.0.0.1", 0)

    def _make(self):
        return self._config.http_protocol_class(
            config=self._config, server_state=self._state, app_state={}
        )

    async def connect(self):
        reader, writer = await asyncio.open_connection(*self._listener.sockets[0].getsockname())
        self._writers.append(writer)
        return reader, writer

    async def send(self, *parts, pause=0.0):
        """What comes back on a connection of its own, until the server closes it."""
        reader, writer = await self.connect()
        reading = asyncio.ensure_future(read_all(reader))
        for part in parts:
            writer.write(part)
            await asyncio.wait({reading}, timeout=pause)
            if reading.done():
                break
        return await reading

    def stop(self):
        for writer in self._writers:
            writer.close()
        self._listener.close()


def serve(scenario, app=None, max_connections=100, read_timeout=5.0, keep_alive=5.0):
    """Runs `scenario(server)`."""

    async def run():
        server = Server(app or App(), max_connections, read_timeout, keep_alive)
        await server.start()
        try:
            async with asyncio.timeout(10):
                await scenario(server)
        finally:
            server.stop()

    asyncio.run(run())


async def read_all(reader):
    received = b""
    # An error where a part was on its way when the server closed.
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(65536):
            received += part
    return received


async def read_answer(reader):
    """The status line, the headers and the body of an answer on a connection that stays."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    headers = dict(line.split(": ", 1) for line in lines[1:] if line)
    body = await reader.readexactly(int(headers["content-length"]))
    return lines[0], headers, body


def error_of(received, status):
    """The message of a refusal, after which nothing comes."""
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), received[:300]
    lines = head.lower().split(b"\r\n")
    assert b"connection: close" in lines and b"content-length: %d" % len(body) in lines
    assert set(json.loads(body)) == {"error"}
    return json.loads(body)["error"]


def test_requests_within_the_limits_are_answered_on_one_connection():
    async def scenario(server):
        reader, writer = await server.connect()
        long = b"GET / HTTP/1.1\r\nx: " + b"a" * 15_000 + b"\r\n\r\n"
        large = b"POST / HTTP/1.1\r\ncontent-length: 100000\r\n\r\n" + b"a" * 100_000
        for request, size in ((GET, b"0"), (long, b"0"), (large, b"100000"), (long, b"0")):
            writer.write(request)
            status, _, body = await read_answer(reader)
            assert (status, body) == ("HTTP/1.1 200 OK", size)
        assert server.refused == []

    serve(scenario)


@pytest.mark.parametrize(
    ("parts", "status", "says"),
    [
        ([b"\x00\x01\x02\r\n\r\n"], 400, "Invalid HTTP"),
        ([b"GET / HTTP/1.1\r\nx: " + b"a" * 20_000 + b"\r\n\r\n"], 431, "16384 bytes of headers"),
        ([b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n"], 431, "16384 bytes of headers"),
        ([b"GET / HTTP/1.1\r\n" + b"x: a\r\n" * 10_000 + b"\r\n"], 431, "16384 bytes of headers"),
        # Neither of these ends, the last part is one too many: the parser would collect for ever.
        ([b"GET / HTTP/1.1\r\nx: "] + [b"a" * 1000] * 17, 431, "16384 bytes of headers"),
        ([b"GET /"] + [b"a" * 1000] * 17, 431, "16384 bytes of headers"),
    ],
    ids=["no http", "field", "address", "fields", "endless field", "endless address"],
)
def test_what_is_no_request_or_too_long_is_refused_at_once(parts, status, says):
    app = App()

    async def scenario(server):
        assert says in error_of(await server.send(*parts, pause=0.002), status)
        assert server.refused == [status]
        assert app.requests == 0

    serve(scenario, app)


def test_headers_that_take_too_long_are_told_so_and_silence_is_not_answered():
    async def scenario(server):
        loop = asyncio.get_running_loop()
        started = loop.time()
        # The clock does not start again with each line.
        slow = server.send(b"GET / HTTP/1.1\r\n", *[b"x: a\r\n"] * 100, pause=0.03)
        received, silence = await asyncio.gather(slow, server.send())
        assert "within 0.2 seconds" in error_of(received, 408)
        assert silence == b""
        assert 0.19 < loop.time() - started < 2.5
        assert server.refused == [408]

    serve(scenario, read_timeout=0.2)


def test_a_body_has_a_clock_of_its_own_and_an_answer_none():
    app = App(seconds=1.5)

    async def scenario(server):
        late, never = await asyncio.gather(
            server.send(POST, b"abcdefg", pause=0.6), server.send(POST + b"abc")
        )
        # Its body came after the time for headers, its answer after that for the body.
        assert late.startswith(b"HTTP/1.1 200") and late.endswith(b"7")
        assert never == b"" and app.left == 1
        assert (app.requests, server.refused) == (2, [])

    serve(scenario, app, read_timeout=0.4, keep_alive=0.4)


def test_between_requests_a_connection_may_rest_longer_than_headers_may_take():
    async def scenario(server):
        reader, writer = await server.connect()
        for seconds in (0.0, 0.8):
            await asyncio.sleep(seconds)
            writer.write(GET)
            assert (await read_answer(reader))[2] == b"0"
        assert server.refused == []

    serve(scenario, read_timeout=0.4)


async def refuse_body(scope, receive, send):
    """Answers before the body is there."""
    await answer(send, b"no")


@pytest.mark.parametrize("parts", [[GET, b"\r\n"], [POST + b"abc", b"defg"]], ids=["line", "body"])
def test_what_comes_after_an_answer_does_not_keep_a_connection_for_ever(parts):
    async def scenario(server):
        assert (await server.send(*parts, pause=0.1)).endswith(b"no")
        assert server.refused == []

    serve(scenario, refuse_body, read_timeout=3.0, keep_alive=0.2)


def test_line_ends_that_go_on_coming_do_not_keep_a_connection():
    async def scenario(server):
        start = asyncio.get_running_loop().time()
        assert (await server.send(GET, *[b"\r\n"] * 80, pause=0.05)).endswith(b"no")
        # Sending them all takes four seconds.
        assert asyncio.get_running_loop().time() - start < 2.5

    serve(scenario, refuse_body, keep_alive=0.2)


def test_requests_sent_ahead_are_dropped_and_the_connection_ends_with_the_first_answer():
    app = App(seconds=0.3)

    async def scenario(server):
        for ahead in ([GET * 20_000], [GET] * 10, [b"GET /", b"x HT"], [b"", b"\r\n" * 20_000]):
            app.requests = 0
            received = await server.send(GET + ahead[0], *ahead[1:], pause=0.01)
            # One answer, whole, which says that it is the last; no refusal stands in its place.
            head, _, body = received.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200") and body == b"0"
            assert b"connection: close" in head.split(b"\r\n")
            assert app.requests == 1
        assert server.refused == []

    serve(scenario, app, read_timeout=0.2)


def test_a_client_that_waits_for_each_answer_keeps_its_connection():
    async def scenario(server):
        reader, writer = await server.connect()
        for _ in range(50):
            writer.write(POST + b"abcdefg")
            assert (await read_answer(reader))[2] == b"7"

    serve(scenario)


def test_one_connection_too_many_is_turned_away_until_another_ends():
    async def scenario(server):
        (_, first), (reader, writer) = [await server.connect() for _ in range(2)]
        writer.write(GET)
        await read_answer(reader)  # By now both are accepted.
        received = await server.send()
        assert "At most 2 connections" in error_of(received, 503)
        assert b"retry-after: 1" in received.split(b"\r\n")
        assert server.refused == [503]
        first.close()
        await first.wait_closed()
        for _ in range(2):  # Not only the newcomer is served: who was there is, too.
            writer.write(GET)
            await read_answer(reader)
        reader, writer = await server.connect()
        writer.write(GET)
        assert (await read_answer(reader))[0] == "HTTP/1.1 200 OK"

    serve(scenario, max_connections=2)


@pytest.mark.parametrize("request_", [GET, GET.replace(b"host: x", b"connection: close")])
def test_a_client_that_does_not_take_its_answer_is_cut_off(request_):
    async def large(scope, receive, send):
        await answer(send, b"a" * 10_000_000)

    async def scenario(server):
        loop = asyncio.get_running_loop()
        (_, idle), (reader, taking) = [await server.connect() for _ in range(2)]
        for writer in (idle, taking):
            writer.write(request_)
        started = loop.time()
        assert len((await read_answer(reader))[2]) == 10_000_000
        if request_ == GET:  # Who has taken one answer in time has all of it for the next.
            await asyncio.sleep(0.4)
            taking.write(request_)
            await asyncio.sleep(0.3)
            assert len((await read_answer(reader))[2]) == 10_000_000
        taking.close()
        while server._state.connections:
            await asyncio.sleep(0.01)
        assert loop.time() - started < 2.5

    serve(scenario, large, read_timeout=0.6, keep_alive=30.0)
