"""Rows of a tensor in a file are read where they are needed, in any order."""

import numpy as np
import pytest

from keras_transformer.base.errors import InputError
from keras_transformer.extras.foreign import foreign_model
from keras_transformer.extras.foreign.foreign_model import FileArray, Tensors
from keras_transformer.extras.foreign.vocabulary import Table

ROWS = np.arange(40, dtype="float32").reshape(20, 2)
ORDERS = [
    [0, 1, 2, 3],
    [19, 0, 1, 2],
    [5],
    [],
    [7, 7, 7],
    [3, 2, 1, 0],
    [*range(4, 20), 0, 1, 2, 3],
]


def file_array(read, dtype="float32"):
    """The rows, with each range that is read appended to a list."""

    def read_rows(start, stop):
        read.append((start, stop))
        return ROWS[start:stop].astype(dtype)

    return FileArray(ROWS.shape, lambda: pytest.fail("all rows were read"), read_rows)


@pytest.mark.parametrize("max_runs", [0, 1, 16])
@pytest.mark.parametrize("order", ORDERS)
def test_rows_come_in_any_order(monkeypatch, order, max_runs):
    monkeypatch.setattr(foreign_model, "_MAX_RUNS", max_runs)
    ids = np.array(order, int)
    array = FileArray(ROWS.shape, lambda: ROWS) if not order else file_array([])
    np.testing.assert_array_equal(array[ids], ROWS[ids])


def test_consecutive_rows_are_read_at_once_and_no_others():
    read = []
    file_array(read)[np.array([8, 9, 10, 2, 3])]
    assert read == [(8, 11), (2, 4)]


@pytest.mark.parametrize("dtype, expected", [("float16", "float16"), ("int8", "float32")])
def test_a_table_of_a_file_has_its_numbers_and_zeros_for_missing_rows(dtype, expected):
    tensors = Tensors({"Wemb": file_array([], dtype)}, "file")
    table = Table(tensors.get_rows("Wemb"), np.array([4, -1, 0, 5]))
    assert table.shape == (4, 2) and table[:].dtype == expected
    np.testing.assert_array_equal(table[:], [*ROWS[[4]], [0, 0], *ROWS[[0, 5]]])
    np.testing.assert_array_equal(table[1:3], [[0, 0], ROWS[0]])
    tensors.check_all_used()


def test_a_missing_tensor_has_no_rows():
    with pytest.raises(InputError, match="file: the model has no tensor Wemb"):
        Tensors({}, "file").get_rows("Wemb")


def test_rows_that_are_no_numbers_are_one_line():
    tensors = Tensors({"Wemb": np.array([["a"], ["b"]])}, "file")
    with pytest.raises(InputError, match="file: a tensor must have numbers. Received: Wemb"):
        tensors.get_rows("Wemb")[np.array([0])]


def test_the_weights_of_a_model_are_counted():
    arrays = {"a": ROWS.astype("float16"), "b": file_array([])}
    assert Tensors(arrays, "file").count == 80
