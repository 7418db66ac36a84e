"""Tables of texts: CSV as spreadsheets save it, columns with tabs, names of columns."""

import csv
import gzip
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keras_transformer.base.errors import InputError
from keras_transformer.base.reading import csv_row
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
    path = tmp_path_factory.mktemp("table") / "a.csv"
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


LINES = st.lists(CELLS.filter(lambda cell: not re.search("[\t\r\n]", cell)), min_size=1)


@given(LINES)
def test_a_row_that_is_written_is_read(tmp_path_factory, cells):
    path = tmp_path_factory.mktemp("table") / "a.csv"
    path.write_text(csv_row(["a", "b"]) + csv_row(["a", *cells]), encoding="utf-8", newline="")
    assert list(iterate_rows(path, header=False)) == [(1, ["a", "b"]), (2, ["a", *cells])]


@given(LINES)
@example(['"Yes," he said.', "b"])
@example(["a", '"b"'])
def test_columns_with_tabs_stay_as_they_are_unless_a_quote_begins_them(tmp_path_factory, cells):
    path = tmp_path_factory.mktemp("table") / "a.tsv"
    path.write_text("a\tb\n" + "\t".join(cells) + "\n", encoding="utf-8", newline="")
    if any(cell.startswith('"') for cell in cells):
        with pytest.raises(InputError, match='line 2: .* must not begin with ".* as CSV'):
            list(iterate_rows(path, header=False, lenient=True))
    else:
        assert list(iterate_rows(path, header=False)) == [(1, ["a", "b"]), (2, cells)]


BROKEN = ['"Yes," he said.,b', '"no,b', 'a,"b', '"a ""b,c', f"a,{'b' * 200_000}"]


@pytest.mark.parametrize("text", BROKEN)
def test_a_row_that_no_spreadsheet_writes_is_refused_with_its_line(read, text):
    text = f'"one\ntwo",x\ny,z\n\n{text}\nlast,line\n'
    for options in ({}, {"lenient": True}):
        with pytest.raises(InputError, match="a.csv, line 5: expected a row of a CSV file"):
            read(text, "a.csv", **options)


def test_rows_have_the_numbers_of_their_first_lines(read):
    text = '"one\ntwo",x\n\ny,z "or" 5"\n'
    assert read(text, "a.csv") == [(1, ["one two", "x"]), (3, [""]), (4, ["y", 'z "or" 5"'])]
    assert read('one\t\n\ny\t5"\n') == [(1, ["one", ""]), (2, [""]), (3, ["y", '5"'])]


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
