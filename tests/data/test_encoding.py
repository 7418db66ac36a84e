import mmap
import tempfile

import numpy as np
import pytest

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import EOS_ID
from keras_transformer.data import PairChecks, PairReport, encode_pairs
from keras_transformer.data.encoding import DropCount, Lines, PairEncoder, encode_parts, in_chunks
from keras_transformer.data.pairs import iterate_pairs
from keras_transformer.text import Tokenizer
from keras_transformer.text.languages import Direction

REMEDY = "  The model does not learn them: write words into the targets, such as `euros` for `€`."


class Words:
    """A tokenizer whose ids can be told by hand: a word of n letters is id 10 + n."""

    def tokenize(self, texts, add_bos=False, add_eos=False):
        ids = [[10 + len(word) for word in text.split()] for text in texts]
        return [row + [EOS_ID] if add_eos else row for row in ids]


def encode(pairs, **options):
    sources, targets = zip(*pairs, strict=True)
    return encode_pairs(list(sources), list(targets), Words(), Words(), **options)


def encode_files(source, target, *tokenizers, chunk=50, **checks):
    def read(parts):
        for numbers, pairs in in_chunks(iterate_pairs(source, target), chunk):
            yield Lines("train", "", numbers, pairs)

    encoder = PairEncoder(tokenizers, PairChecks(**checks), chunk_lines=chunk)
    return encode_parts(read, {"train": encoder})["train"]


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


def test_pairs_whose_sources_end_elsewhere_are_no_duplicates():
    assert encode([("ab", "c"), ("a", "bc"), ("ab", "c")])[1].kept == 2


def test_a_report_shows_each_reason_with_its_count_and_first_lines():
    pairs = [("one", "eins"), *[("", "leer")] * 6, (words(20), words(19)), ("one", "eins")]
    _, report = encode(pairs, max_length=20)
    assert (report.total, report.kept) == (9, 1)
    assert report.dropped["empty side"] == DropCount(6, (2, 3, 4, 5, 6))
    assert str(report).splitlines() == [
        "1 of 9 pairs kept",
        "  6 dropped, empty side: lines 2, 3, 4, 5, 6, ...",
        "  1 dropped, over-long side: line 8",
        "  1 dropped, exact duplicate: line 9",
    ]


@pytest.mark.parametrize(("count", "is_kept"), [(10, True), (11, False)])
def test_ids_of_languages_are_not_counted_in_the_ratio_of_the_lengths(count, is_kept):
    directions = {"": Direction((4,), (5,), (6,))}
    checks = PairChecks(max_length_ratio=2.0)
    encoder = PairEncoder((Words(), Words()), checks, directions=directions)
    pairs = [(words(3), words(3)), (words(count), words(4)), (words(4), words(count))]
    encoder.add(Lines("train", "", np.arange(3), pairs))
    assert encoder.finish()[1].kept == (3 if is_kept else 1)


@pytest.mark.parametrize(
    ("source", "target", "is_kept"), [(3, 1, True), (4, 1, False), (1, 4, True), (1, 5, False)]
)
def test_ids_of_languages_and_eos_are_counted_in_the_length_of_a_side(source, target, is_kept):
    directions = {"": Direction((4,), (5,), (6,))}
    encoder = PairEncoder((Words(), Words()), PairChecks(max_length=6), directions=directions)
    encoder.add(Lines("", "", np.arange(2), [("a", "b"), (words(source), words(target))]))
    assert encoder.finish()[1].kept == 1 + is_kept


