"""Matrices that are computed some rows at a time, against arrays that are whole."""

import gc
import weakref
from unittest import mock

import numpy as np
import pytest

from keras_transformer.export.litert import matrices
from keras_transformer.export.litert.file import Buffers
from keras_transformer.export.litert.matrices import Matrix

WIDTH = 6


@pytest.fixture(params=[1, 2, 5, 100])
def block_rows(request, monkeypatch):
    """Rows that memory may hold at a time."""
    monkeypatch.setattr(matrices, "_BLOCK_NUMBERS", request.param * WIDTH)
    return request.param


@pytest.fixture(params=[(1,), (5,), (2, 3), (4, 1, 6)])
def array_and_matrix(request):
    blocks = [np.random.default_rng(3).normal(size=(n, WIDTH)) for n in request.param]
    array = np.concatenate(blocks).astype("float32")
    return array, Matrix(("a", 1), array.shape, lambda: iter(blocks))


def test_rows_are_those_of_the_whole_a_few_at_a_time(array_and_matrix, block_rows):
    array, matrix = array_and_matrix
    for _ in range(2):  # They are read whenever they are needed.
        rows = [*matrix.rows()]
        assert max(map(len, rows)) <= block_rows
        np.testing.assert_array_equal(np.concatenate(rows), array)
    assert matrix.array().dtype == "float32" and matrix.size == array.size


def test_rows_at_indices_are_in_their_order(array_and_matrix, block_rows):
    array, matrix = array_and_matrix
    indices = [len(array) - 1, 0, len(array) // 2, 0]
    np.testing.assert_array_equal(matrix.rows_at(indices), array[indices])


def test_a_changed_matrix_is_another_one(array_and_matrix, block_rows):
    array, matrix = array_and_matrix
    half = matrix.changed("float16", lambda rows: rows / 2)
    np.testing.assert_array_equal(half.array(), (array / 2).astype("float16"))
    assert half.key != matrix.key
    assert half.key == matrix.changed("float16", lambda rows: rows / 2).key


@pytest.mark.tensorflow
def test_a_matrix_that_a_function_captures_is_one_tensor_and_is_freed_with_the_function(
    array_and_matrix, monkeypatch
):
    import tensorflow as tf

    from keras_transformer.export.litert import model
    from keras_transformer.export.litert.file import MATRIX, traced

    monkeypatch.setattr(model, "MIN_CAPTURED", 1)
    (array, _), read = array_and_matrix, mock.Mock(side_effect=AssertionError("Nothing is read."))

    def function_of(matrix):
        def product(rows):
            products = rows @ tf.transpose(model.captured(matrix))
            return {"products": products, "sums": rows + model.captured(matrix)[0]}

        function = traced(product, tf.TensorSpec((3, WIDTH), tf.float32, name="rows"))
        (captured,) = function.captured_inputs
        assert getattr(captured, MATRIX) is matrix
        return function, weakref.ref(matrix)

    function, reference = function_of(Matrix(("captured",), array.shape, read))
    assert reference() is not None
    del function
    gc.collect()
    assert reference() is None


def test_equal_matrices_are_stored_once_and_take_no_memory():
    schema = pytest.importorskip(
        "ai_edge_litert.schema_py_generated", reason="comes with the extra [litert]"
    )
    model = schema.ModelT()
    model.buffers, model.subgraphs = [schema.BufferT()], []
    buffers = Buffers(model)

    def read():
        raise AssertionError("only a file that is written needs the rows")

    first, again, other = (Matrix(key, (1 << 20, 1 << 20), read) for key in ((1,), (1,), (2,)))
    assert [buffers.add(matrix) for matrix in (first, again, other)] == [1, 1, 2]
    assert buffers.add(None) == buffers.add(np.zeros(0)) == 0
    assert len(model.buffers[1].data) == 4 << 40
