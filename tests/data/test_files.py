import gzip

import pytest

from keras_transformer.data import read_pairs
from keras_transformer.errors import InputError


def write(path, content):
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def test_aligned_files_give_two_lists(tmp_path):
    source, target = write(tmp_path / "a.en", b"one\ntwo\n"), write(tmp_path / "a.de.gz", b"x\ny\n")
    assert read_pairs(source, target) == (["one", "two"], ["x", "y"])


def test_unequal_files_are_refused_with_both_counts(tmp_path):
    source, target = write(tmp_path / "a", b"1\n2\n3\n"), write(tmp_path / "b", b"1\n2\n")
    with pytest.raises(InputError, match="a with 3 lines, .*b with 2 lines"):
        read_pairs(source, target)


def test_two_columns_give_two_lists(tmp_path):
    path = write(tmp_path / "pairs.tsv", b"one\teins\ntwo \t\n")
    assert read_pairs(path) == (["one", "two "], ["eins", ""])


@pytest.mark.parametrize("line, columns", [(b"one", 1), (b"a\tb\tc", 3), (b"", 1)])
def test_other_than_two_columns_are_refused_with_the_line(tmp_path, line, columns):
    path = write(tmp_path / "pairs.tsv", b"good\tgut\n" + line + b"\ngood\tgut\n")
    with pytest.raises(InputError, match=f"line 2: expected exactly two.*columns={columns}"):
        read_pairs(path)
