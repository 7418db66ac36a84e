"""One HTTP connection: uvicorn's, with limits on what a client may send and how slowly."""

import json
import socket
import struct
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

_MAX_HEADER_BYTES = 16 * 1024
_TOO_MANY = f"At most {_MAX_HEADER_BYTES} bytes of headers"


# Overridden, though uvicorn does not promise its inside, because no server at hand has all the
# limits: uvicorn 0.54 and granian 2.8 have none on the time for taking an answer, hypercorn 0.18
# neither that nor one on connections; uvicorn itself none on headers over httptools nor on their
# time. Over h11, which limits headers, a request costs 350 µs instead of 8.
class Connection(HttpToolsProtocol):
    """A connection with limits.

    It has one request at a time: what comes behind one that is not answered yet is dropped, and the
    connection ends with that answer, as RFC 9112 (9.3.2) allows; a client that sends ahead asks
    again for what has no answer.

    Attributes:
        max_connections: One more than these is answered with 503.
        read_timeout: Seconds that a client has for its headers, once more for its body, and once
            more to take the answer.
        on_refusal: Called with the status of each answer that the application never heard of.
    """

    max_connections: int
    read_timeout: float
    on_refusal: Callable[[int], None]

    _reading = None  # The clock of headers, then of the body.
    _taking = None  # The clock of an answer that the client has not taken.
    _idle_end = None
    _in_headers = True
    _header_bytes = 0
    _refusal = None
    _drops = False

    def connection_made(self, transport):
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse(503, f"At most {self.max_connections} connections at a time")
        else:
            self._start_reading(self.read_timeout)

    def connection_lost(self, exc):
        self._stop("_reading")
        self._stop("_taking")
        super().connection_lost(exc)

    def data_received(self, data):
        if self._drops or self.transport.is_closing():
            return
        if self._in_headers:
            # Checked before the parser, which collects a header however long it gets.
            self._header_bytes += len(data)
        super().data_received(data)
        if self._drops:
            return
        if self._in_headers and self._header_bytes > _MAX_HEADER_BYTES:
            self._refuse(431, _TOO_MANY)
        elif self._reading is None and self.cycle is not None and self.cycle.response_complete:
            # uvicorn ends its own clock at whatever comes, and starts it after an answer only:
            # line ends, or the rest of a refused body, would keep the connection for ever.
            if self._idle_end is None:
                self._idle_end = self.loop.time() + self.timeout_keep_alive
            self.timeout_keep_alive_task = self.loop.call_at(
                self._idle_end, self.timeout_keep_alive_handler
            )

    def on_message_begin(self):
        if self._is_answering():
            # Ends the parsing: a single read may hold thousands of requests.
            raise ValueError("a request before the answer to the last one")
        super().on_message_begin()
        if not self.transport.get_write_buffer_size():
            self._stop("_taking")
        self._in_headers, self._idle_end = True, None
        self._start_reading(self.read_timeout)

    def on_headers_complete(self):
        # Of headers that came in one piece, with what follows them.
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > _MAX_HEADER_BYTES:
            self._refusal = 431, _TOO_MANY
            raise ValueError(_TOO_MANY)  # Ends the parsing; `send_400_response` answers.
        self._in_headers, self._header_bytes = False, 0
        # A second more than the application has, which answers better.
        self._start_reading(self.read_timeout + 1)
        super().on_headers_complete()

    def on_message_complete(self):
        self._stop("_reading")
        self._in_headers = True
        super().on_message_complete()

    def on_response_complete(self):
        super().on_response_complete()
        # All of it is in the transport now, which would keep it for ever, closed or not.
        if self._taking is None and self.transport.get_write_buffer_size():
            self._taking = self.loop.call_later(self.read_timeout, self._cut_off)

    def send_400_response(self, msg):
        self._refuse(*(self._refusal or (400, msg)))

    def _start_reading(self, seconds):
        self._stop("_reading")
        self._reading = self.loop.call_later(seconds, self._read_once_more)

    def _read_once_more(self):
        # What came while something held up the loop, which sees to its clocks first.
        self._reading = self.loop.call_later(0.01, self._end_reading)

    def _stop(self, clock):
        if getattr(self, clock) is not None:
            getattr(self, clock).cancel()
            setattr(self, clock, None)

    def _end_reading(self):
        if self._in_headers and self._header_bytes:
            self._refuse(408, f"The request did not arrive within {self.read_timeout} seconds")
        else:
            self.transport.close()

    def _cut_off(self):
        self._taking = None
        if self.transport.get_write_buffer_size():
            # Without waiting: the kernel would keep megabytes that nobody takes for minutes.
            reset = struct.pack("ii", 1, 0)
            connection = self.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            self.transport.abort()

    def _is_answering(self):
        """Whether a whole request is there that has no whole answer yet."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def _refuse(self, status, message):
        if self.transport.is_closing():
            return
        if self._is_answering():
            # What is wrong came after that request: a refusal would be taken for its answer.
            self._drops, self.cycle.keep_alive = True, False
            return
        self.on_refusal(status)
        body = json.dumps({"error": message}).encode("utf-8")
        lines = [b"content-type: application/json", b"connection: close"]
        lines += [b"retry-after: 1"] if status == 503 else []
        lines += [b"content-length: %d" % len(body), b"", body]
        self.transport.write(STATUS_LINE[status] + b"\r\n".join(lines))
        self.transport.close()


def connection_class(
    max_connections: int, read_timeout: float, on_refusal: Callable[[int], None]
) -> type[Connection]:
    """A protocol class for `uvicorn.Config(http=…)`; the arguments are those of `Connection`."""
    limits = {"max_connections": max_connections, "read_timeout": read_timeout}
    return type("Connection", (Connection,), {**limits, "on_refusal": staticmethod(on_refusal)})
