"""Shortlists: candidates of sentences, and the file."""

import numpy as np
import pytest

from keras_transformer.engine.run_folder import RunFiles
from keras_transformer.errors import InputError
from keras_transformer.text import Tokenizer
from keras_transformer.text.shortlist import Shortlist, compiled_size, union_of

CANDIDATES = [[], [], [], [], [7, 5, 7], [], [11, 4]]


def test_a_sentence_has_the_candidates_of_its_tokens_and_of_every_sentence(tmp_path):
    shortlist = Shortlist([9], CANDIDATES)
    shortlist.save(tmp_path / "list.npy")
    for same in (shortlist, Shortlist.load(tmp_path / "list.npy")):
        assert same.candidates_of([4, 5, 4]).tolist() == [0, 1, 2, 3, 5, 7, 9]
        assert same.candidates_of([6, 100], additional=[8, 4]).tolist() == [0, 1, 2, 3, 4, 8, 9, 11]
        assert same.candidates_of([]).tolist() == same.frequent.tolist() == [0, 1, 2, 3, 9]
        assert (same.source_vocabulary_size, same.largest_id) == (7, 11)
        assert same.candidates_of([4]).dtype == "int32"
        # Of one token at most two candidates, and no more ids than 0 to 11.
        sizes = [same.largest_size(count) for count in (0, 1, 2, 9)]
        assert sizes == [5, 7, 9, 9]
    assert Shortlist([], []).candidates_of([4]).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("largest_id", "size"), [(31_999, 2), (70_000, 4)])
def test_76_candidates_of_32000_tokens_need_less_than_five_megabytes(tmp_path, largest_id, size):
    rows = np.random.default_rng(5).integers(4, 32_000, (320, 76))
    rows[0, 0] = largest_id
    Shortlist(range(100), [*rows]).save(tmp_path / "list.npy")
    bytes_per_row = (tmp_path / "list.npy").stat().st_size / 320
    assert 77 * size * 0.98 < bytes_per_row < 77 * size * 1.02
    assert 32_000 * 77 * 2 < 5e6


BORDERS = [2**8 - 1, 2**8, 2**16 - 1, 2**16, 2**16 + 1]
LARGEST = [(place, size) for place in ("sources", "count") for size in BORDERS]
LARGEST += [(place, id) for place in ("frequent", "candidate") for id in (*BORDERS, 2**31 - 1)]


@pytest.mark.parametrize(("place", "largest"), LARGEST)
def test_a_file_holds_the_largest_number_wherever_it_is(tmp_path, place, largest):
    frequent, candidates = [9], [[], [5, 7], []]
    if place == "frequent":
        frequent += [largest]
    elif place == "candidate":
        candidates[2] = [4, largest]
    elif place == "sources":
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
