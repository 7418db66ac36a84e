"""Tables of texts as spreadsheets save them: cells in quotes, names of columns, CSV."""

import csv
import gzip
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from keras_transformer.reading import to_cell
from keras_transformer.text.tables import are_column_names, is_table, iterate_rows

# A table with every other byte 0 would be read as UTF-16.
CELLS = st.text(
    st.sampled_from("ab\",;\t\n é'")
    | st.characters(exclude_categories=["Cs"], exclude_characters="\0")
)
ROWS = st.lists(st.lists(CELLS, min_size=2, max_size=2), min_size=1, max_size=5)


@pytest.fixture
def read(tmp_path):
    """A function that returns the rows of a table's text."""

    def rows(text, name="a.tsv", **options):
        (tmp_path / name).write_bytes(text.encode("utf-8"))
        return list(iterate_rows(tmp_path / name, **options))

    return rows


@given(ROWS, st.sampled_from(["\t", ",", ";"]), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
def test_cells_are_those_that_a_spreadsheet_has_written(tmp_path_factory, rows, separator, quoting):
    rows = [["ab", "cd"]] * 9 + rows  # which show the separator
    path = tmp_path_factory.mktemp("table") / ("a.tsv" if separator == "\t" else "a.csv")
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=separator, quoting=quoting).writerows(rows)
    expected = []
    for row in rows:
        cells = []
        for cell in row:
            parts = [part.strip() for part in re.split("[\t\r\n]", cell)]
            cells.append(cell if len(parts) == 1 else " ".join(filter(None, parts)))
        expected.append(cells)
    assert [cells for _, cells in iterate_rows(path, header=False)] == expected


@given(st.lists(CELLS.filter(lambda cell: not re.search("[\t\r\n]", cell)), min_size=1))
def test_a_cell_that_is_written_is_read(tmp_path_factory, cells):
    path = tmp_path_factory.mktemp("table") / "a.tsv"
    path.write_text("\t".join(map(to_cell, ["a", *cells])) + "\n", encoding="utf-8", newline="")
    ((_, found),) = iterate_rows(path, header=False)
    assert found == ["a", *cells]


NOT_IN_QUOTES = ['"Yes," he said.', 'He said "yes".', '"a" "b"', '5"', 'a"b', '"a"b""']


@pytest.mark.parametrize("cell", NOT_IN_QUOTES)
def test_a_cell_with_text_after_its_end_stays_as_it_is(read, cell):
    assert read(f'{cell}\tx\ny\t{cell}\n"z"\t\n') == [(1, [cell, "x"]), (2, ["y", cell])] + [
        (3, ["z", ""])
    ]


OPEN = ['"no\tb', 'a\t"b', '"a ""b\tc', '"a\nb"c\td', '"a" b\t"c']


@pytest.mark.parametrize("text", OPEN)
def test_a_cell_whose_quotes_do_not_end_is_refused_with_its_line(read, text):
    text = f'"one\ntwo"\tx\ny\tz\n{text}\nlast\tline\n'
    with pytest.raises(InputError, match=r'line 4: expected a cell that starts with " to end with'):
        read(text)
    rows = read(text, lenient=True)
    assert rows[:2] == [(1, ["one two", "x"]), (3, ["y", "z"])]
    assert rows[2][0] == 4 and rows[2][1][1] == "\ufffd"  # which cleaning drops
    assert rows[-1][1] == ["last", "line"]


SEPARATORS = [("a,b\n", ["a", "b"]), ("a;b\n", ["a", "b"]), ("a\tb\n", ["a", "b"])]
SEPARATORS += [("Ja, gut;Yes\nJa;Yes\n", ["Ja, gut", "Yes"]), ("a;b,c\n", ["a;b", "c"])]
SEPARATORS += [("Nun, ja, gut;Now, well, yes\n", ["Nun, ja, gut", "Now, well, yes"])]
SEPARATORS += [("1,a,b\n2,c,d\n", ["1", "a", "b"]), ('"a,b";c\nd;e\n', ["a,b", "c"])]


@pytest.mark.parametrize("name", ["a.csv", "A.CSV"])
@pytest.mark.parametrize(("text", "cells"), SEPARATORS)
def test_a_csv_file_has_the_separator_that_gives_two_columns(read, name, text, cells):
    assert read(text, name, header=False)[0][1] == cells
    assert is_table(name)


def test_a_compressed_table_is_a_table(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a,b\n"))
    assert is_table(tmp_path / "a.csv.gz") and not is_table(tmp_path / "a.txt")
    assert list(iterate_rows(tmp_path / "a.csv.gz")) == [(1, ["a", "b"])]


HEADERS = [["source", "target"], ["English", "German"], ["en", "de"], ["en-US", "pt_BR"]]
HEADERS += [["Source text", "Brazilian Portuguese"], ["zh_Hans", "EN"]]
SENTENCES = [["English", "Englisch"], ["source", "Quelle"], ["de", "de"], ["x-y", "a-b"]]
SENTENCES += [["Hello", "Hallo"], ["en-a", "de-b"], ["source"], ["target " * 99, "source"]]


@pytest.mark.parametrize("cells", HEADERS)
def test_names_of_columns_are_an_error_that_names_the_option(read, cells):
    text = "\t".join(cells) + "\na\tb\n"
    with pytest.raises(InputError, match="line 1: expected texts.* columns.*`header=True`"):
        read(text)
    assert read(text, header=True) == [(2, ["a", "b"])]
    assert read(text, header=False) == [(1, cells), (2, ["a", "b"])]
    assert read("a\tb\n" + text)[1] == (2, cells)


@pytest.mark.parametrize("cells", SENTENCES)
def test_sentences_are_no_names_of_columns(cells):
    assert not are_column_names(cells)
