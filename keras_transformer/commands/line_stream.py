"""Lines through a translator: translated, written incrementally, or scored, as they come."""

import contextlib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, TextIO

from keras_transformer.commands.line_formats import FORMATS, as_scored_json, one_line
from keras_transformer.commands.line_reader import Line, read_chunks, with_prefixes
from keras_transformer.commands.progress import Progress
from keras_transformer.errors import InputError
from keras_transformer.translator import Translator

_LINES_AT_ONCE = 1024
_BACK_TO_AN_EMPTY_LINE = "\r\x1b[K"
# How the engine names a text of the list that it was given.
_PLACE = re.compile(r",? (text|prefix) 1\b")


def translate_lines(
    translator: Translator,
    input: BinaryIO,
    output: TextIO,
    format: str = "text",
    target_prefixes: str | os.PathLike | None = None,
    batch_size: int = 32,
    progress: Progress | None = None,
    **options,
) -> None:
    """Translates each line of a stream, in order, in constant memory.

    Lines that are there are translated together, at most about a thousand; a line that comes
    alone is translated and written before the next one is waited for.

    Args:
        translator: `Translator`.
        input: Binary stream of UTF-8 lines.
        output: Text stream.
        format: How a translation is written: `"text"`, `"list"` (of the `n_best`, numbered) or
            `"json"`.
        target_prefixes: Path of a file with a target prefix for each line.
        batch_size: As `Translator.translate` takes it.
        progress: `Progress`; by default one that shows warnings alone.
        **options: As `Translator.translate` takes them.

    Raises:
        InputError: An option is out of range, raised before anything is read; or a line is at
            fault, raised when the lines before it have been written.
    """
    # What is wrong with the options is no line's fault.
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
    _write_each(translate, chunks, write, output, "stdin", progress)


def translate_incrementally(
    translator: Translator,
    input: BinaryIO,
    output: TextIO,
    target_prefixes: str | os.PathLike | None = None,
    rewrite: bool = False,
    progress: Progress | None = None,
    **options,
) -> None:
    """Translates each line of a stream and writes its text token by token.

    Args (the others as in `translate_lines`):
        translator: `Translator` of a run folder.
        rewrite: Whether `output` is a terminal, where text that changes can be written anew.
        **options: As `Translator.stream` takes them: greedy search, or `sampling=True`.

    Raises:
        InputError: As `translate_lines`.
    """
    translator.stream("", **options)

    def stream(pairs):
        # One of them; refused here if at all, and not while it is written.
        (line, prefix), given = pairs[0], dict(options)
        if prefix is not None:
            given["target_prefix"] = prefix
        return [translator.stream(line.text, **given)]

    def write(pair, texts):
        _write_incrementally(texts, output, rewrite)

    chunks = with_prefixes(read_chunks(input, 1), target_prefixes)
    _write_each(stream, chunks, write, output, "stdin", progress)


def score_lines(
    translator: Translator,
    source: str | os.PathLike,
    target: str | os.PathLike,
    output: TextIO,
    batch_size: int = 32,
    progress: Progress | None = None,
    **options,
) -> None:
    """Writes a JSON object for each pair of aligned files, with the model's probabilities.

    Args (the others as in `translate_lines`):
        translator: `Translator` of a run folder.
        source: Path of the source text.
        target: Path of its translation.
        batch_size, **options: As `Translator.score` takes them.

    Raises:
        InputError: A file or an option is not what it must be, or a line is too long.
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
        output.write(as_scored_json(*pair, scored))

    most = chunk_size(batch_size)
    chunks = (pairs[start : start + most] for start in range(0, len(pairs), most))
    _write_each(score, chunks, write, output, f"{source} and {target}", progress)


def chunk_size(batch_size: int) -> int:
    """Lines to wait for: many, as they are sorted by length, and whole batches of them."""
    return batch_size * max(1, _LINES_AT_ONCE // batch_size)


def _write_each(function, chunks, write, output, name, progress):
    progress = Progress(shown=False) if progress is None else progress
    for pairs in chunks:
        for pair, result in each_line(function, pairs, name, progress.log):
            progress.clear()
            write(pair, result)
        output.flush()
        progress.advance([line for line, _ in pairs])


def each_line(
    function: Callable[[list], Iterable],
    pairs: list[tuple[Line, Any]],
    name: str,
    log: Callable[[str], None],
) -> Iterator[tuple[tuple[Line, Any], Any]]:
    """Calls a function of a list, and finds the line at fault where it refuses the list.

    Args:
        function: From such a list to as many results; refuses with an `InputError`, at once.
        pairs: Lines, each with its prefix or target.
        name: What messages call the lines' file.
        log: Called with each warning of `function`, as one line.

    Yields:
        `(pair, result)` in order, before an `InputError` with the number of the line at fault.
    """
    first, last = pairs[0][0].number, pairs[-1][0].number
    where = f"{name}, line {first}" if first == last else f"{name}, lines {first} to {last}"
    try:
        with _logged_warnings(where, log):
            results = function(pairs)
    except InputError as error:
        if len(pairs) == 1:
            raise InputError(f"{where}: {_PLACE.sub('', str(error))}") from None
        # Refusing costs nothing, so what has been translated on the way is all of use.
        half = len(pairs) // 2
        for part in (pairs[:half], pairs[half:]):
            yield from each_line(function, part, name, log)
        return
    yield from zip(pairs, results, strict=True)


@contextlib.contextmanager
def _logged_warnings(where, log):
    with warnings.catch_warnings(record=True) as caught:
        # The same again for other lines is no repetition.
        warnings.simplefilter("always", UserWarning)
        yield
    for each in caught:
        log(f"{where}: {' '.join(str(each.message).split())}")


def _write_incrementally(texts, output, rewrite):
    shown = ""
    for text in map(one_line, texts):
        if rewrite and not text.startswith(shown):
            output.write(_BACK_TO_AN_EMPTY_LINE + text)
        else:
            output.write(text[len(os.path.commonprefix([shown, text])) :])
        output.flush()
        shown = text
    output.write("\n")
