"""Reads the lines of a stream as they arrive, and writes their results."""

import collections
import io
import os
import select
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, TextIO

from tqdm import tqdm

from keras_transformer.base.errors import InputError
from keras_transformer.base.reading import decode_line, line_end
from keras_transformer.cli.progress import advance, say_beside_bar
from keras_transformer.engine.device import CPU
from keras_transformer.engine.translation import Translation
from keras_transformer.engine.translator import Translator
from keras_transformer.extras.bulk.lines import Line, translated_lines

_BYTES_AT_ONCE = 1 << 16
# Seconds that other lines have to come once one is there: a program that writes as fast as it can
# fills a whole chunk, and a person at the keyboard does not notice.
_PATIENCE_SECONDS = 0.01


class LineReader:
    """Reads UTF-8 lines, which end only at `"\\n"` or `"\\r\\n"`.

    It asks the system for what is there, without a thread: no read hangs when the program ends,
    and a file of any length takes the memory of a chunk. `first_bytes` were read of it before.
    """

    def __init__(
        self, stream: BinaryIO, name: str | os.PathLike = "stdin", first_bytes: bytes = b""
    ):
        self._stream, self._name = stream, name
        self._lines: collections.deque[bytes] = collections.deque()
        self._partial_line = bytearray()  # a line without its end
        self._ended = False
        self._taken = 0
        self._add(first_bytes)

    def take(self, max_lines: int) -> list[Line]:
        """Waits for a line and returns all lines that are there; none at the end of the stream.

        Raises `InputError` for a line that is not UTF-8, after the lines before it were returned.
        """
        deadline = timeout = None  # The first line may take as long as it likes.
        while len(self._lines) < max_lines and not self._ended:
            if self._lines:
                deadline = deadline or time.monotonic() + _PATIENCE_SECONDS
                timeout = max(deadline - time.monotonic(), 0)
            if not self._is_ready(timeout):
                break
            self._read()
        lines: list[Line] = []
        while self._lines and len(lines) < max_lines:
            content, number = self._lines[0], self._taken + 1
            try:
                text = decode_line(content, number, self._name)
                lines.append(Line(number, text, len(content), end=line_end(content)))
            except InputError:
                if not lines:
                    raise
                break
            self._lines.popleft()
            self._taken = number
        return lines

    def _is_ready(self, timeout):
        try:
            return bool(select.select([self._stream], [], [], timeout)[0])
        except io.UnsupportedOperation:  # Bytes in memory: all of it is there.
            return True

    def _read(self):
        content = self._stream.read1(_BYTES_AT_ONCE)
        if content is None:
            return  # A terminal that another program has made non-blocking.
        self._add(content)
        self._ended = not content
        if self._ended and self._partial_line:
            self._lines.append(bytes(self._partial_line))

    def _add(self, content):
        self._partial_line += content
        if b"\n" in content:
            *lines, self._partial_line = self._partial_line.split(b"\n")
            self._lines.extend(bytes(line) + b"\n" for line in lines)


def read_chunks(stream: BinaryIO, max_lines: int, first_bytes: bytes = b"") -> Iterator[list[Line]]:
    """Yields lines of stdin as soon as they come, at most `max_lines` together.

    `first_bytes` were read of it before.
    """
    reader = LineReader(stream, first_bytes=first_bytes)
    while lines := reader.take(max_lines):
        yield lines


def with_prefixes(
    chunks: Iterable[list[Line]], path: str | os.PathLike | None
) -> Iterator[list[Line]]:
    """Gives each line its target prefix, in constant memory.

    The file `path` has a line for each line of the input, a blank one where nothing is forced;
    without a file lines have none. Raises `InputError` where its lines end or are not UTF-8, after
    the lines before that place were yielded.
    """
    if path is None:
        yield from chunks
        return
    try:
        file = open(path, "rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    rule = "there must be a target prefix for each line."
    with file:
        reader, last = LineReader(file, path), 0
        for lines in chunks:
            while lines:
                prefixes = reader.take(len(lines))
                if not prefixes:
                    where = f"ends after line {last}, but stdin has a line {last + 1}"
                    raise InputError(f"{path}: {where}: {rule}")
                pairs = zip(lines, prefixes, strict=False)
                yield [line._replace(target=prefix.text) for line, prefix in pairs]
                lines, last = lines[len(prefixes) :], prefixes[-1].number
        if reader.take(1):
            where = f"has a line {last + 1}, but stdin ended after line {last}"
            raise InputError(f"{path}: {where}: {rule}")


def chunk_size(batch_size: int | None, lines_at_once: int = CPU.lines_at_once) -> int:
    """Lines to wait for: many, because they are sorted by length, and whole batches of them."""
    if batch_size is None:
        return lines_at_once
    return batch_size * max(1, lines_at_once // batch_size)


def translate_lines(
    translator: Translator,
    input: BinaryIO,
    output: TextIO,
    format: Callable[[Line, Translation], str],
    target_prefixes: str | os.PathLike | None = None,
    batch_size: int | None = None,
    bar: Any = None,
    first_bytes: bytes = b"",
    **options: Any,
) -> None:
    """Translates each line of a stream, in order, in constant memory.

    Lines that are there are translated together, at most about a thousand. A single line is
    translated and written before the next line is waited for.

    Args:
        translator: `Translator` of a run or an export.
        input: Binary stream of UTF-8 lines.
        output: Text stream.
        format: Makes text of a line and its translation, such as `formats.as_text`.
        target_prefixes: Path of a file with a target prefix for each line.
        batch_size, **options: Arguments of `Translator.translate`.
        bar: Shows the progress, a `progress_bar`.
        first_bytes: Bytes of the stream that were read before.

    Raises:
        InputError: An option is out of range, raised before anything is read; or a line is at
            fault, raised when the lines before it have been written.
    """

    def translate(lines):
        if target_prefixes is not None:
            options["target_prefixes"] = [line.target for line in lines]
        return translator.translate([line.text for line in lines], batch_size=batch_size, **options)

    # Options are checked first, because a wrong option is not a line's fault.
    translator.check_options(batch_size=batch_size, **options)
    max_lines = chunk_size(batch_size, translator.engine.lines_at_once)
    chunks = with_prefixes(read_chunks(input, max_lines, first_bytes), target_prefixes)
    write_results(translate, chunks, format, output, bar=bar)


def write_results(
    function: Callable[[list[Line]], Sequence],
    chunks: Iterable[list[Line]],
    format: Callable[[Line, Any], str],
    output: TextIO,
    name: str = "stdin",
    bar: Any = None,
) -> None:
    """Writes what a function makes of each chunk of lines, up to the line at fault.

    Args:
        function: See `bulk.lines.translated_lines`.
        chunks: Lists of lines.
        format: Makes text of a line and its result.
        output: Text stream.
        name: Name of the lines' file in messages.
        bar: Shows the progress, a `progress_bar`.
    """
    for chunk in chunks:
        for lines, results in translated_lines(function, chunk, name, say_beside_bar):
            with tqdm.external_write_mode():  # It clears a bar on the same terminal.
                for line, result in zip(lines, results, strict=True):
                    output.write(format(line, result))
                output.flush()
            if bar is not None:
                advance(bar, len(lines), sum(line.size for line in lines))
