"""Variables of CTranslate2's `model.bin`, in the binary versions 2 to 6."""

import math
import os
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import received
from keras_transformer.base.reading import reading_errors
from keras_transformer.extras.foreign.foreign_model import FileArray

_VERSIONS = range(2, 7)
_TYPES = tuple(map(np.dtype, ("<f4", "i1", "<i2", "<i4", "<f2", ml_dtypes.bfloat16)))
_MAX_RANK = 8
_TYPES_BY_SIZE = {4: _TYPES[0], 2: _TYPES[2], 1: _TYPES[1]}  # up to version 3


def read_variables(path: Path) -> dict[str, FileArray]:
    """Reads which variables a file has.

    Quantized variables are dequantized where they are read. An alias is the same object as its
    variable.

    Raises:
        InputError: The file is missing, damaged, of another version, or no Transformer.
    """
    with reading_errors(path, "CTranslate2's model"), open(path, "rb") as file:
        arrays, aliases = _read(file, path)
        scales = {f"{name}_scale" for name in (*arrays, *aliases)}
        variables = {}
        for name, array in arrays.items():
            if name not in scales:
                scale = f"{name}_scale"  # Two matrices may have the same scales.
                variables[name] = _dequantized(array, arrays.get(aliases.get(scale, scale)))
        return variables | {
            alias: variables[name] for alias, name in aliases.items() if name in variables
        }


def _read(file, path):
    """Returns the variables as they are stored, and the names that aliases stand for."""
    version = _number(file, "I")
    if version not in _VERSIONS:
        rule = f"expected a binary version from {_VERSIONS[0]} to {_VERSIONS[-1]}"
        raise InputError(f"{path}: {rule}. Received: {version}.")
    if (kind := _text(file)) != "TransformerSpec":
        rule = "only CTranslate2's encoder-decoder Transformers are imported"
        raise InputError(f"{path}: {rule}. Received: {received(kind)}.")
    _number(file, "I")  # the revision, which the names show
    arrays, aliases = {}, {}
    for _ in range(_number(file, "I")):
        name = _text(file)
        arrays[name] = _variable(file, version, path)
    for _ in range(_number(file, "I") if version > 2 else 0):
        alias = _text(file)
        aliases[alias] = _text(file)
    return arrays, aliases


def _number(file, form):
    return struct.unpack("<" + form, file.read(struct.calcsize("<" + form)))[0]


def _text(file):
    size = _number(file, "H")
    if len(text := file.read(size)) < size:
        raise EOFError("the file ends too early")
    return text.rstrip(b"\0").decode()


def _variable(file, version, path):
    shape = tuple(_number(file, "I") for _ in range(_number(file, "B")))
    kind, size = _number(file, "B"), _number(file, "I")
    dtype: Any = _TYPES_BY_SIZE[kind] if version < 4 else _TYPES[kind]
    size *= dtype.itemsize if version < 4 else 1
    start = file.tell()
    is_whole = file.seek(size, os.SEEK_CUR) <= path.stat().st_size
    if size != math.prod(shape) * dtype.itemsize or len(shape) > _MAX_RANK or not is_whole:
        raise ValueError("a variable has another size than its numbers")
    return FileArray.at(path, dtype, start, shape)


def _dequantized(array, scale):
    if scale is None:
        return array

    def divide(numbers):
        divisors = np.asarray(scale, "float32")  # of each row, or of all numbers
        return numbers / (divisors[:, None] if divisors.size > 1 else divisors)

    return array.changed(divide)
