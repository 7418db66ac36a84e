import gzip

import numpy as np
import pytest

from keras_transformer.config import EOS_ID
from keras_transformer.data import EncodedPairs, PairReport, encode_pairs, read_pairs
from keras_transformer.data.pairs import DropCount
from keras_transformer.errors import InputError


class Words:
    """A tokenizer whose ids can be told by hand: a word of n letters is id 10 + n."""

    def tokenize(self, texts, add_bos=False, add_eos=False):
        ids = [[10 + len(word) for word in text.split()] for text in texts]
        return [row + [EOS_ID] if add_eos else row for row in ids]


def encode(pairs, **options):
    sources, targets = zip(*pairs, strict=True)
    return encode_pairs(list(sources), list(targets), Words(), Words(), **options)


def words(count):
    return " ".join(["x"] * count)


def test_source_ends_in_eos_and_target_stands_alone():
    pairs, report = encode([("a bb", "ccc"), ("dddd", "e ff ggg")])
    assert len(pairs) == 2
    assert [pairs.source(i).tolist() for i in range(2)] == [[11, 12, EOS_ID], [14, EOS_ID]]
    assert [pairs.target(i).tolist() for i in range(2)] == [[13], [11, 12, 13]]
    assert pairs.source_lengths.tolist() == [3, 2]
    assert pairs.target_lengths.tolist() == [1, 3]
    # The target needs a column more, for BOS before it or EOS behind it.
    assert pairs.lengths.tolist() == [3, 4]
    assert pairs.source_flat.dtype == pairs.target_flat.dtype == np.int32
    assert report == PairReport(2, 2, {})


def test_each_reason_is_counted_with_its_first_lines():
    pairs, report = encode(
        [
            ("one two", "eins zwei"),  # 1 kept
            ("", "leer"),  # 2 empty
            ("one two", "eins zwei"),  # 3 duplicate of 1
            ("empty", " "),  # 4 empty
            (words(13), words(3)),  # 5 ratio 13 : 3 > 4
            (words(13), words(4)),  # 6 kept
            (words(20), words(19)),  # 7 over-long: 20 pieces and EOS
            (words(18), words(20)),  # 8 over-long
            (words(19), words(19)),  # 9 kept
            ("one two", "eins zwo"),  # 10 kept: as long as the first, not equal
            (words(2), words(10)),  # 11 kept: too short for a ratio to mean something
        ],
        max_length=20,
    )
    assert report.total == 11 and report.kept == len(pairs) == 5
    assert report.dropped == {
        "empty side": DropCount(2, (2, 4)),
        "over-long side": DropCount(2, (7, 8)),
        "extreme length ratio": DropCount(1, (5,)),
        "exact duplicate": DropCount(1, (3,)),
    }
    assert pairs.source_lengths.tolist() == [3, 14, 20, 3, 3]
    assert pairs.target_lengths.tolist() == [2, 4, 19, 2, 10]
    assert str(report).splitlines() == [
        "5 of 11 pairs kept",
        "  2 dropped, empty side: lines 2, 4",
        "  2 dropped, over-long side: lines 7, 8",
        "  1 dropped, extreme length ratio: line 5",
        "  1 dropped, exact duplicate: line 3",
    ]


def test_five_lines_are_named_however_many_were_dropped():
    _, report = encode([("a", "b")] + [("", "b")] * 7)
    assert report.dropped == {"empty side": DropCount(7, (2, 3, 4, 5, 6))}
    assert str(report).endswith("lines 2, 3, 4, 5, 6, ...")


def test_a_dropped_pair_leaves_the_ids_of_its_neighbours_alone():
    texts = [("a", "bb"), ("ccc dddd", ""), ("eeeee", "ffffff a")]
    pairs, _ = encode(texts)
    assert [pairs.source(i).tolist() for i in range(2)] == [[11, EOS_ID], [15, EOS_ID]]
    assert [pairs.target(i).tolist() for i in range(2)] == [[12], [16, 11]]


def test_duplicates_stay_when_asked():
    pairs, report = encode([("a", "b")] * 3, drop_duplicates=False)
    assert len(pairs) == report.kept == 3


def test_no_ratio_keeps_lopsided_pairs():
    pairs, _ = encode([(words(50), "x")], max_length_ratio=None)
    assert len(pairs) == 1


def test_texts_beyond_one_chunk_keep_their_order(monkeypatch):
    monkeypatch.setattr("keras_transformer.data.pairs._CHUNK", 2)
    pairs, _ = encode([("x" * n, "y" * n) for n in range(1, 6)])
    assert [pairs.target(i).tolist() for i in range(5)] == [[11], [12], [13], [14], [15]]
    assert [pairs.source(i).tolist() for i in range(5)] == [[n, EOS_ID] for n in range(11, 16)]


def test_nothing_left_is_an_error_of_one_line_with_the_reasons():
    with pytest.raises(InputError, match="1 dropped, empty side: line 1") as caught:
        encode([("", "x"), (words(9), words(9))], max_length=5)
    assert "1 dropped, over-long side: line 2" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="0 of 0 pairs"):
        encode_pairs([], [], Words(), Words())


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(max_length=1), "max_length=1"),
        (dict(max_length=2.5), "max_length=2.5"),
        (dict(max_length=True), "max_length=True"),
        (dict(max_length_ratio=0.5), "max_length_ratio=0.5"),
        (dict(max_length_ratio="4"), "max_length_ratio='4'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        encode([("a", "b")], **options)


def test_unequal_sides_and_a_bare_string_are_refused():
    with pytest.raises(InputError, match="2 sources, 1 targets"):
        encode_pairs(["a", "b"], ["c"], Words(), Words())
    with pytest.raises(InputError, match="list of strings"):
        encode_pairs("ab", "cd", Words(), Words())


def test_own_ids_are_kept_as_given():
    pairs = EncodedPairs.from_lists([[5, 6, 2], np.array([7, 2])], [(8,), [9, 10]])
    assert [pairs.source(i).tolist() for i in range(2)] == [[5, 6, 2], [7, 2]]
    assert [pairs.target(i).tolist() for i in range(2)] == [[8], [9, 10]]
    assert pairs.source_flat.dtype == np.int32


@pytest.mark.parametrize(
    "row", [[], [0], [5, 0, 6], [-1], [1.5], ["a"], [[1]], [1, [2]], 7, [2**31]]
)
def test_bad_ids_are_refused_with_their_pair(row):
    with pytest.raises(InputError, match="The target of pair 2 must be"):
        EncodedPairs.from_lists([[5], [6]], [[7], row])


def test_unequal_or_no_lists_are_refused():
    with pytest.raises(InputError, match="1 sources, 2 targets"):
        EncodedPairs.from_lists([[5]], [[6], [7]])
    with pytest.raises(InputError, match="0 sources, 0 targets"):
        EncodedPairs.from_lists([], [])


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
