"""Shortlists: candidates of sentences, and the file."""

import itertools

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.runs.run_files import RunFiles
from keras_transformer.text import Tokenizer
from keras_transformer.text.shortlist import Shortlist, compiled_size, union_of


def test_the_largest_size_counts_the_longest_lists():
    shortlist = Shortlist([9], [[], [], [], [], [7, 5, 7], [], [11, 4]])
    # Five are candidates of every sentence, and of one token at most two.
    assert [shortlist.largest_size(count) for count in (0, 1, 2, 9)] == [5, 7, 9, 9]
    assert Shortlist([], []).candidates_of([4]).tolist() == [0, 1, 2, 3]


BORDERS = [2**8 - 1, 2**8, 2**16 - 1, 2**16, 2**16 + 1]


@pytest.mark.parametrize("largest", BORDERS)
@pytest.mark.parametrize("place", ["sources", "count"])
def test_a_file_holds_any_number_of_sources_and_of_candidates(tmp_path, place, largest):
    frequent, candidates = [9], [[], [5, 7], []]
    if place == "sources":
        candidates += [[8]] * (largest - len(candidates))
    else:
        candidates[2] = range(4, 4 + largest)
    shortlist = Shortlist(frequent, candidates)
    shortlist.save(tmp_path / "list.npy")
    same = Shortlist.load(tmp_path / "list.npy")
    assert same.source_vocabulary_size == len(candidates)
    assert same.largest_id == max(*frequent, *candidates[1], *candidates[2])
    for ids in ([], [1], [2], [1, 2], [len(candidates) - 1]):
        expected = {0, 1, 2, 3, *frequent, *(id for source in ids for id in candidates[source])}
        assert (
            same.candidates_of(ids).tolist()
            == sorted(expected)
            == shortlist.candidates_of(ids).tolist()
        )


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
    run = RunFiles(tmp_path)
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


ALWAYS = {0, 1, 2, 3}


def drawn(seed, largest, num_sources):
    """A shortlist whose largest id is a candidate or a frequent one, and its dict."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, largest, 30).tolist()
    sources = rng.integers(0, num_sources, 6).tolist()
    frequent, rows = ids[:3], {s: ids[3 * n : 3 * n + 4] for n, s in enumerate(sources, 1)}
    (frequent if seed % 2 else rows.setdefault(num_sources - 1, [])).append(largest)
    return Shortlist(frequent, [rows.get(id, []) for id in range(num_sources)]), frequent, rows


@pytest.mark.parametrize("largest", [5, *BORDERS, 2**31 - 1])
@pytest.mark.parametrize("num_sources", [1, 7, 300])
def test_a_shortlist_is_a_dict_also_after_it_was_written(tmp_path, largest, num_sources):
    for seed in range(2):
        shortlist, frequent, rows = drawn(seed, largest, num_sources)
        shortlist.save(tmp_path / "list.npy")
        dtype = "<u4" if largest >= 2**16 else "<u2"
        assert np.load(tmp_path / "list.npy").dtype == dtype
        for one in (shortlist, Shortlist.load(tmp_path / "list.npy")):
            assert set(one.frequent.tolist()) == {*frequent, *ALWAYS}
            assert one.largest_id == largest and one.source_vocabulary_size == num_sources
            lists = one.candidates
            assert len(lists) == num_sources
            received = {source: ids.tolist() for source, ids in enumerate(lists) if len(ids)}
            assert received == {source: sorted({*ids}) for source, ids in rows.items()}
            assert one.candidates_of([0]).dtype == "int32"
            for source_ids in ([], [*rows], [*rows][:2] * 2, [num_sources, 2**31 - 1]):
                for additional in ((), (largest, 4)):
                    listed = [rows.get(source, []) for source in source_ids]
                    expected = {*frequent, *ALWAYS, *additional}.union(*listed)
                    assert one.candidates_of(source_ids, additional).tolist() == sorted(expected)


@pytest.mark.parametrize("seed", range(20))
def test_no_sentence_has_more_candidates_than_the_largest_size(seed):
    rng = np.random.default_rng(seed)
    vocabulary = int(rng.integers(5, 12))
    rows = [rng.choice(vocabulary, rng.integers(0, vocabulary), replace=False) for _ in range(5)]
    shortlist = Shortlist(rng.choice(vocabulary, 2), rows)
    for count in range(7):
        sentences = itertools.combinations(range(5), min(count, 5))
        most = max(len(shortlist.candidates_of(ids)) for ids in sentences)
        assert most <= shortlist.largest_size(count) <= vocabulary


@pytest.mark.parametrize("seed", range(10))
def test_each_row_of_a_union_is_its_own_list(seed):
    rng = np.random.default_rng(seed)
    lists = [np.unique(rng.integers(0, 40, rng.integers(1, 20))).astype("int32") for _ in range(3)]
    ids, mask = union_of(lists, 5, lambda count: count + seed)
    assert ids.dtype == "int32" and mask.shape == (5, len(ids))
    union = sorted(set(np.concatenate(lists).tolist()))
    assert ids.tolist() == union + [0] * seed
    for row in range(5):
        assert ids[mask[row]].tolist() == (lists[row].tolist() if row < 3 else [])
