"""Chunks of files, and an output folder that is gone on with."""

import gzip

import pytest

from keras_transformer.bulk.shards import Chunk, Output, read_chunks
from keras_transformer.errors import InputError


def test_chunks_are_the_lines_in_order_with_their_numbers(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\n\nfour\x0cx\nfive")
    assert list(read_chunks(str(path), 3, 2)) == [
        Chunk(3, 0, 1, ["one", "two"]),
        Chunk(3, 1, 3, ["", "four\x0cx"]),
        Chunk(3, 2, 5, ["five"]),
    ]
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(read_chunks(str(packed), 3, 2)) == list(read_chunks(str(path), 3, 2))


def test_a_line_that_is_no_utf8_is_named(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n\xff\n")
    with pytest.raises(InputError, match="a.txt, line 3: expected UTF-8"):
        list(read_chunks(str(path), 0, 2))
    (tmp_path / "b.gz").write_bytes(b"no gzip")
    with pytest.raises(InputError, match="b.gz: cannot be read"):
        list(read_chunks(str(tmp_path / "b.gz"), 0, 2))


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("a\nb\nc\n")
    return path


def test_a_file_appears_whole_when_its_last_chunk_is_there(tmp_path, source):
    output = Output(tmp_path / "out", [str(source)], {"model": "m"})
    first, last = read_chunks(str(source), 0, 2)
    output.write(last, ["C"])
    assert output.has(last) and not output.has(first) and not output.is_done(0)
    again = Output(tmp_path / "out", [str(source)], {"model": "m"})
    assert again.has(last)
    again.write(first, ["A", "B\nb"])
    again.finish(0, 2)
    assert again.is_done(0)
    assert (tmp_path / "out" / "in.txt").read_text() == "A\nB b\nC\n"
    again.clean()
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["bulk.json", "in.txt"]
    with pytest.raises(ValueError, match="1 translations of 2 lines"):
        again.write(first, ["A"])


def test_another_job_does_not_mix_with_what_is_there(tmp_path, source):
    Output(tmp_path / "out", [str(source)], {"model": "m"})
    with pytest.raises(InputError, match="its model differs"):
        Output(tmp_path / "out", [str(source)], {"model": "n"})
    source.write_text("a\nb\n")
    with pytest.raises(InputError, match="its inputs differs"):
        Output(tmp_path / "out", [str(source)], {"model": "m"})
    with pytest.raises(InputError, match="expected an empty folder"):
        Output(tmp_path, [str(source)], {})
    with pytest.raises(InputError, match="in.txt twice"):
        Output(tmp_path / "new", [str(source), str(source) + ".gz"], {})
    with pytest.raises(InputError, match="none: cannot be read"):
        Output(tmp_path / "new", [str(tmp_path / "none")], {})
