import numpy as np
import pytest

from keras_transformer.base.errors import InputError
from keras_transformer.data import choose_shapes
from keras_transformer.data.batching import draw_epoch, plan_batches

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


def taken(buckets, sizes, rates, seed, epoch):
    """Examples of an epoch, after a check that their places are the same as in any other epoch."""
    (order, _, is_taken), (first, _, _) = (
        draw_epoch(buckets, sizes, rates, seed, number) for number in (epoch, 0)
    )
    assert np.array_equal(np.sort(buckets[order]), np.sort(buckets[first]))
    return order[is_taken]


# By hand: how often 12 epochs take each example of a bucket.
RATES = [(0.25, 3), (0.5, 6), (1, 12), (1.5, 18), (3, 36), (1 / 3, 4), (0.0, 0)]


@pytest.mark.parametrize("rate, times", RATES)
@pytest.mark.parametrize("is_alone", [True, False])
def test_an_example_comes_at_its_rate_also_alone_in_its_bucket_or_its_corpus(rate, times, is_alone):
    buckets = np.array([0] * 59 + [4] if is_alone else [0] * 5 + [4], np.uint16)
    sizes, rates = ([59, 1], [1.0, rate]) if is_alone else ([6], [rate])
    drawn = [taken(buckets, sizes, rates, 3, epoch) for epoch in range(12)]
    counts = np.bincount(np.concatenate(drawn).astype(int), minlength=len(buckets))
    assert counts.tolist() == ([12] * 59 + [times] if is_alone else [times] * 6)


def test_a_lone_example_comes_in_a_first_epoch_at_its_rate_too():
    """Over the seeds: otherwise short trainings would never see it, or all of them would."""
    firsts = [len(taken(np.zeros(1, np.uint16), [1], [0.25], seed, 0)) for seed in range(400)]
    assert 0.19 < np.mean(firsts) < 0.31


def test_any_rate_is_met_to_within_one_round():
    rng = np.random.default_rng(7)
    buckets, sizes = (20 * rng.random(900) ** 9).astype(np.uint16), [500, 399, 1]
    rates = [0.37, 2.23, 0.01]
    drawn = [taken(buckets, sizes, rates, 3, epoch) for epoch in range(300)]
    counts = np.split(np.bincount(np.concatenate(drawn), minlength=900), [500, 899])
    for corpus, expected in zip(counts, (111, 669, 3), strict=True):
        assert np.all(np.abs(corpus - expected) <= 1)
