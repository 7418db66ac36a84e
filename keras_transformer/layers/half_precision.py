"""Weights of half precision: products with them are computed in float32."""

from typing import Any

import keras
from keras import ops

_DTYPES = ("float16", "bfloat16")
_BLOCK_NUMBERS = 1 << 24  # numbers of a table that are cast at once


@keras.saving.register_keras_serializable(package="keras_transformer")
class HalfPrecisionWeights(keras.dtype_policies.DTypePolicy):
    """A dtype policy of models that are not trained: weights in 16 bits, computations in float32.

    Half precision saves memory, and computations in float32 keep their accuracy on processors that
    have nothing better. A model of a file has weights of float16, also where the file has bfloat16.
    XLA on a CPU computes nothing in bfloat16, and would keep whole copies in float32. Float16 has
    all digits of bfloat16 from 7.6e-6 to 65,504, and smaller numbers to within 3e-8.
    A layer that Keras makes again from its configuration, without a model, is one of float32.

    Args:
        dtype: Of the weights, "float16" or "bfloat16".

    Raises:
        ValueError: There is no such dtype.
    """

    def __init__(self, dtype: str = "float16"):
        if dtype not in _DTYPES:
            raise ValueError(f"`dtype` must be one of {', '.join(_DTYPES)}. Received: {dtype}.")
        super().__init__("float32")
        self._dtype = dtype

    @property
    def variable_dtype(self) -> str:
        return self._dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HalfPrecisionWeights) and self._dtype == other._dtype

    def __hash__(self) -> int:
        return hash(self._dtype)

    def get_config(self) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        return f'<HalfPrecisionWeights "{self._dtype}">'


def matmul(inputs: keras.KerasTensor, matrix: Any) -> keras.KerasTensor:
    """Multiplies rows with a matrix, which may be of half precision: `cast_late`."""
    return ops.matmul(inputs, cast_late(matrix, inputs))


def needs_cast(values: Any, dtype: Any) -> bool:
    """Returns whether values are of float16, for computations in float32."""
    dtypes = map(keras.backend.standardize_dtype, (values.dtype, dtype))
    return tuple(dtypes) == ("float16", "float32")


def cast_late(matrix: Any, inputs: keras.KerasTensor) -> keras.KerasTensor:
    """Casts a matrix of float16 to the float32 of inputs, not before the inputs are known.

    XLA casts first what depends on nothing, once before a loop: all matrices would be in memory in
    float32. So the matrix is made to depend on the inputs, by a condition that never holds.
    """
    matrix = ops.convert_to_tensor(matrix)
    if not needs_cast(matrix, inputs.dtype):
        return matrix
    total = ops.sum(inputs[..., :1])
    never = ops.logical_and(ops.isnan(total), ops.equal(total, 0))
    return ops.cast(ops.where(never, ops.zeros((), "float16"), matrix), "float32")


def matmul_transposed(inputs: keras.KerasTensor, table: Any) -> keras.KerasTensor:
    """Multiplies with the rows of a table: `inputs · tableᵀ`, in the dtype of the inputs."""
    if not needs_cast(table, inputs.dtype):
        return ops.matmul(inputs, ops.transpose(ops.cast(table, inputs.dtype)))
    rows = ops.reshape(inputs, (-1, inputs.shape[-1]))
    products = ops.transpose(logits_of_rows(table, rows))
    return ops.reshape(products, (*ops.shape(inputs)[:-1], table.shape[0]))


def logits_of_rows(table: Any, rows: keras.KerasTensor) -> keras.KerasTensor:
    """Multiplies each row of a table with each of the rows: `table · rowsᵀ`.

    A large table of float16 is cast a block after the other.
    """
    size, columns = table.shape[0], ops.transpose(rows)
    step = max(1, _BLOCK_NUMBERS // table.shape[1]) if needs_cast(table, rows.dtype) else size
    products, last = [], rows
    for start in range(0, size, step):
        block = table if step >= size else table[start : start + step]
        last = ops.matmul(cast_late(block, last), columns)
        products.append(last)
    return last if len(products) == 1 else ops.concatenate(products, axis=0)
