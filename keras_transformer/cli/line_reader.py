"""Lines of a stream as they come: one when one is there, many when many are; a bar for them."""

import collections
import contextlib
import os
import select
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from keras_transformer.errors import InputError
from keras_transformer.files import decode_line

_BYTES_AT_ONCE = 1 << 16
# Seconds that other lines have to come once one is there: a program that writes as fast as it can
# fills a whole chunk, and a person at the keyboard does not notice.
_PATIENCE_SECONDS = 0.01


class Line(NamedTuple):
    """A line: its number, counted from 1, its text without the end, its bytes with the end."""

    number: int
    text: str
    size: int


class LineReader:
    """Reads UTF-8 lines, which end at `"\\n"` or `"\\r\\n"` alone.

    It asks the system for what is there, without a thread: no read hangs when the program ends,
    and a file of any length takes the memory of a chunk.
    """

    def __init__(self, stream: BinaryIO, name: str | os.PathLike = "stdin"):
        self.name = name
        self._stream = stream
        try:
            self._descriptor: int | None = stream.fileno()
        except (AttributeError, OSError):
            self._descriptor = None  # Bytes in memory: all of it is there.
        self._lines: collections.deque[bytes] = collections.deque()
        self._begun: list[bytes] = []  # the parts of a line whose end has not come
        self._ended = False
        self._taken = 0

    def take(self, most: int) -> list[Line]:
        """Waits for a line and returns all lines that are there; none at the end of the stream.

        Raises `InputError` for a line that is not UTF-8, after the lines before it were returned.
        """
        while not self._lines and not self._ended:
            self._is_ready(None)
            self._read()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while len(self._lines) < most and not self._ended:
            if not self._is_ready(max(deadline - time.monotonic(), 0)):
                break
            self._read()
        taken: list[Line] = []
        while self._lines and len(taken) < most:
            try:
                content, number = self._lines[0], self._taken + 1
                taken.append(Line(number, decode_line(content, number, self.name), len(content)))
            except InputError:
                if not taken:
                    raise
                break
            self._lines.popleft()
            self._taken += 1
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


def read_chunks(stream: BinaryIO, most: int) -> Iterator[list[Line]]:
    """The lines of stdin, at most `most` at once, as soon as there is one."""
    reader = LineReader(stream)
    while lines := reader.take(most):
        yield lines


def with_prefixes(
    chunks: Iterable[list[Line]], path: str | os.PathLike | None
) -> Iterator[list[tuple[Line, str | None]]]:
    """Pairs each line with its target prefix, in constant memory.

    The file `path` has a line for each line of the input, a blank one where nothing is forced;
    without a file all prefixes are None. Raises `InputError` where its lines end or are not UTF-8,
    after the lines before that place were yielded.
    """
    if path is None:
        for lines in chunks:
            yield [(line, None) for line in lines]
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


@contextlib.contextmanager
def progress_bar(total: int | None = None, shown: bool = True) -> Iterator[Any]:
    """A tqdm bar on stderr for `total` bytes of lines; `advance` counts finished lines."""
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no thread that looks after it
    start = "{percentage:3.0f}%|{bar}| " if total else ""
    form = start + "{desc} [{elapsed}" + ("<{remaining}]" if total else "]")
    options = {"bar_format": form, "dynamic_ncols": True, "disable": not shown}
    with tqdm(total=total or None, file=sys.stderr, **options) as bar:
        bar.sentences = 0
        yield bar


def advance(bar: Any, lines: Sequence[Line]) -> None:
    """Counts lines in a bar of `progress_bar`, which shows their rate."""
    if bar.disable:
        return
    bar.sentences += len(lines)
    rate = bar.sentences / (time.time() - bar.start_t)
    describe(bar, f"{bar.sentences} sentences, {rate:.1f}/s", sum(line.size for line in lines))


def describe(bar: Any, text: str, size: int) -> None:
    """Shows a text and `size` more finished bytes in a bar of `progress_bar`."""
    bar.set_description_str(text, refresh=False)
    # Not `update`, which draws by the clock: chunks come seldom.
    bar.n += size
    bar.refresh()


def size_left(stream: Any) -> int | None:
    """Bytes from here to the end of a regular file; None if the end is unknown."""
    try:
        descriptor = stream.fileno()
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        return max(found.st_size - os.lseek(descriptor, 0, os.SEEK_CUR), 0)
    except (AttributeError, OSError):
        return None
