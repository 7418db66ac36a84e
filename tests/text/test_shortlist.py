"""Shortlists: candidates of sentences, and the file."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.base.errors import InputError
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.text import Tokenizer
from keras_transformer.text.shortlist import Shortlist, compiled_size, union_of


def test_the_largest_size_counts_the_longest_lists():
    shortlist = Shortlist([9], [[], [], [], [], [7, 5, 7], [], [11, 4]])
    # Five are candidates of every sentence, and of one token at most two.
    assert [shortlist.largest_size(count) for count in (0, 1, 2, 9)] == [5, 7, 9, 9]
    assert Shortlist([], []).candidates_of([4]).tolist() == [0, 1, 2, 3]


HOSTILE = {
    "another file": b"lex",
    "no counts": np.zeros(1, "u2"),
    "half of it": np.array([1, 2, 1, 1, 9], "u2"),
    "more than is counted": np.array([0, 1, 1, 5, 5], "u2"),
    "a negative count": np.array([0, 2, 3, -1, 5, 6], "i4"),
    "a negative id": np.array([0, 1, 1, -5], "i4"),
    "numbers with fractions": np.array([0.0, 1.0, 1.0, 5.5]),
    "a table": np.zeros((2, 2), "u2"),
    "a pickle": np.array([None]),
    "sizes beyond the file": np.array([2**32 - 1, 2**32 - 1, 5], "u4"),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_another_file_is_an_error_in_one_line(tmp_path, content):
    path = tmp_path / "list.npy"
    path.write_bytes(content) if isinstance(content, bytes) else np.save(path, content)
    with pytest.raises(InputError, match=r"list.npy: cannot be read as a shortlist") as raised:
        Shortlist.load(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("frequent", "candidates"), [([23], []), ([], [[]] * 24), ([], [[23]])])
def test_a_run_reads_only_a_shortlist_of_its_vocabularies(tmp_path, frequent, candidates):
    run = RunFolder(tmp_path)
    Tokenizer.train_from_texts(["a man and a dog"] * 9, 13).save(tmp_path / "tokenizer.model")
    assert run.shortlist() is None
    Shortlist([12], [[5]] * 13).save(run.shortlist_file)
    assert run.shortlist().candidates_of([12]).tolist() == [0, 1, 2, 3, 5, 12]
    Shortlist(frequent, candidates).save(run.shortlist_file)
    with pytest.raises(InputError, match="of the run's 13 and 13 token ids. Received: "):
        run.shortlist()


def test_lists_have_few_sizes():
    sizes = [7, 256, 257, 2049, 4097, 7999]
    lists = [np.arange(size, dtype="int32") for size in sizes]
    padded = [union_of([ids], 2, lambda count: compiled_size(count, 8000)) for ids in lists]
    assert [len(ids) for ids, _ in padded] == [256, 256, 512, 4096, 8000, 8000]
    for (ids, mask), size in zip(padded, sizes, strict=True):
        assert mask.sum(axis=1).tolist() == [size, 0]
        assert not ids[size:].any()


IDS = st.lists(st.integers(0, 40), max_size=4)
# The largest id and the number of sources.
SIZES = [(5, 301), (2**8 - 1, 2**8), (2**8, 301), (2**16 - 1, 2**8 + 1), (2**16, 301)]
SIZES += [(2**16 + 1, 301), (2**31 - 1, 301)]


@pytest.mark.parametrize(("largest", "num_sources"), SIZES)
@settings(max_examples=20)
@given(frequent=IDS, rows=st.dictionaries(st.integers(0, 250), IDS), asked=st.lists(IDS))
def test_a_shortlist_is_a_dict_also_after_it_was_written(
    largest, num_sources, frequent, rows, asked, tmp_path_factory
):
    asked = [*sum(asked, []), *rows, num_sources, 2**31 - 1]
    rows[num_sources - 1] = [largest]
    shortlist = Shortlist(frequent, [rows.get(id, []) for id in range(num_sources)])
    shortlist.save(path := tmp_path_factory.mktemp("list") / "list.npy")
    assert np.load(path).dtype == ("<u4" if largest >= 2**16 else "<u2")
    always = {0, 1, 2, 3, *frequent}
    for one in (shortlist, Shortlist.load(path)):
        assert set(one.frequent.tolist()) == always
        assert one.largest_id == max(largest, *always, *sum(rows.values(), []))
        assert one.source_vocabulary_size == len(one.candidates) == num_sources
        received = {source: ids.tolist() for source, ids in enumerate(one.candidates) if len(ids)}
        assert received == {source: sorted({*ids}) for source, ids in rows.items() if ids}
        assert one.candidates_of([0]).dtype == "int32"
        for additional in ((), (largest, 4)):
            expected = {*always, *additional}.union(*(rows.get(source, []) for source in asked))
            assert one.candidates_of(asked, additional).tolist() == sorted(expected)


@pytest.mark.parametrize("count", [2**16 - 1, 2**16, 2**16 + 1])
def test_a_file_holds_any_number_of_sources(tmp_path, count):
    Shortlist([9], [[]] * (count - 1) + [[5]]).save(tmp_path / "list.npy")
    shortlist = Shortlist.load(tmp_path / "list.npy")
    assert shortlist.source_vocabulary_size == count
    assert shortlist.candidates_of([count - 1]).tolist() == [0, 1, 2, 3, 5, 9]
    assert shortlist.candidates_of([count - 2]).tolist() == [0, 1, 2, 3, 9]


@given(st.data(), st.integers(5, 12))
def test_no_sentence_has_more_candidates_than_the_largest_size(data, vocabulary):
    ids = st.lists(st.integers(0, vocabulary - 1), max_size=vocabulary, unique=True)
    rows, frequent = [data.draw(ids) for _ in range(5)], data.draw(ids)[:2]
    shortlist = Shortlist(frequent, rows)
    for count in range(7):
        sentences = itertools.combinations(range(5), min(count, 5))
        most = max(len(shortlist.candidates_of(ids)) for ids in sentences)
        assert most <= shortlist.largest_size(count) <= vocabulary


@given(st.lists(st.sets(st.integers(0, 40), min_size=1), min_size=3, max_size=3), st.integers(0, 9))
def test_each_row_of_a_union_is_its_own_list(drawn, padding):
    lists = [np.array(sorted(ids), "int32") for ids in drawn]
    ids, mask = union_of(lists, 5, lambda count: count + padding)
    assert ids.dtype == "int32" and mask.shape == (5, len(ids))
    assert ids.tolist() == sorted(set().union(*drawn)) + [0] * padding
    for row in range(5):
        assert ids[mask[row]].tolist() == (lists[row].tolist() if row < 3 else [])
