import pytest

from keras_transformer.errors import InputError
from keras_transformer.streaming.prefixes import with_prefixes
from keras_transformer.streaming.reader import Line

CHUNKS = [[Line(1, "a", 2), Line(2, "b", 2)], [Line(3, "c", 2)]]


def test_without_a_file_there_are_none():
    assert list(with_prefixes(CHUNKS, None)) == [
        [(line, None) for line in chunk] for chunk in CHUNKS
    ]


def test_each_line_gets_its_own(tmp_path):
    path = tmp_path / "prefixes"
    path.write_bytes("Ä\n\nC".encode())
    found = [[(line.text, prefix) for line, prefix in each] for each in with_prefixes(CHUNKS, path)]
    assert found == [[("a", "Ä"), ("b", "")], [("c", "C")]]


@pytest.mark.parametrize(
    ("content", "given", "message"),
    [
        (b"A\n", ["A"], "prefixes: ends after line 1, but stdin has a line 2: there must be"),
        (b"A\nB\n", ["A", "B"], "ends after line 2, but stdin has a line 3"),
        (b"", [], "ends after line 0, but stdin has a line 1"),
        (b"A\nB\nC\nD\n", ["A", "B", "C"], "has a line 4, but stdin ended after line 3"),
        (b"A\n\xff\nC\n", ["A"], "prefixes, line 2: must be UTF-8"),
    ],
)
def test_a_file_of_another_length_is_told_after_the_lines_that_have_one(
    tmp_path, content, given, message
):
    path = tmp_path / "prefixes"
    path.write_bytes(content)
    received = []
    with pytest.raises(InputError, match=message):
        for pairs in with_prefixes(CHUNKS, path):
            received += [prefix for _, prefix in pairs]
    assert received == given


def test_a_file_that_is_not_there_is_named(tmp_path):
    for name in ("nowhere", "."):
        with pytest.raises(InputError, match="cannot be read: "):
            list(with_prefixes(CHUNKS, tmp_path / name))
