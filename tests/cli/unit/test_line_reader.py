import io
import time

import pytest

from keras_transformer.base.errors import InputError
from keras_transformer.cli.lines import Line, LineReader, with_prefixes

CHUNKS = [[Line(1, "a", 2), Line(2, "b", 2)], [Line(3, "c", 2)]]


def texts(lines):
    return [line.text for line in lines]


def test_lines_have_their_numbers_and_sizes():
    reader = LineReader(io.BytesIO("ä\r\n\nlast".encode()))
    assert reader.take(2) == [Line(1, "ä", 4, end="\r\n"), Line(2, "", 1)]
    assert reader.take(2) == [Line(3, "last", 4)]
    assert reader.take(2) == []


def test_only_line_feeds_end_a_line_and_a_first_byte_order_mark_is_no_text():
    content = "\ufeffa\u2028b\x0cc\rd\n\ufeffe\n".encode()
    assert texts(LineReader(io.BytesIO(content)).take(9)) == ["a\u2028b\x0cc\rd", "\ufeffe"]


def test_lines_are_given_as_soon_as_they_are_there(pipe):
    stream, sink = pipe
    reader, start = LineReader(stream), time.monotonic()
    for text in ("one", "two"):
        sink.write(f"{text}\n".encode())
        assert texts(reader.take(1024)) == [text]  # The pipe is still open.
    sink.write(b"three\nfour\nfive\n")
    assert texts(reader.take(2)) == ["three", "four"]
    assert texts(reader.take(2)) == ["five"]  # It does not wait for another one.
    assert time.monotonic() - start < 5
    sink.write(b"no end")
    sink.close()
    assert texts(reader.take(1024)) == ["no end"]
    assert reader.take(1024) == []


def test_a_line_that_comes_in_parts_is_waited_for(pipe, in_background):
    stream, sink = pipe
    sink.write(b"one\nt")

    def write():
        time.sleep(0.1)
        sink.write(b"w")
        time.sleep(0.1)
        sink.write("ö\n".encode())

    reader = LineReader(stream)
    assert texts(reader.take(9)) == ["one"]
    in_background(write)
    assert texts(reader.take(9)) == ["twö"]


def test_a_fast_writer_fills_chunks_larger_than_the_pipe(pipe, in_background):
    stream, sink = pipe
    line = b"y" * 999 + b"\n"  # A pipe holds 64 of them.

    def write():
        sink.write(line * 2000)
        sink.close()

    in_background(write)
    reader, sizes = LineReader(stream), []
    while lines := reader.take(500):
        assert all(line.text == "y" * 999 for line in lines)
        sizes.append(len(lines))
    assert sum(sizes) == 2000
    assert max(sizes) > 100


def test_a_byte_that_is_not_utf_8_is_reported_after_the_lines_before_it():
    reader = LineReader(io.BytesIO(b"one\nStra\xdfe\n"), "stdin")
    assert texts(reader.take(9)) == ["one"]
    with pytest.raises(InputError, match="^stdin, line 2: expected UTF-8.*0xdf at column 5, as in"):
        reader.take(9)


def test_a_terminal_that_does_not_block_is_asked_again():
    class Hesitating(io.BytesIO):
        answers = [None, b"a\n", b""]

        def read1(self, size):
            return self.answers.pop(0)

    assert texts(LineReader(Hesitating()).take(1)) == ["a"]


@pytest.mark.parametrize(
    ("content", "prefixes", "message"),
    [
        (b"A\n", ["A"], "prefixes: ends after line 1, but stdin has a line 2: there must be"),
        (b"A\nB\n", ["A", "B"], "ends after line 2, but stdin has a line 3"),
        (b"A\nB\nC\nD\n", ["A", "B", "C"], "has a line 4, but stdin ended after line 3"),
        (b"A\n\xff\nC\n", ["A"], "prefixes, line 2: expected UTF-8"),
    ],
)
def test_a_prefix_file_of_another_length_is_reported_in_its_place(
    tmp_path, content, prefixes, message
):
    path = tmp_path / "prefixes"
    path.write_bytes(content)
    received = []
    with pytest.raises(InputError, match=message):
        for lines in with_prefixes(CHUNKS, path):
            received += [(line.text, line.target) for line in lines]
    assert received == list(zip("abc", prefixes, strict=False))
