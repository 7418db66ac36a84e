import numpy as np
import pytest

from keras_transformer.data import choose_shapes
from keras_transformer.data.batching import divisible_buckets, draw_epoch, epoch_rates, plan_batches
from keras_transformer.errors import InputError

NO_SHAPES = [([3, 11], 10, 8, "batch_tokens=10, longest example=11"), ([3], 0, 8, "batch_tokens=0")]
NO_SHAPES += [([3], 7, 0, "max_shapes=0"), ([], 7, 8, "at least one")]
NO_SHAPES += [([0, 3], 7, 8, "must be positive")]


@pytest.mark.parametrize("lengths, batch_tokens, max_shapes, message", NO_SHAPES)
def test_arguments_without_shapes_are_refused(lengths, batch_tokens, max_shapes, message):
    with pytest.raises(InputError, match=message):
        choose_shapes(lengths, batch_tokens, max_shapes)


@pytest.mark.parametrize("shapes", [[], [(3, 5), (5, 3)], [(0, 9)], [9], None])
def test_shapes_that_are_none_or_too_short_are_refused(shapes):
    with pytest.raises(InputError, match="must be pairs"):
        plan_batches([2], shapes)
    with pytest.raises(InputError, match="longest shape=7, longest example=8"):
        plan_batches([8], [(5, 3), (2, 7)])


def test_without_a_temperature_rates_are_weights_and_equal_weights_none():
    assert epoch_rates({"a": 10, "b": 40}, {"a": 1, "b": 1}) is None
    assert epoch_rates({"a": 10, "b": 40}, {"a": 2.0, "b": 0.5}) == [2.0, 0.5]


# By hand: 4 examples give 1 at a rate of 0.25, 3 give 4 at 4/3, 7 give 2 at 0.3 (0.286).
DIVISIBLE = [([9] + [2] * 7, [0.25], [9] * 4 + [2] * 4), ([9, 5, 2, 2], [0.25], [9] * 4)]
DIVISIBLE += [([9] + [2] * 8, [0.25], [9] * 9), ([9, 2, 2], [0.25], [9] * 3)]
DIVISIBLE += [([9] * 5 + [2] * 2, [4 / 3], [9] * 6 + [9]), ([9] * 4 + [2] * 9, [0.3], [9] * 13)]
DIVISIBLE += [([9] * 4 + [2] * 6, [0.3], [9] * 7 + [9] * 3), ([3, 1] * 2, [0.25], [3] * 4)]
DIVISIBLE += [([9, 2], [1.0], [9, 2]), ([9, 2], [3], [9, 2]), ([9, 2], [0.0], [9, 2])]
DIVISIBLE += [([9, 2, 9, 2], [1.0, 0.5], [9, 2, 9, 9]), ([], [0.25], [])]
# 31 examples give 0.93 at a rate of 0.03, 32 give 0.96, and the other 69 give 2.07.
DIVISIBLE += [([9] + [2] * 100, [0.03], [9] * 32 + [2] * 69)]


@pytest.mark.parametrize("buckets, rates, expected", DIVISIBLE)
def test_a_bucket_with_few_examples_gets_shorter_ones(buckets, rates, expected):
    sizes = [len(buckets) // len(rates)] * len(rates)
    before = np.array(buckets, np.uint16)
    divided = divisible_buckets(before, sizes, rates)
    assert sorted(divided.tolist()) == sorted(expected) and before.tolist() == buckets
    assert np.all(divided >= before) and divided.dtype == np.uint16


@pytest.mark.parametrize("rate, epochs, times", [(0.25, 4, 1), (0.5, 2, 1), (1.5, 2, 3)])
def test_an_example_alone_in_its_bucket_comes_at_its_rate(rate, epochs, times):
    buckets = divisible_buckets(np.array([0] * 59 + [4], np.uint16), [60], [rate])
    drawn = np.concatenate(
        [draw_epoch(buckets, [60], [rate], 3, epoch)[0] for epoch in range(epochs)]
    )
    assert np.bincount(drawn).tolist() == [times] * 60


def test_rates_of_no_round_number_are_met_within_some_percent():
    rng = np.random.default_rng(7)
    buckets, sizes = (20 * rng.random(900) ** 9).astype(np.uint16), [500, 399, 1]
    rates = [0.37, 2.23, 0.01]
    buckets = divisible_buckets(buckets, sizes, rates)
    drawn = [draw_epoch(buckets, sizes, rates, 3, epoch)[0] for epoch in range(300)]
    counts = np.split(np.bincount(np.concatenate(drawn), minlength=900), [500, 899])
    for corpus, expected in zip(counts[:2], (0.37 * 300, 2.23 * 300), strict=True):
        assert np.all(np.abs(corpus / expected - 1) < 0.07)
    assert counts[2].tolist() == [300]  # An epoch takes at least one.
