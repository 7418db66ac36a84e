"""FlatBuffers' builder for a LiteRT model."""

import flatbuffers
import numpy as np

from keras_transformer.export.litert.matrices import digest


class SharingBuilder(flatbuffers.Builder):
    """Builder that writes equal arrays once, and a `Matrix` a few rows at a time.

    Args:
        size: Number of bytes to begin with.
        matrix_of: Function of an array that returns the `Matrix` that it stands for, or None.
    """

    def __init__(self, size, matrix_of):
        super().__init__(size)
        self._matrix_of, self._written = matrix_of, {}

    def CreateNumpyVector(self, values):  # noqa: N802
        matrix = self._matrix_of(values)
        key = values.dtype.str, digest(values) if matrix is None else matrix.key
        if key not in self._written:
            self._written[key] = self._write(values, matrix)
        return self._written[key]

    def _write(self, values, matrix):
        if values.dtype != np.uint8:
            return super().CreateNumpyVector(values)
        # LiteRT's schema demands that buffers begin at multiples of 16 bytes.
        self.StartVector(1, values.size, 16)
        self.head -= values.size
        start = self.head
        for rows in [values] if matrix is None else matrix.rows():
            numbers = np.ascontiguousarray(rows).view("uint8").reshape(-1)
            self.Bytes[start : start + numbers.size] = memoryview(numbers)
            start += numbers.size
        self.vectorNumElems = values.size
        return self.EndVector()
