"""Shortlists against sets and dicts, at the borders of what two and four bytes hold."""
import itertools
import numpy as np
import pytest

from keras_transformer.text.shortlist import Shortlist, compiled_size, union_of

ALWAYS = {0, 1, 2, 3}
BORDERS = (5, 255, 256, 65_534, 65_535, 65_536, 65_537, 2**31 - 1)


def drawn(seed, largest, num_sources):
    """A shortlist whose largest id is a candidate or a frequent one, and its dict."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, largest, 30).tolist()
    frequent, rows = ids[:3], {int(s): ids[3 * n : 3 * n + 4] for n, s in enumerate(rng.integers(0, num_sources, 6), 1)}
    (frequent if seed % 2 else rows.setdefault(num_sources - 1, [])).append(largest)
    return Shortlist(frequent, [rows.get(id, []) for id in range(num_sources)]), frequent, rows


@pytest.mark.parametrize("largest", BORDERS)
@pytest.mark.parametrize("num_sources", [1, 7, 65_535, 65_536])
def test_a_shortlist_is_a_dict_also_after_it_was_written(tmp_path, largest, num_sources):
    for seed in range(2):
        shortlist, frequent, rows = drawn(seed, largest, num_sources)
        shortlist.save(tmp_path / "list.npy")
        needs_four = max(largest, num_sources) >= 2**16
        assert np.load(tmp_path / "list.npy").dtype == ("<u4" if needs_four else "<u2")
        for one in (shortlist, Shortlist.load(tmp_path / "list.npy")):
            assert set(one.frequent.tolist()) == {*frequent, *ALWAYS}
            assert one.largest_id == largest and one.source_vocabulary_size == num_sources
            lists = one.candidates
            assert len(lists) == num_sources
            assert {s: r.tolist() for s, r in enumerate(lists) if len(r)} == {s: sorted({*r}) for s, r in rows.items() if r}
            for source_ids in ([], [*rows], [*rows][:2] * 2, [num_sources, 2**31 - 1]):
                for additional in ((), (largest, 4)):
                    expected = {*frequent, *ALWAYS, *additional}.union(*(rows.get(s, []) for s in source_ids))
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
