"""Choosing the largest of long rows against NumPy's argmax and a stable sort of all sums."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_transformer.decoding.selection import (
    first_argmax,
    largest_of_rows,
    log_sums_and_maxima,
    take_rows,
)

# Around the sizes of blocks, with and without a divisor, and of columns.
LENGTHS = (1, 2, 63, 64, 127, 128, 129, 211, 256, 509, 512, 521, 640, 1000, 1024, 1031, 8000)


def drawn(seed, length):
    rng = np.random.default_rng(seed)
    batch, rows = rng.integers(1, 4, 2)
    logits = rng.normal(0, 3, (batch, rows, length)).astype("float32")
    if seed % 2:
        logits = np.round(logits)  # equal values
    logits += rng.choice([-9e4, -200.0, 0.0, 300.0, 9e4])
    offsets = rng.normal(0, 5, (batch, rows)).round(seed % 2).astype("float32")
    return rng, logits, offsets, int(rng.choice([1, 2, 5, 8, 200]))


def check_largest(results, values, offsets, count, first_wins):
    sums, rows, indices = map(np.asarray, results)
    every = (values + offsets[..., None]).reshape(len(values), -1)
    count = min(count, every.shape[1])
    order = np.argsort(-every, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(sums, np.take_along_axis(every, order, 1))
    places = rows * values.shape[2] + indices
    np.testing.assert_array_equal(np.take_along_axis(every, places, 1), sums)
    assert all(len(set(row)) == count for row in places.tolist())
    if first_wins:
        np.testing.assert_array_equal(places, order)


@settings(max_examples=60)
@given(length=st.sampled_from(LENGTHS), seed=st.integers(0, 999))
def test_the_largest_of_rows_are_those_of_a_sort_and_the_first_of_equal_ones(length, seed):
    _, logits, offsets, count = drawn(seed, length)
    results = largest_of_rows(*map(ops.convert_to_tensor, (logits, offsets)), count)
    check_largest(results, logits, offsets, count, first_wins=True)


@settings(max_examples=60)
@given(length=st.sampled_from(LENGTHS), seed=st.integers(0, 999))
def test_sums_and_maxima_after_constraints_of_the_first_ids_lead_to_the_largest(length, seed):
    rng, logits, offsets, count = drawn(seed, length)
    changed = [None, 1, 4, length // 16 + 1, length][rng.integers(5)]
    banned = rng.integers(0, min(changed or length, length), 3)
    logits[..., banned] += 20.0  # Else the largest would seldom be among them.
    allowed = logits.copy()
    allowed[..., banned] = -1e30
    sums, maxima = log_sums_and_maxima(*map(ops.convert_to_tensor, (logits, allowed)), changed)
    wide = logits.astype("float64")
    largest = wide.max(axis=2)
    expected = np.log(np.exp(wide - largest[..., None]).sum(axis=2)) + largest
    np.testing.assert_allclose(np.asarray(sums), expected, rtol=1e-6, atol=1e-5)
    results = largest_of_rows(*map(ops.convert_to_tensor, (allowed, offsets)), count, maxima)
    check_largest(results, allowed, offsets, count, first_wins=maxima is None)


def test_the_first_argmax_is_that_of_numpy_and_within_a_row_of_nan():
    rng = np.random.default_rng(0)
    for length in LENGTHS:
        values = rng.integers(0, 3, (2, 3, length)).astype("float32")
        chosen = np.asarray(first_argmax(ops.convert_to_tensor(values)))
        assert chosen.dtype == "int32"
        np.testing.assert_array_equal(chosen, values.argmax(axis=2))
        of_nan = first_argmax(ops.full((2, length), float("nan")))
        assert 0 <= np.max(of_nan) < length


def test_rows_of_each_sentence_are_its_own():
    rng = np.random.default_rng(0)
    for batch, count, chosen, *sizes in itertools.product((1, 3), (1, 4), (0, 1, 4, 7), (2,)):
        values = rng.normal(size=(batch, count, *sizes)).astype("float32")
        rows = rng.integers(0, count, (batch, chosen)).astype("int32")
        expected = np.stack([own[mine] for own, mine in zip(values, rows, strict=True)])
        taken = take_rows(*map(ops.convert_to_tensor, (values, rows)))
        np.testing.assert_array_equal(taken, expected)
