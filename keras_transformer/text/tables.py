"""Reads tables of texts: CSV as spreadsheets save it, and columns with tabs between them."""

import contextlib
import csv
import functools
import itertools
import os
import re
from collections.abc import Iterator, Sequence

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import received
from keras_transformer.base.reading import iterate_lines, without_compression

_SEPARATORS = ",;\t"  # of a CSV file; the first of equals is taken
_FIRST_ROWS = 100  # that show the separator of a CSV file
_BREAKS = re.compile(r"[\t\r\n]+")
_CODE = re.compile("[a-z]{2}[-_](?:[a-z]{2}|[a-z]{4})")  # of a language with its region or script
_COLUMN_NAMES = frozenset(("source", "src", "source text", "target", "tgt", "trg", "target text"))
_COLUMN_NAMES |= {"term", "translation", "original", "label", "text", "sentence"}


def is_table(path: str | os.PathLike) -> bool:
    """Returns whether a path names a table, TSV or CSV, plain or compressed."""
    return without_compression(os.fspath(path)).lower().endswith((".tsv", ".csv"))


def iterate_rows(
    path: str | os.PathLike, header: bool | None = None, lenient: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yields the cells of each row of a table, and the number of the row's first line.

    Python's `csv` reads a file with the ending `.csv`. Its columns are separated by the comma, the
    semicolon or the tab that gives most of its first rows two columns. Line breaks and tabs in a
    cell become spaces. Lines of other files are split at tabs. A cell there that begins with `"` is
    an error, because it may be in quotes.

    Args:
        path: Path of the file, as for `iterate_lines`.
        header: Whether the first row has the names of the columns, and is skipped. By default such
            a row, as `source` and `target`, is an error.
        lenient: Whether bytes that are not UTF-8 become U+FFFD.

    Raises:
        InputError: The errors of `iterate_lines`; or a row that its kind of table cannot have.
    """
    is_csv = without_compression(os.fspath(path)).lower().endswith(".csv")
    lines = iterate_lines(path, errors="replace" if lenient else "strict")
    for number, cells in (_csv_rows if is_csv else _tsv_rows)(lines, os.fspath(path)):
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


def _csv_rows(lines, path):
    lines = (f"{line}\n" for line in lines)
    first_lines = list(itertools.islice(lines, _FIRST_ROWS))
    separator = max(_SEPARATORS, key=functools.partial(_count_pairs, first_lines))
    rows = csv.reader(itertools.chain(first_lines, lines), delimiter=separator, strict=True)
    number = 1
    try:
        for cells in rows:
            yield number, list(map(_without_breaks, cells or [""]))
            number = rows.line_num + 1
    except csv.Error as error:
        rule = f"{path}, line {number}: expected a row of a CSV file"
        raise InputError(f"{rule}. Received: {error}.") from None


def _count_pairs(lines, separator):
    """Returns how many rows have two cells."""
    count = 0
    with contextlib.suppress(csv.Error):
        for cells in csv.reader(lines, delimiter=separator):
            count += len(cells) == 2
    return count


def _tsv_rows(lines, path):
    for number, line in enumerate(lines, 1):
        if line.startswith('"') or '\t"' in line:
            rule = f'{path}, line {number}: a cell of a TSV file must not begin with "'
            advice = "Save a spreadsheet as CSV. Write other columns as files of their own"
            raise InputError(f"{rule}. Received: {received(line)}. {advice}, with `cut -f 1`.")
        yield number, line.split("\t")


def _without_breaks(cell):
    if not _BREAKS.search(cell):
        return cell
    return " ".join(filter(None, map(str.strip, _BREAKS.split(cell))))
