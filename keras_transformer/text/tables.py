"""Reads and writes tables of texts as spreadsheets do: lines of cells, some of them in quotes."""

import collections
import csv
import functools
import itertools
import os
import re
from collections.abc import Iterator, Sequence

from keras_transformer.errors import InputError
from keras_transformer.options import received
from keras_transformer.reading import iterate_lines, without_compression

_SEPARATORS = ",;\t"  # of a CSV file
_FIRST_ROWS = 100  # that show the separator of a CSV file
_BREAKS = re.compile(r"[\t\r\n]+")
_CODE = re.compile("[a-z]{2}[-_](?:[a-z]{2}|[a-z]{4})")  # of a language with its region or script
_COLUMN_NAMES = frozenset(("source", "src", "source text", "target", "tgt", "trg", "target text"))
_COLUMN_NAMES |= {"term", "translation", "original", "label", "text", "sentence"}

Line = tuple[int, str]


def is_table(path: str | os.PathLike) -> bool:
    """Returns whether a path names a table, TSV or CSV, plain or compressed."""
    return without_compression(os.fspath(path)).lower().endswith((".tsv", ".csv"))


def iterate_rows(
    path: str | os.PathLike, header: bool | None = None, lenient: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yields the cells of each row of a table, and the number of the row's first line.

    Columns of a CSV file, a file with the ending `.csv`, are separated by the comma, the semicolon
    or the tab that gives most of its first rows two columns. Columns of other files are separated
    by tabs. A cell that begins with `"` is read as Python's `csv` reads it: it ends at the next
    `"`, and `""` within it is `"`. Line breaks and tabs in a cell become spaces. A cell with more
    text after its end, such as `"Yes," he said.`, is not in quotes: it stays as it is.

    Args:
        path: Path of the file, as for `iterate_lines`.
        header: Whether the first row has the names of the columns, and is skipped. By default such
            a row, as `source` and `target`, is an error.
        lenient: Whether bytes that are not UTF-8 become U+FFFD, and a line whose cell in quotes
            does not end is a row of the line and U+FFFD.

    Raises:
        InputError: The errors of `iterate_lines`; or a cell in quotes does not end.
    """
    errors = "replace" if lenient else "strict"
    lines: Iterator[Line] = enumerate(iterate_lines(path, errors=errors), 1)
    separator = "\t"
    if without_compression(os.fspath(path)).lower().endswith(".csv"):
        first_lines = list(itertools.islice(lines, _FIRST_ROWS))
        separator = _separator_of(first_lines)
        lines = itertools.chain(first_lines, lines)
    rows = _rows(lines, separator, os.fspath(path), lenient)
    for number, cells in rows:
        if number == 1 and header:
            continue
        if number == 1 and header is None and are_column_names(cells):
            rule = f"{path}, line 1: expected texts. Received: the names of columns, {cells!r:.80}"
            raise InputError(f"{rule}. Skip the line with `header=True`.")
        yield number, cells


def are_column_names(cells: Sequence[str]) -> bool:
    """Returns whether cells seem to be the names of columns.

    These are words such as `source` and `target`, or two languages by their codes or English names.

    >>> are_column_names(["Source", "target"]), are_column_names(["English", "de-AT"])
    (True, True)
    >>> are_column_names(["Source", "Quelle"]), are_column_names(["English", "Englisch"])
    (False, False)
    """
    names = [cell.strip().casefold() for cell in cells]
    if len(set(names)) < 2 or max(map(len, names)) > 40:
        return False
    return all(name in _COLUMN_NAMES or _is_language(name) for name in names)


def _is_language(name):
    return name in _languages() or bool(_CODE.fullmatch(name)) and name[:2] in _languages()


@functools.cache
def _languages():
    """Returns the codes of two letters and the English names of languages, in lower case."""
    from babel import Locale

    rows = Locale("en").languages.items()
    return {code for code, _ in rows if len(code) == 2} | {name.casefold() for _, name in rows}


def _separator_of(lines):
    counts = {
        separator: sum(len(cells) == 2 for _, cells in _rows(iter(lines), separator, "", True))
        for separator in _SEPARATORS
    }
    return max(counts, key=lambda separator: counts[separator])  # the first of equals


class _Lines:
    """Numbered lines, of which some may be given back."""

    def __init__(self, lines: Iterator[Line]):
        self._lines = lines
        self._returned: collections.deque[Line] = collections.deque()
        self.taken: list[Line] = []  # since the last call of `next`

    def __iter__(self) -> Iterator[Line]:
        return self

    def __next__(self) -> Line:
        self.taken = [self._returned.popleft() if self._returned else next(self._lines)]
        return self.taken[0]

    def texts(self) -> Iterator[str]:
        """Yields the last line and those after it, for one row."""
        yield f"{self.taken[0][1]}\n"
        while line := self._returned.popleft() if self._returned else next(self._lines, None):
            self.taken.append(line)
            yield f"{line[1]}\n"

    def give_back(self) -> None:
        """Gives back all lines after the one that `next` returned."""
        self._returned.extendleft(reversed(self.taken[1:]))
        del self.taken[1:]


def _rows(lines, separator, path, lenient):
    lines, quote = _Lines(lines), f'{separator}"'
    for number, line in lines:
        cells = line.split(separator)
        if has_quotes := line.startswith('"') or quote in line:
            try:
                cells = next(csv.reader(lines.texts(), delimiter=separator, strict=True))
            except csv.Error:
                is_whole = len(lines.taken) == 1 and not any(map(_is_open, cells))
                lines.give_back()
                if not is_whole and not lenient:
                    raise _open_cell(path, number, line) from None
                cells = cells if is_whole else [line, "\ufffd"]
        if has_quotes or separator != "\t":
            cells = list(map(_without_breaks, cells))
        yield number, cells


def _open_cell(path, number, line):
    rule = f'{path}, line {number}: expected a cell that starts with " to end with "'
    advice = 'Write """Yes,"" he said." for "Yes," he said.'
    return InputError(f"{rule}. Received: {received(line)}. {advice}")


def _is_open(cell):
    return cell.startswith('"') and '"' not in cell[1:]


def _without_breaks(cell):
    if not _BREAKS.search(cell):
        return cell
    return " ".join(filter(None, map(str.strip, _BREAKS.split(cell))))
