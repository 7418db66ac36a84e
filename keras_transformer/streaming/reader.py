"""Lines of a stream as they come: one when one is there, many when many are."""

import collections
import select
import time
from typing import NamedTuple

from keras_transformer.errors import InputError

_BYTES_AT_ONCE = 1 << 16
# Once a line is there, the others get this long to come: a program that writes as fast as it can
# fills a whole chunk, and nobody who types notices.
_PATIENCE_SECONDS = 0.01


class Line(NamedTuple):
    """A line without its end.

    Attributes:
        number: Counted from 1.
        text: A string.
        size: Bytes that it took, its end included.
    """

    number: int
    text: str
    size: int


class LineReader:
    """Reads UTF-8 lines, which end at `"\\n"` or `"\\r\\n"` alone.

    There is no thread behind it: it asks the system what is there. So nothing is left hanging
    in a read when the program ends, and a file of any length takes the memory of a chunk.

    Args:
        stream: A binary stream with `read1`.
        name: What messages call it.
    """

    def __init__(self, stream, name="stdin"):
        self.name = name
        self._stream = stream
        self._descriptor = _descriptor(stream)
        self._lines = collections.deque()
        self._begun = []  # the pieces of a line whose end has not come
        self._ended = False
        self._taken = 0

    def take(self, most):
        """Waits for a line, and takes with it those that are there.

        Args:
            most: Most lines to take.

        Returns:
            A list of `Line`, empty at the end of the stream.

        Raises:
            InputError: The first of them is not UTF-8. Lines before such a one are given first.
        """
        while not self._lines and not self._ended:
            self._is_ready(None)
            self._read()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while len(self._lines) < most and not self._ended:
            if not self._is_ready(max(deadline - time.monotonic(), 0)):
                break
            self._read()
        taken = []
        while self._lines and len(taken) < most:
            number, content = self._taken + 1, self._lines[0]
            try:
                text = decode_line(content, number, self.name)
            except InputError:
                if not taken:
                    raise
                break
            self._lines.popleft()
            self._taken = number
            taken.append(Line(number, text, len(content)))
        return taken

    def _is_ready(self, timeout):
        if self._descriptor is None:
            return True
        return bool(select.select([self._descriptor], [], [], timeout)[0])

    def _read(self):
        content = self._stream.read1(_BYTES_AT_ONCE)
        if content is None:
            return  # A terminal that another program has made non-blocking.
        if not content:
            self._ended = True
            content = b"".join(self._begun)
            self._lines.extend([content] if content else [])
            return
        whole, end, rest = content.rpartition(b"\n")
        if end:
            whole = b"".join([*self._begun, whole])
            self._lines.extend(line + b"\n" for line in whole.split(b"\n"))
            self._begun.clear()
        self._begun.extend([rest] if rest else [])


def decode_line(content, number, name):
    """The text of a line of bytes; a byte order mark before the first one is removed.

    Raises:
        InputError: It is not UTF-8.
    """
    try:
        text = content.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name}, line {number}: must be UTF-8. "
            f"Received: byte 0x{content[error.start]:02x} at column {error.start + 1}."
        ) from None
    return text.removeprefix("\ufeff") if number == 1 else text


def _descriptor(stream):
    try:
        return stream.fileno()
    except (AttributeError, OSError):
        return None  # Bytes in memory: all of it is there.
