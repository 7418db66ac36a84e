"""Choosing the largest against NumPy's argmax and its stable sort."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding.selection import first_argmax, largest_of_rows, log_sums_and_maxima


@pytest.mark.parametrize("shape", [(2003,), (5, 7), (3, 5, 11), (4, 1)])
def test_it_is_the_index_of_the_largest(rng, shape):
    values = rng.normal(size=shape).astype("float32")
    chosen = first_argmax(values)
    assert str(np.asarray(chosen).dtype) == "int32"
    np.testing.assert_array_equal(chosen, np.argmax(values, axis=-1))
    values = rng.integers(0, 3, size=shape).astype("float32")  # Of equal ones the first.
    np.testing.assert_array_equal(first_argmax(values), np.argmax(values, axis=-1))


def check_largest(values, offsets, count, function=largest_of_rows):
    """Against a sort of all sums that keeps equal ones in order: by row, then by place."""
    values, offsets = values.astype("float32"), offsets.astype("float32")
    sums = (values + offsets[:, :, None]).reshape(len(values), -1)
    order = np.argsort(-sums, axis=1, kind="stable")[:, :count]
    results = function(ops.convert_to_tensor(values), ops.convert_to_tensor(offsets), count)
    results = [np.asarray(array) for array in results]
    length = values.shape[2]
    expected = np.take_along_axis(sums, order, axis=1), order // length, order % length
    for ours, theirs in zip(results, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


# Primes have no block that divides them; 8000 and 192 have; up to 160 there is one block.
SHAPES = [
    *[(3, 8191, 6), (1, 8191, 2), (5, 8000, 10), (2, 257, 5), (2, 192, 3), (1, 257, 1)],
    *[(3, 131, 7), (2, 3, 5), (1, 1, 1), (7, 1, 3)],
]


@pytest.mark.parametrize("rows, length, count", SHAPES)
def test_the_largest_of_rows_are_those_of_a_sort(rng, rows, length, count):
    values = rng.normal(size=(3, rows, length))
    check_largest(values, rng.normal(size=(3, rows)), count)
    # In the last block, which may be a short one.
    values[:, -1, -count:] += 9.0
    check_largest(values, np.zeros((3, rows)), count)


@pytest.mark.parametrize("levels", [1, 2, 5])
@pytest.mark.parametrize("rows, length, count", [(3, 389, 6), (2, 300, 7), (1, 257, 2), (4, 5, 3)])
def test_of_equal_sums_the_first_row_and_place_is_chosen(rng, rows, length, count, levels):
    values = rng.integers(0, levels, size=(13, rows, length))
    # The level of a row's offset makes its values equal to other ones of another row.
    check_largest(values, rng.integers(0, 2, size=(13, rows)), count)


def test_if_fewer_exist_than_are_asked_for_all_are_given(rng):
    values, offsets = rng.normal(size=(2, 3, 5)), rng.normal(size=(2, 3))
    assert all(np.shape(array) == (2, 15) for array in largest_of_rows(values, offsets, 23))
    check_largest(values, offsets, 23)


@pytest.mark.parametrize("length, pieces", [(8000, 16), (1001, 13), (700, 10), (512, 8)])
def test_one_read_gives_the_log_sums_and_the_largest_of_what_is_allowed(rng, length, pieces):
    logits = (3 * rng.normal(size=(3, 4, length))).astype("float32")
    logits[:, :, [0, 2, 5]] += 20.0
    allowed = logits.copy()
    allowed[:, :, [0, 2]] = -1e30
    offsets = rng.normal(size=(3, 4)).astype("float32")
    sums, maxima = log_sums_and_maxima(*map(ops.convert_to_tensor, (logits, allowed)), 4)
    wide = logits.astype("float64")
    np.testing.assert_allclose(sums, np.log(np.exp(wide).sum(axis=2)), rtol=1e-5)
    in_pieces = allowed.reshape(3, 4, pieces, -1)
    np.testing.assert_array_equal(maxima, in_pieces.max(axis=2))

    def function(values, offsets, count):
        return largest_of_rows(values, offsets, count, maxima)

    check_largest(allowed, offsets, 8, function)
