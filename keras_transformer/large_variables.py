"""Reads and assigns variables of a gigabyte a few rows at a time, without copies of the whole."""

import contextlib
import contextvars
import math
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

_BLOCK = 1 << 22  # numbers
_values_follow: contextvars.ContextVar = contextvars.ContextVar("values_follow", default=False)


@contextlib.contextmanager
def values_follow() -> Iterator[None]:
    """Lets layers that are built within make large variables of zeros, since values follow."""
    token = _values_follow.set(True)
    try:
        yield
    finally:
        _values_follow.reset(token)


def initializer_of(initializer: Any) -> Any:
    """Returns the initializer of a large variable: zeros, which take no copy, if values follow."""
    return keras.initializers.Zeros() if _values_follow.get() else initializer


def row_blocks(variable: keras.Variable) -> Iterator[np.ndarray]:
    """Yields the values of a variable, consecutive rows at a time."""
    # A variable of TensorFlow copies itself whole for each slice of it; its tensor does not.
    value = variable.value
    values = value.value() if hasattr(value, "value") else value
    for start, stop in _ranges(variable.shape):
        yield keras.ops.convert_to_numpy(values[start:stop])


def assign_rows(variable: keras.Variable, blocks: Iterable[Any]) -> None:
    """Assigns consecutive rows: arrays that have the variable's rows together.

    Raises:
        ValueError: The arrays have other shapes, or more or fewer rows, than the variable.
    """
    shape, start = tuple(variable.shape), 0
    with _writing(variable) as write:
        for block in blocks:
            stop = start + block.shape[0]
            if block.shape[1:] != shape[1:] or stop > shape[0]:
                raise ValueError(_mismatch(variable, (stop, *block.shape[1:])))
            for first, last in _ranges(block.shape):
                write(start + first, start + last, block[first:last])
            start = stop
        if start != shape[0]:
            raise ValueError(_mismatch(variable, (start, *shape[1:])))


@contextlib.contextmanager
def _writing(variable):
    """Yields the function that assigns a range of rows."""
    if keras.backend.backend() != "tensorflow":
        # Other arrays cannot be changed.
        rows = np.empty(variable.shape, variable.dtype)
        yield lambda start, stop, values: operator.setitem(rows, slice(start, stop), values)
        variable.assign(rows)
        return
    import tensorflow as tf

    def write(start, stop, values):
        # `assign` would make three copies of the whole, and `scatter_update` would make each later
        # read of the variable a copy.
        tf.raw_ops.ResourceStridedSliceAssign(
            ref=variable.value.handle,
            begin=[start],
            end=[stop],
            strides=[1],
            value=tf.cast(values, variable.value.dtype),
        )

    yield write


def _ranges(shape):
    """Yields the first and the last row of each block."""
    count, *sizes = shape
    rows = max(1, _BLOCK // max(1, math.prod(sizes)))
    for start in range(0, count, rows):
        yield start, min(start + rows, count)


def _mismatch(variable, received):
    rule = f"{variable.path} must have the shape {tuple(variable.shape)}"
    return f"{rule}. Received: {tuple(received)}."
