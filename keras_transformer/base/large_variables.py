"""Reads and assigns variables of a gigabyte a few rows at a time, without copies of the whole."""

import contextlib
import contextvars
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import ml_dtypes
import numpy as np

_BLOCK_NUMBERS = 1 << 22  # numbers
_MIN_SPLIT = 1 << 28  # numbers, a gigabyte in float32, from which on a file has blocks
_MOST = float(np.finfo("float16").max)
_ALIGNMENT = 64  # bytes; TensorFlow copies other arrays
_zero_initialized: contextvars.ContextVar = contextvars.ContextVar(
    "zero_initialized", default=False
)


@contextlib.contextmanager
def zero_initialized() -> Iterator[None]:
    """Lets layers that are built within this context begin with zeros, for values that follow.

    It is no argument, because Keras makes the layers of a file by `from_config`, whose arguments
    are those of the file: an argument would be saved, and hold for a later training.
    """
    token = _zero_initialized.set(True)
    try:
        yield
    finally:
        _zero_initialized.reset(token)


def release_weights(model: keras.Model) -> None:
    """Frees the memory of a model's weights, whose values become zeros."""
    for variable in model.variables:
        variable.assign(zeros_without_memory(tuple(variable.shape), variable.dtype))


def initializer_of(initializer: Any) -> Any:
    """Returns the initializer of a matrix: within `zero_initialized`, zeros without memory."""
    return zeros_without_memory if _zero_initialized.get() else initializer


def zeros_without_memory(shape: Sequence[int], dtype: str | None = None) -> Any:
    """Returns a tensor of zeros, which take memory on TensorFlow only where they are changed."""
    return _tensor_of(_shareable(shape, dtype or "float32"))


def _shareable(shape, dtype):
    """Returns an array of zeros whose memory TensorFlow takes over instead of a copy.

    The system gives it memory only where it is written.
    """
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    size = math.prod(shape) * dtype.itemsize
    memory = np.zeros(size + _ALIGNMENT, "uint8")
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def _tensor_of(array):
    """Returns a tensor in the memory of a `_shareable` array, which nothing else may use.

    JAX copies the array once.
    """
    if keras.backend.backend() != "tensorflow":
        return keras.ops.convert_to_tensor(array)
    import tensorflow as tf

    # TensorFlow copies any array of NumPy, but none of another library. These have no bfloat16.
    is_standard = array.dtype.kind != "V"
    tensor = tf.experimental.dlpack.from_dlpack(
        (array if is_standard else array.view("uint16")).__dlpack__()
    )
    return tensor if is_standard else tf.bitcast(tensor, tf.bfloat16)


def assign_each(variables: Iterable[keras.Variable], values: Iterable[Any]) -> None:
    """Assigns one value after another; a variable or a tensor shares its memory until it changes.

    Raises:
        ValueError: There are more or fewer values than variables.
    """
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value.value if isinstance(value, keras.Variable) else value)


def row_blocks(variable: Any) -> Iterator[np.ndarray]:
    """Yields the values of a variable or an array, consecutive rows at a time."""
    values = _tensor(variable)
    for start, stop in _ranges(variable.shape):
        yield keras.ops.convert_to_numpy(values[start:stop])


def stored_arrays(variable: Any) -> Iterator[Any]:
    """Yields what a file has of a variable or an array: one array, or `row_blocks` if it is large.

    Another program finds a table of the usual size where Keras' own layers have it.
    """
    if math.prod(variable.shape) < _MIN_SPLIT:
        yield _tensor(variable)  # Keras makes the array.
    else:
        yield from row_blocks(variable)


def _tensor(variable):
    """Returns the tensor: slices and arrays of TensorFlow's variables copy them once more."""
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return value.value() if hasattr(value, "value") else value


def assign_rows(variable: keras.Variable, blocks: Iterable[Any]) -> None:
    """Assigns consecutive rows: arrays that have the variable's rows together.

    Raises:
        ValueError: The arrays have other shapes, or more or fewer rows, than the variable. Its
            dtype has 16 bits, and a number is beyond float16.
    """
    shape, start = tuple(variable.shape), 0
    rows, is_half = _shareable(shape, variable.dtype), "16" in variable.dtype
    for block in blocks:
        stop = start + block.shape[0]
        if block.shape[1:] != shape[1:] or stop > shape[0]:
            raise ValueError(_mismatch(variable, (stop, *block.shape[1:])))
        for first, last in _ranges(block.shape):
            numbers = block[first:last]
            # NaN is not larger, and hides no other number.
            if is_half and np.any(too_large := np.abs(numbers) > _MOST):
                rule = f"{variable.path} in {variable.dtype} must have numbers up to {_MOST:,.0f}"
                raise ValueError(f"{rule}. Received: {abs(float(numbers[too_large][0])):,.0f}.")
            rows[start + first : start + last] = numbers
        start = stop
    if start != shape[0]:
        raise ValueError(_mismatch(variable, (start, *shape[1:])))
    variable.assign(_tensor_of(rows))


def _ranges(shape):
    """Yields the first and the last row of each block."""
    count, *sizes = shape
    rows = max(1, _BLOCK_NUMBERS // max(1, math.prod(sizes)))
    for start in range(0, count, rows):
        yield start, min(start + rows, count)


def _mismatch(variable, received):
    rule = f"{variable.path} must have the shape {tuple(variable.shape)}"
    return f"{rule}. Received: {tuple(received)}."
