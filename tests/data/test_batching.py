import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.data import choose_shapes
from keras_transformer.data.batching import draw_epoch, epoch_rates, plan_batches
from keras_transformer.errors import InputError

SHAPES = [(5, 3), (3, 5), (2, 7)]


def padded_area(lengths, edges):
    return sum(min(edge for edge in edges if edge >= length) for length in lengths)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.integers(1, 61), st.integers(1, 7), min_size=1), st.integers(1, 5))
def test_no_other_edges_pad_less(count_of, max_shapes):
    lengths = [length for length, count in count_of.items() for _ in range(count)]
    edges = [length for _, length in choose_shapes(lengths, 61, max_shapes)]
    distinct = sorted(set(lengths))
    count = min(max_shapes, len(distinct))
    # The longest length is always an edge, so the others are what can be chosen.
    best = min(
        padded_area(lengths, [*others, distinct[-1]])
        for others in itertools.combinations(distinct[:-1], count - 1)
    )
    assert padded_area(lengths, edges) == best
    assert len(edges) == count and edges == sorted(set(edges))


def test_a_batch_never_exceeds_its_tokens_and_another_row_would():
    lengths = np.random.default_rng(0).integers(1, 97, 2000)
    for batch, length in choose_shapes(lengths, 997):
        assert batch * length <= 997 < (batch + 1) * length


@pytest.mark.parametrize(
    "lengths, batch_tokens, max_shapes, message",
    [
        ([3, 11], 10, 8, "batch_tokens=10, longest example=11"),
        ([3], 0, 8, "batch_tokens=0"),
        ([3], 7.5, 8, "batch_tokens=7.5"),
        ([3], 7, 0, "max_shapes=0"),
        ([], 7, 8, "at least one"),
        ([0, 3], 7, 8, "must be positive"),
    ],
)
def test_arguments_without_shapes_are_refused(lengths, batch_tokens, max_shapes, message):
    with pytest.raises(InputError, match=message):
        choose_shapes(lengths, batch_tokens, max_shapes)


def test_left_overs_move_to_the_next_longer_shape():
    # Seven of length 3 fill a batch of five; two move on and, with four of length 4 or 5, fill two
    # batches of three; nothing moves on. One of length 7 makes the incomplete batch.
    lengths = [3, 3, 3, 3, 3, 3, 2, 4, 5, 5, 4, 7]
    plan = [(index, rows.tolist()) for index, rows in plan_batches(lengths, SHAPES)]
    assert plan == [(0, [0, 1, 2, 3, 4]), (1, [5, 6, 7]), (1, [8, 9, 10]), (2, [11])]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 7), max_size=60))
def test_the_batches_of_each_shape_are_as_many_in_every_order(lengths):
    counts = {
        tuple(sorted(index for index, _ in plan_batches(lengths, SHAPES, rng)))
        for rng in [None, *map(np.random.default_rng, range(5))]
    }
    assert len(counts) == 1


def test_an_order_follows_from_its_seed():
    lengths = np.random.default_rng(3).integers(1, 8, 101)

    def plan(seed):
        batches = plan_batches(lengths, SHAPES, np.random.default_rng(seed))
        return [(index, rows.tolist()) for index, rows in batches]

    assert plan(1) == plan(1)
    assert plan(1) != plan(2)
    # Shuffled within a shape as well as over batches.
    assert sorted(map(str, plan(1))) != sorted(map(str, plan(2)))
    assert [index for index, _ in plan(1)] != sorted(index for index, _ in plan(1))


@pytest.mark.parametrize("shapes", [[], [(3, 5), (5, 3)], [(3, 5), (2, 5)], [(0, 9)], [9], None])
def test_shapes_that_are_none_or_too_short_are_refused(shapes):
    with pytest.raises(InputError, match="must be pairs"):
        plan_batches([2], shapes)
    with pytest.raises(InputError, match="longest shape=7, longest example=8"):
        plan_batches([8], SHAPES)


def test_an_epoch_takes_pairs_of_a_corpus_as_often_as_its_weight_says():
    lengths = np.random.default_rng(0).integers(1, 8, 90)
    buckets = np.searchsorted([length for _, length in SHAPES], lengths).astype(np.uint16)
    sizes, rates = [50, 0, 40], [0.4, 3.0, 2.5]
    epochs = [draw_epoch(buckets, sizes, rates, 3, epoch, (0.25, 0.5))[0] for epoch in range(20)]
    # Equally many of each bucket of each corpus: every epoch has as many batches.
    strata = {tuple(sorted(zip(buckets[rows], rows >= 50, strict=True))) for rows in epochs}
    assert len(strata) == 1
    times = np.bincount(np.concatenate(epochs), minlength=90)
    for start, size, rate in ((0, 50, 0.4), (50, 40, 2.5)):
        of_corpus = slice(start, start + size)
        for bucket in set(buckets[of_corpus].tolist()):
            found = times[of_corpus][buckets[of_corpus] == bucket]
            # None is taken twice more than another is, in whatever epochs.
            assert found.max() - found.min() <= 1
            assert found.mean() == pytest.approx(20 * rate, abs=20 * 0.5 / len(found))
    assert (epochs[4] == draw_epoch(buckets, sizes, rates, seed=3, epoch=4)[0]).all()
    assert (epochs[4] != draw_epoch(buckets, sizes, rates, seed=4, epoch=4)[0]).any()
    rows, kinds = draw_epoch(buckets, sizes, rates, 3, 7, (0.25, 0.5))
    large = buckets[rows] == np.bincount(buckets).argmax()
    of_kinds = np.bincount(kinds[large & (rows >= 50)]) / np.sum(large & (rows >= 50))
    assert of_kinds == pytest.approx([0.25, 0.25, 0.5], abs=0.05)


def test_rates_by_hand():
    weights = {"a": 2.0, "b": 0.5}
    assert epoch_rates({"a": 10, "b": 40}, {"a": 1, "b": 1}) is None
    assert epoch_rates({"a": 10, "b": 40}, weights) == [2.0, 0.5]
    # 20 + 20 pairs; at temperature 2 in proportion to 2 · 4 and 0.5 · 8.
    evened = epoch_rates({"a": 16, "b": 64}, weights, temperature=2)
    assert evened == pytest.approx([64 * (8 / 12) / 16, 64 * (4 / 12) / 64])
