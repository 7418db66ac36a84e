import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.data import choose_shapes
from keras_transformer.data.batching import epoch_rates, plan_batches
from keras_transformer.errors import InputError

SHAPES = [(5, 3), (3, 5), (2, 7)]


def padded_area(lengths, edges):
    return sum(min(edge for edge in edges if edge >= length) for length in lengths)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.integers(1, 61), st.integers(1, 7), min_size=1), st.integers(1, 5))
def test_no_other_edges_pad_less(count_of, max_shapes):
    lengths = [length for length, count in count_of.items() for _ in range(count)]
    edges = [length for _, length in choose_shapes(lengths, 61, max_shapes)]
    distinct = sorted(set(lengths))
    count = min(max_shapes, len(distinct))
    # The longest length is always an edge, so the others are what can be chosen.
    best = min(
        padded_area(lengths, [*chosen, distinct[-1]])
        for chosen in itertools.combinations(distinct[:-1], count - 1)
    )
    assert padded_area(lengths, edges) == best
    assert len(edges) == count and edges == sorted(set(edges))


def test_a_batch_never_exceeds_its_tokens_and_another_row_would():
    lengths = np.random.default_rng(0).integers(1, 97, 2000)
    for batch, length in choose_shapes(lengths, 997):
        assert batch * length <= 997 < (batch + 1) * length


NO_SHAPES = [([3, 11], 10, 8, "batch_tokens=10, longest example=11"), ([3], 0, 8, "batch_tokens=0")]
NO_SHAPES += [([3], 7, 0, "max_shapes=0"), ([], 7, 8, "at least one")]
NO_SHAPES += [([0, 3], 7, 8, "must be positive")]


@pytest.mark.parametrize("lengths, batch_tokens, max_shapes, message", NO_SHAPES)
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


@pytest.mark.parametrize("shapes", [[], [(3, 5), (5, 3)], [(0, 9)], [9], None])
def test_shapes_that_are_none_or_too_short_are_refused(shapes):
    with pytest.raises(InputError, match="must be pairs"):
        plan_batches([2], shapes)
    with pytest.raises(InputError, match="longest shape=7, longest example=8"):
        plan_batches([8], SHAPES)


def test_rates_by_hand():
    weights = {"a": 2.0, "b": 0.5}
    assert epoch_rates({"a": 10, "b": 40}, {"a": 1, "b": 1}) is None
    assert epoch_rates({"a": 10, "b": 40}, weights) == [2.0, 0.5]
    # 20 + 20 pairs; at temperature 2 in proportion to 2 · 4 and 0.5 · 8.
    evened = epoch_rates({"a": 16, "b": 64}, weights, temperature=2)
    assert evened == pytest.approx([64 * (8 / 12) / 16, 64 * (4 / 12) / 64])
