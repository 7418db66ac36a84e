import gzip

import numpy as np
import pytest

from keras_transformer.base.errors import InputError
from keras_transformer.data import EncodedPairs, iterate_pairs, read_pairs


def test_own_ids_are_kept_as_given_in_lists_of_equal_length():
    pairs = EncodedPairs.from_lists([[5, 6, 2], np.array([7, 2])], [(8,), [9, 10]])
    assert [pairs.source(i).tolist() for i in range(2)] == [[5, 6, 2], [7, 2]]
    assert [pairs.target(i).tolist() for i in range(2)] == [[8], [9, 10]]
    assert pairs.source_flat.dtype == np.int32
    for sources, targets in (([[5]], [[6], [7]]), ([], [])):
        message = f"{len(sources)} sources, {len(targets)} targets"
        with pytest.raises(InputError, match=message):
            EncodedPairs.from_lists(sources, targets)


@pytest.mark.parametrize(
    "row", [[], [0], [5, 0, 6], [-1], [1.5], ["a"], [[1]], [1, [2]], 7, [2**31]]
)
def test_bad_ids_are_refused_with_their_pair(row):
    with pytest.raises(InputError, match="The target of pair 2 must be"):
        EncodedPairs.from_lists([[5], [6]], [[7], row])


def test_a_corpus_of_several_has_its_own_pairs_and_lines():
    flat, offsets = np.array([5, 7, 11], "int32"), np.arange(4)
    sides = flat, offsets, 10 * flat, offsets
    pairs = EncodedPairs(*sides, lines=np.array([2, 1, 3]), corpora={"a": 1, "b": 2})
    part = pairs.of_corpus("b")
    ids = [(part.source(i).item(), part.target(i).item()) for i in range(len(part))]
    assert (ids, part.lines.tolist()) == ([(7, 70), (11, 110)], [1, 3])


def write(path, content):
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def test_aligned_files_or_two_columns_give_two_lists(tmp_path):
    source, target = write(tmp_path / "a.en", b"one\ntwo\n"), write(tmp_path / "a.de.gz", b"x\ny\n")
    assert read_pairs(source, target) == (["one", "two"], ["x", "y"])
    path = write(tmp_path / "pairs.tsv", b"one\teins\ntwo \t\n")
    assert read_pairs(path) == (["one", "two "], ["eins", ""])


def test_unequal_files_are_refused_with_both_counts(tmp_path):
    source, target = write(tmp_path / "a", b"1\n2\n3\n"), write(tmp_path / "b", b"1\n2\n")
    pairs = iterate_pairs(source, target)
    assert [next(pairs), next(pairs)] == [("1", "1"), ("2", "2")]
    with pytest.raises(InputError, match="a with 3 lines, .*b with 2 lines"):
        next(pairs)


@pytest.mark.parametrize("line, columns", [(b"one", 1), (b"a\tb\tc", 3), (b"", 1)])
def test_other_than_two_columns_are_refused_with_the_line(tmp_path, line, columns):
    path = write(tmp_path / "pairs.tsv", b"good\tgut\n" + line + b"\ngood\tgut\n")
    with pytest.raises(InputError, match=f"line 2: expected exactly two.*columns={columns}"):
        read_pairs(path)


def test_pairs_are_given_before_the_files_are_read_to_their_end(tmp_path):
    (tmp_path / "a").write_bytes(b"one\ntwo\n\xff\n")
    (tmp_path / "b").write_bytes(b"eins\nzwei\ndrei\n")
    pairs = iterate_pairs(tmp_path / "a", tmp_path / "b")
    assert [next(pairs), next(pairs)] == [("one", "eins"), ("two", "zwei")]
    with pytest.raises(InputError, match="a, line 3: expected UTF-8"):
        next(pairs)
