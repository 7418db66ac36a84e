"""Lines of a stream as they come: one when one is there, many when many are."""

import collections
import os
import select
import time
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from keras_transformer.errors import InputError

_BYTES_AT_ONCE = 1 << 16
# Once a line is there, the others get this long to come: a program that writes as fast as it can
# fills a whole chunk, and nobody who types notices.
_PATIENCE_SECONDS = 0.01


class Line(NamedTuple):
    """A line without its end.

    Attributes:
        number: Counted from 1.
        text: Its characters, without the end.
        size: Bytes that it took, including its end.
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

    def __init__(self, stream: BinaryIO, name: str = "stdin"):
        self.name = name
        self._stream = stream
        self._descriptor = _descriptor(stream)
        self._lines = collections.deque()
        self._begun = []  # the parts of a line whose end has not come
        self._ended = False
        self._taken = 0

    def take(self, most: int) -> list[Line]:
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
                text = _text(content, number, self.name)
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


def _text(content, number, name):
    # A byte order mark is no text where it stands first.
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


def read_chunks(stream: BinaryIO, most: int) -> Iterator[list[Line]]:
    """The lines of stdin, at most `most` at once, as soon as there is one."""
    reader = LineReader(stream)
    while lines := reader.take(most):
        yield lines


def with_prefixes(
    chunks: Iterable[list[Line]], path: str | os.PathLike | None
) -> Iterator[list[tuple[Line, str | None]]]:
    """Puts each line together with its target prefix, in constant memory.

    Args:
        chunks: The lines of the input.
        path: A UTF-8 file with a line for each line of the input, a blank one where nothing is
            forced; or None, and all prefixes are None.

    Yields:
        Lists of `(line, prefix)`.

    Raises:
        InputError: The file cannot be read, does not have as many lines as the input, or is not
            UTF-8. Lines before such a place are given first.
    """
    if path is None:
        yield from ([(line, None) for line in lines] for lines in chunks)
        return
    try:
        file = open(path, "rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    with file:
        reader, number = LineReader(file, path), 0
        rule = "there must be a target prefix for each line."
        for lines in chunks:
            while lines:
                prefixes = [each.text for each in reader.take(len(lines))]
                if not prefixes:
                    raise InputError(
                        f"{path}: ends after line {number}, but stdin has a line {number + 1}: "
                        + rule
                    )
                number += len(prefixes)
                yield list(zip(lines, prefixes, strict=False))
                lines = lines[len(prefixes) :]
        if reader.take(1):
            raise InputError(
                f"{path}: has a line {number + 1}, but stdin ended after line {number}: {rule}"
            )
