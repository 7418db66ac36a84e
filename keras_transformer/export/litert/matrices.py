"""Large matrices of a LiteRT model, computed of the trained model's weights where they are read."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

_BLOCK_NUMBERS = 1 << 22  # numbers


class Matrix:
    """A matrix of which memory holds some rows at a time.

    Args:
        key: Equal for equal matrices of a model.
        shape: Rows and columns.
        read: Yields consecutive rows, some at a time; called whenever they are needed.
        dtype: Of the rows.
    """

    def __init__(
        self,
        key: tuple,
        shape: Iterable[int],
        read: Callable[[], Iterable[np.ndarray]],
        dtype: str = "float32",
    ):
        self.key, self.shape, self._read = (*key, dtype), tuple(map(int, shape)), read
        self.dtype = np.dtype(dtype)

    @classmethod
    def of(cls, array: np.ndarray) -> "Matrix":
        """Returns a matrix that is in memory."""
        return cls((digest(array),), array.shape, lambda: [array], str(array.dtype))

    @property
    def size(self) -> int:
        """Number of numbers."""
        return math.prod(self.shape)

    def rows(self) -> Iterator[np.ndarray]:
        """Yields consecutive rows, some at a time."""
        count = max(1, _BLOCK_NUMBERS // max(1, self.shape[1]))
        for block in self._read():
            for start in range(0, len(block), count):
                yield np.asarray(block[start : start + count], self.dtype)

    def array(self) -> np.ndarray:
        """Returns the whole matrix."""
        return np.concatenate([*self.rows()])

    def rows_at(self, indices: Sequence[int]) -> np.ndarray:
        """Returns the rows at some indices."""
        chosen, start = np.empty((len(indices), self.shape[1]), self.dtype), 0
        for block in self.rows():
            for number, index in enumerate(indices):
                if start <= index < start + len(block):
                    chosen[number] = block[index - start]
            start += len(block)
        return chosen

    def changed(self, dtype: str, change: Callable[[np.ndarray], np.ndarray]) -> "Matrix":
        """Returns the matrix of another dtype that `change` computes of rows."""
        return Matrix(self.key, self.shape, lambda: map(change, self.rows()), dtype)


def digest(array: np.ndarray) -> bytes:
    """Returns the SHA-256 checksum of an array's numbers."""
    return hashlib.sha256(np.ascontiguousarray(array).view("uint8").reshape(-1)).digest()
