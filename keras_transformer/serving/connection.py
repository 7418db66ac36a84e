"""One HTTP connection: uvicorn's, with limits on what a client may send and how slowly."""

import json
import socket
import struct

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

_MAX_HEADER_BYTES = 16 * 1024


def connection_class(max_connections, read_timeout, on_refusal=None):
    """A protocol class for `uvicorn.Config(http=…)`.

    uvicorn bounds neither the size of the headers, nor the time that a client takes for them, nor
    how many requests it sends without waiting. Here a connection has one request at a time: what
    comes behind one that is not answered yet is dropped, and the connection ends with that answer,
    as RFC 9112 (9.3.2) allows; a client that sends ahead asks again for what has no answer.

    Args:
        max_connections: One more than these is answered with 503.
        read_timeout: Seconds that a client has for its headers, once more for its body, and once
            more to take the answer.
        on_refusal: Called with the status of each answer that the application never heard of.

    Returns:
        A subclass of uvicorn's own protocol.
    """

    class Connection(HttpToolsProtocol):
        _clock = None
        _in_headers = True
        _header_bytes = 0
        _refusal = None
        _idle_end = None
        _drops = False
        _taking = None

        def connection_made(self, transport):
            super().connection_made(transport)
            if len(self.connections) > max_connections:
                self._refuse(503, f"At most {max_connections} connections at a time")
                return
            self._start_clock(read_timeout)

        def connection_lost(self, exc):
            self._stop_clock()
            self._stop_taking()
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
                self._refuse(431, f"At most {_MAX_HEADER_BYTES} bytes of headers")
            elif self._clock is None and self.cycle is not None and self.cycle.response_complete:
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
                self._stop_taking()
            self._in_headers, self._field_bytes, self._idle_end = True, 0, None
            self._start_clock(read_timeout)

        def on_url(self, url):
            self._count(url)
            super().on_url(url)

        def on_header(self, name, value):
            self._count(name + value)
            super().on_header(name, value)

        def on_headers_complete(self):
            self._in_headers, self._header_bytes = False, 0
            # A second more than the application has, which answers better.
            self._start_clock(read_timeout + 1)
            self.scope["state"]["abort"] = self._abort
            super().on_headers_complete()

        def on_message_complete(self):
            self._stop_clock()
            self._in_headers = True
            super().on_message_complete()

        def on_response_complete(self):
            super().on_response_complete()
            # All of it is in the transport now, which would keep it for ever, closed or not.
            if self._taking is None and self.transport.get_write_buffer_size():
                self._taking = self.loop.call_later(read_timeout, self._cut_off)

        def send_400_response(self, msg):
            status, message = self._refusal or (400, msg)
            self._refuse(status, message)

        def _count(self, data):
            self._field_bytes += len(data)
            if self._field_bytes > _MAX_HEADER_BYTES:
                self._refusal = (431, f"At most {_MAX_HEADER_BYTES} bytes of headers")
                # Ends the parsing; `send_400_response` tells the client.
                raise ValueError(self._refusal[1])

        def _start_clock(self, seconds):
            self._stop_clock()
            self._clock = self.loop.call_later(seconds, self._time_is_up)

        def _stop_clock(self):
            if self._clock is not None:
                self._clock.cancel()
                self._clock = None

        def _stop_taking(self):
            if self._taking is not None:
                self._taking.cancel()
                self._taking = None

        def _cut_off(self):
            self._taking = None
            if self.transport.get_write_buffer_size():
                self._abort()

        def _abort(self):
            # Without waiting: the kernel would keep megabytes that nobody takes for minutes.
            reset = struct.pack("ii", 1, 0)
            connection = self.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            self.transport.abort()

        def _time_is_up(self):
            if self._in_headers and self._header_bytes:
                self._refuse(408, f"The request did not arrive within {read_timeout} seconds")
            else:
                self.transport.close()

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
            if on_refusal is not None:
                on_refusal(status)
            body = json.dumps({"error": message}).encode("utf-8")
            lines = [
                b"content-type: application/json",
                b"connection: close",
                b"content-length: %d" % len(body),
            ]
            if status == 503:
                lines.append(b"retry-after: 1")
            self.transport.write(STATUS_LINE[status] + b"\r\n".join([*lines, b"", body]))
            self.transport.close()

    return Connection
