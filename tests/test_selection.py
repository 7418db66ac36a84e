"""`first_argmax` against NumPy's argmax."""

import numpy as np
import pytest

from keras_transformer.selection import first_argmax


@pytest.mark.parametrize("shape", [(2003,), (5, 7), (3, 5, 11), (4, 1)])
def test_it_is_the_index_of_the_largest(rng, shape):
    values = rng.normal(size=shape).astype("float32")
    chosen = first_argmax(values)
    assert str(np.asarray(chosen).dtype) == "int32"
    np.testing.assert_array_equal(chosen, np.argmax(values, axis=-1))


def test_of_equal_ones_the_first_is_chosen(rng):
    values = rng.integers(0, 3, size=(53, 11)).astype("float32")
    assert (np.sum(values == values.max(axis=-1, keepdims=True), axis=-1) > 1).any()
    np.testing.assert_array_equal(first_argmax(values), np.argmax(values, axis=-1))


def test_infinities_are_ordered_like_numbers():
    inf = np.inf
    values = np.array([[-inf, -inf, -inf], [-inf, 1.0, inf], [-1e30, -inf, -1e38]], "float32")
    np.testing.assert_array_equal(first_argmax(values), [0, 2, 0])


@pytest.mark.parametrize("place", [slice(None), slice(0, 1), slice(2, 3), slice(4, 5)])
def test_a_row_with_nan_gives_an_index_in_range(place):
    values = np.array([[1.0, 5.0, 3.0, 5.0, 2.0]], "float32")
    values[:, place] = np.nan
    assert 0 <= np.asarray(first_argmax(values))[0] < 5


def test_the_other_rows_do_not_see_a_row_of_nan():
    values = np.array([[np.nan] * 3, [1.0, 3.0, 2.0]], "float32")
    assert np.asarray(first_argmax(values))[1] == 1


def test_compiled_it_gives_the_same(rng, compiled):
    values = rng.integers(0, 5, size=(7, 13)).astype("float32")
    np.testing.assert_array_equal(compiled(first_argmax)(values), np.argmax(values, axis=-1))