@pytest.mark.parametrize("chunk", [2, 50])
def test_a_report_tells_the_characters_that_a_vocabulary_lacks(tmp_path, chunk):
    learned = ["a man and a dog"] * 9
    (tmp_path / "source").write_text("a dog\n€ a €man\nman\n\n", encoding="utf-8")
    (tmp_path / "target").write_text("a $$ $\na €$\nman\n$\n", encoding="utf-8")
    files = tmp_path / "source", tmp_path / "target"
    tokenizer = Tokenizer.train_from_texts(learned, 13)
    _, report = encode_files(*files, tokenizer, tokenizer, chunk=chunk)
    assert report.unknown == {"source": {"€": 1}, "target": {"$": 3, "€": 1}}
    assert str(report).splitlines() == [
        "3 of 4 pairs kept",
        "  1 dropped, empty side: line 4",
        "  sources with characters that the vocabulary lacks: 1 have €",
        "  targets with characters that the vocabulary lacks: 3 have $, 1 have €",
        REMEDY,
    ]
    # Words beyond a word-level vocabulary are usual, and bytes spell all characters.
    for options in ({"whole_words": True}, {"byte_fallback": True}):
        size = 9 if "whole_words" in options else 269
        other = Tokenizer.train_from_texts(learned, size, **options)
        assert encode_files(*files, other, other)[1].unknown == {}


def test_a_report_names_the_ten_most_frequent_unknown_characters():
    counts = {chr(ord("a") + index): 1 + index for index in range(12)}
    report = PairReport(9, 9, {}, unknown={"target": counts})
    named = ", ".join(f"{12 - index} have {chr(ord('l') - index)}" for index in range(10))
    line = f"  targets with characters that the vocabulary lacks: {named}, and 2 more"
    assert str(report).splitlines() == ["9 of 9 pairs kept", line, REMEDY]


def test_a_lone_space_before_an_unknown_token_leaves_targets_only():
    tokenizer = Tokenizer.train_from_texts(["a man and a dog"] * 9, 13)
    # Unknown words at both ends, in between and alone, between texts of other kinds.
    texts = ["a € dog", "€", "€ man", "man €", "a €man", "man", "man€ dog", "a dog"]
    for source in (tokenizer, Words()):  # `Words` has no token of a space.
        pairs, _ = encode_pairs(texts, texts, source, tokenizer)
        for row, text in enumerate(texts):
            (source_ids,) = source.tokenize([text])
            assert pairs.source(row).tolist() == [*source_ids, EOS_ID]
            pieces = " ".join(tokenizer.pieces_of(tokenizer.tokenize(text)))
            pieces = pieces.replace("▁ <unk>", "<unk>").split(" ")
            assert tokenizer.pieces_of(pairs.target(row).tolist()) == pieces


def test_nothing_left_is_an_error_of_one_line_with_the_reasons():
    with pytest.raises(InputError, match="1 dropped, empty side: line 1") as caught:
        encode([("", "x"), (words(9), words(9))], max_length=5)
    assert "1 dropped, over-long side: line 2" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="0 of 0 pairs"):
        encode_pairs([], [], Words(), Words())


def test_bad_options_unequal_sides_and_a_bare_string_are_refused():
    bad = {"max_length": [1, 2.5, True], "max_length_ratio": [0.5, "4"]}
    for name, value in [(name, value) for name, values in bad.items() for value in values]:
        with pytest.raises(InputError, match=f"Received: {value!r}"):
            encode([("a", "b")], **{name: value})
    with pytest.raises(InputError, match="2 sources, 1 targets"):
        encode_pairs(["a", "b"], ["c"], Words(), Words())
    with pytest.raises(InputError, match="list of strings"):
        encode_pairs("ab", "cd", Words(), Words())


def test_ids_are_mapped_from_files_that_a_killed_process_does_not_leave(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pairs, _ = encode([("a bb", "ccc"), ("", "x"), ("dddd", "e ff ggg")])
    ids = [11, 12, EOS_ID, 14, EOS_ID], [13, 11, 12, 13]
    for flat, expected in zip((pairs.source_flat, pairs.target_flat), ids, strict=True):
        assert isinstance(flat.base.base, mmap.mmap) and type(flat) is np.ndarray
        assert flat.tolist() == expected
    assert not list(tmp_path.iterdir())  # so that nothing is left to remove
