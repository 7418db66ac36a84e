"""Lines of a stream as they come: one when one is there, many when many are; a bar for them."""

import collections
import contextlib
import functools
import json
import math
import os
import select
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, TextIO

import numpy as np

from keras_transformer.engine.translation import Translation, pair_lines
from keras_transformer.engine.translator import Translator
from keras_transformer.errors import InputError, say
from keras_transformer.files import decode_line, one_line

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
    """Reads UTF-8 lines, which end only at `"\\n"` or `"\\r\\n"`.

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
                prefixes = [line.text for line in reader.take(len(lines))]
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
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        return max(status.st_size - os.lseek(descriptor, 0, os.SEEK_CUR), 0)
    except (AttributeError, OSError):
        return None


_LINES_AT_ONCE = 1024
_BACK_TO_AN_EMPTY_LINE = "\r\x1b[K"
_ALIGNMENT_DIGITS = 4


def translate_lines(
    translator: Translator,
    input: BinaryIO,
    output: TextIO,
    format: str = "text",
    target_prefixes: str | os.PathLike | None = None,
    batch_size: int | None = None,
    bar: Any = None,
    **options: Any,
) -> None:
    """Translates each line of a stream, in order, in constant memory.

    Lines that are there are translated together, at most about a thousand; a line that comes
    alone is translated and written before the next one is waited for.

    Args:
        translator: `Translator`.
        input: Binary stream of UTF-8 lines.
        output: Text stream.
        format: A key of `FORMATS`.
        target_prefixes: Path of a file with a target prefix for each line.
        batch_size, **options: Arguments of `Translator.translate`.
        bar: `progress_bar`.

    Raises:
        InputError: An option is out of range, raised before anything is read; or a line is at
            fault, raised when the lines before it have been written.
    """
    # Options are checked first: a wrong one is no line's fault.
    translator.translate([], batch_size=batch_size, **options)

    def translate(pairs):
        given = dict(options)
        if target_prefixes is not None:
            given["target_prefixes"] = [prefix for _, prefix in pairs]
        texts = [line.text for line, _ in pairs]
        return translator.translate(texts, batch_size=batch_size, **given)

    def write(pair, translation):
        output.write(FORMATS[format](pair[0], translation))

    chunks = with_prefixes(read_chunks(input, chunk_size(batch_size)), target_prefixes)
    _write_each(translate, chunks, write, output, "stdin", bar)


def translate_incrementally(
    translator: Translator,
    input: BinaryIO,
    output: TextIO,
    target_prefixes: str | os.PathLike | None = None,
    rewrite: bool = False,
    **options: Any,
) -> None:
    """Translates each line of a stream and writes its text token by token.

    Takes the arguments of `translate_lines`, the options of `Translator.stream`, and `rewrite`:
    `output` is a terminal, where text that changes can be written again.
    """
    translator.stream("", **options)

    def stream(pairs):
        # One of them; refused here if at all, and not while it is written.
        (line, prefix), given = pairs[0], dict(options)
        if prefix is not None:
            given["target_prefix"] = prefix
        return [translator.stream(line.text, **given)]

    def write(pair, texts):
        write_growing(texts, output, rewrite)

    chunks = with_prefixes(read_chunks(input, 1), target_prefixes)
    _write_each(stream, chunks, write, output, "stdin")


def write_growing(texts: Iterable[str], output: TextIO, rewrite: bool = False) -> None:
    """Writes a text as it grows, on one line; `rewrite` as of `translate_incrementally`."""
    shown = ""
    for text in map(one_line, texts):
        if rewrite and not text.startswith(shown):
            output.write(_BACK_TO_AN_EMPTY_LINE + text)
        else:
            output.write(text[len(os.path.commonprefix([shown, text])) :])
        output.flush()
        shown = text
    output.write("\n")


def score_lines(
    translator: Translator,
    source: str | os.PathLike,
    target: str | os.PathLike,
    output: TextIO,
    batch_size: int = 32,
    bar: Any = None,
    tsv: bool = False,
    **options: Any,
) -> None:
    """Writes a JSON object for each pair of aligned files, with the model's probabilities.

    Takes the paths of the two texts, the options of `Translator.score`, and the other arguments of
    `translate_lines`. With `tsv` it writes a row of `as_scored_row` instead.
    """
    from keras_transformer.data import read_pairs

    translator.score([], [], batch_size=batch_size, **options)
    texts = zip(*read_pairs(source, target), strict=True)
    pairs = [
        (Line(i, one, len(one.encode()) + 1), other) for i, (one, other) in enumerate(texts, 1)
    ]

    def score(pairs):
        sources, targets = [line.text for line, _ in pairs], [text for _, text in pairs]
        return translator.score(sources, targets, batch_size=batch_size, **options)

    def write(pair, scored):
        output.write((as_scored_row if tsv else as_scored_json)(*pair, scored))

    limit = chunk_size(batch_size)
    chunks = (pairs[start : start + limit] for start in range(0, len(pairs), limit))
    _write_each(score, chunks, write, output, f"{source} and {target}", bar)


def chunk_size(batch_size: int | None) -> int:
    """Lines to wait for: many, because they are sorted by length, and whole batches of them."""
    if batch_size is None:
        return _LINES_AT_ONCE
    return batch_size * max(1, _LINES_AT_ONCE // batch_size)


def _write_each(function, chunks, write, output, name, bar=None):
    """Writes what a function makes of each chunk, up to the line at fault."""
    # Clears a bar while something is written on its terminal.
    apart = contextlib.nullcontext if bar is None else bar.external_write_mode

    def log(text):
        with apart():
            say(text)

    for pairs in chunks:
        results, error = results_of(function, pairs, name, log)
        with apart():
            for pair, result in zip(pairs, results, strict=False):
                write(pair, result)
            output.flush()
        if error is not None:
            raise error
        if bar is not None:
            advance(bar, [line for line, _ in pairs])


def results_of(
    function: Callable[[list], Iterable],
    pairs: list[tuple[Line, Any]],
    name: str,
    log: Callable[[object], None] = say,
) -> tuple[Iterable, InputError | None]:
    """The results of a function of lines, up to the line at fault, and an error that names it.

    Args:
        function: From a list of pairs to as many results; refuses with an `InputError`, at once.
        pairs: Lines, each with its prefix or target.
        name: Name of the lines' file in messages.
        log: Called with each warning of `function`, as one line.
    """
    first, last = pairs[0][0].number, pairs[-1][0].number
    where = f"{name}, line {first}" if first == last else f"{name}, lines {first} to {last}"
    try:
        with warnings.catch_warnings(record=True) as caught:
            # A warning for other lines is not a repetition.
            warnings.simplefilter("always", UserWarning)
            results = function(pairs)
    except InputError as error:
        if error.index is None:
            return (), InputError(f"{where}: {error}")
        results, earlier = (), None
        if error.index:
            results, earlier = results_of(function, pairs[: error.index], name, log)
        number = pairs[error.index][0].number
        return results, earlier or InputError(f"{name}, line {number}: {error.message}")
    for warning in caught:
        log(f"{where}: {warning.message}")
    return results, None


def as_text(line: Line, translation: Translation) -> str:
    """The best translation."""
    return one_line(translation.text) + "\n"


def as_list(line: Line, translation: Translation) -> str:
    """A line for each hypothesis: `number ||| translation ||| score`, counted from 0."""
    return "".join(
        f"{line.number - 1} ||| {one_line(hypothesis.text)} ||| {hypothesis.score:.4f}\n"
        for hypothesis in (translation, *translation.alternatives)
    )


def as_json(line: Line, translation: Translation) -> str:
    """One JSON object: all that the translation holds."""
    return _json_line({"line": line.number, "source": line.text, **_record(translation)})


def as_scored_json(line: Line, target: str, scored: Translation) -> str:
    """One JSON object for a given target."""
    values = _record(scored)
    del values["translation"], values["alternatives"]
    return _json_line({"line": line.number, "source": line.text, "target": target, **values})


def as_scored_row(line: Line, target: str, scored: Translation) -> str:
    """Source, target and cross-entropy of a given target, in nats per token, with tabs between.

    The nats are per word of a target whose tokens the model does not tell.
    """
    count = len(scored.token_log_probabilities) or len(target.split()) + 1
    sides = [" ".join(side.split()) for side in (line.text, target)]
    return "\t".join([*sides, f"{-scored.log_probability / count:.4f}"]) + "\n"


def as_pairs(line: Line, translation: Translation, is_back: bool = False) -> str:
    """A pair of each hypothesis: `source<TAB>target`; see `pair_lines`."""
    lines = pair_lines(line.text, translation, is_back)
    return "".join(line.rpartition("\t")[0] + "\n" for line in lines)


FORMATS = {
    "text": as_text,
    "list": as_list,
    "json": as_json,
    "pairs": as_pairs,
    "back": functools.partial(as_pairs, is_back=True),
}


def _record(translation):
    # Fit for JSON: no number in it is infinite or NaN.
    alternatives = [{**_hypothesis(x), **_parts(x, _hypothesis)} for x in translation.alternatives]
    return {
        **_hypothesis(translation),
        "source_tokens": list(translation.source_tokens),
        "alternatives": alternatives,
        **_parts(translation, _record),
    }


def _hypothesis(translation):
    values = {
        "translation": translation.text,
        "score": _number(translation.score),
        "log_probability": _number(translation.log_probability),
        "tokens": list(translation.tokens),
        "token_log_probabilities": [
            _number(value) for value in translation.token_log_probabilities
        ],
    }
    if translation.continuation_length is not None:
        values["continuation_log_probability"] = _number(translation.continuation_log_probability)
        values["continuation_length"] = translation.continuation_length
    if translation.alignment is not None:
        rows = np.asarray(translation.alignment, "float64").round(_ALIGNMENT_DIGITS)
        values["alignment"] = rows.tolist()
    return values


def _parts(translation, record):
    return {"parts": [record(part) for part in translation.parts]} if translation.parts else {}


def _number(value):
    # The shortest digits that give the same float32 again: none is lost, none is made up.
    return float(str(np.float32(value))) if math.isfinite(value) else None


def _json_line(values):
    return json.dumps(values, ensure_ascii=False) + "\n"
