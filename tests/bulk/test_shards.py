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


@pytest.mark.parametrize("damaged", [b"", b"A\n", b"A\nB", b"\0\0\0\0", b"A\nB\nC\n"])
def test_a_part_of_another_number_of_lines_is_made_again(tmp_path, source, damaged):
    output = Output(tmp_path / "out", [str(source)], {"model": "m"})
    first, last = read_chunks(str(source), 0, 2)
    output.write(first, ["A", ""])
    assert output.has(first) and not output.has(last)
    (part,) = (tmp_path / "out").glob(".parts/*/*.txt")
    part.write_bytes(damaged)
    assert not Output(tmp_path / "out", [str(source)], {"model": "m"}).has(first)


@pytest.mark.parametrize("name", ["bulk.json", "bulk.json.gz", ".parts", ".b.partial.txt", ".gz"])
def test_an_input_named_as_the_folders_own_files_is_refused(tmp_path, name):
    (tmp_path / name).write_text("a\n")
    with pytest.raises(InputError, match="must not be bulk.json nor begin with a point"):
        Output(tmp_path / "out", [str(tmp_path / name)], {})
    assert not (tmp_path / "out").exists()


def test_options_are_the_same_job_again_whatever_json_makes_of_them(tmp_path, source):
    job = {"options": {"banned_ids": (5, 7), "logit_bias": {11: -1.0}}}
    for _ in range(2):
        Output(tmp_path / "out", [str(source)], job)
    with pytest.raises(InputError, match="fit for JSON.*set"):
        Output(tmp_path / "new", [str(source)], {"options": {"banned_ids": {5}}})


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
