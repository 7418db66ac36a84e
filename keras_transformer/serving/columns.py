"""Columns of values as arrays, and arrays as columns; what padding a batch added goes again."""

import math

import numpy as np

from keras_transformer.serving.protocol import answer_too_long

_POWERS = np.array([10.0**power for power in range(23)])
# Fewest characters that a number takes in JSON, with what parts it from the next: "0.0, ", "0, ".
_LEAST = {"f": 5, "i": 3, "u": 3, "b": 3, "O": 4}


def to_array(values, tensor):
    """A list of values as one array, shorter lists padded with 0, "" or False.

    Args:
        values: A list with a value for each sentence: a number, bytes, or lists of such.
        tensor: The `Tensor` that says what they are.

    Returns:
        An array with the rank of `tensor`.
    """
    dtype = object if tensor.dtype == "string" else tensor.dtype
    shape = [len(values)] + [0] * (len(tensor.shape) - 1)
    _widen(values, shape, 1)
    array = np.zeros(shape, dtype)
    if dtype is object:
        array[...] = b""
    _fill(array, values)
    return array


def to_values(array):
    """The rows of an array: Python values, or arrays where a row has axes of its own.

    A float32 becomes the shortest decimal that means it, as TensorFlow Serving writes it: 0.1,
    not 0.10000000149011612.
    """
    if array.dtype == np.float32:
        array = _shortest(array)
    return array.tolist() if array.ndim == 1 else array


def _shortest(array):
    """Float64 whose shortest decimal is that of the float32: `repr` of each, but in few passes."""
    flat = array.ravel()
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = flat.astype(np.float64)
        exponents = np.floor(np.log10(np.abs(exact)))
    # A power of ten up to 22 is a float64, so that a product or quotient with it is rounded once.
    is_near = (exponents >= 8 - 22) & (exponents <= 22)
    found, left = exact.copy(), np.nonzero(is_near)[0]
    for digits in (6, 7, 8, 9):  # Any six digits are some float32's, nine tell all of them apart.
        powers = (digits - 1 - exponents[left]).astype(int)
        scales, values = _POWERS[np.abs(powers)], exact[left]
        rounded = np.where(
            powers >= 0, np.rint(values * scales) / scales, np.rint(values / scales) * scales
        )
        good = rounded.astype(np.float32) == flat[left]
        found[left[good]] = rounded[good]
        left = left[~good]
    left = np.concatenate([left, np.nonzero(~is_near & (exact != 0))[0]])
    found[left] = flat[left].astype("U").astype(np.float64)
    return found.reshape(array.shape)


def join(parts, signature, max_bytes):
    """Puts the sentences of one request together, whichever batches they were in.

    Of an export of this package an axis whose size is not fixed is as long as its batch needed:
    here it becomes what this request needs, so that an answer does not depend on who else was in
    the batch. Of any other model nothing is cut off, because its zeros may mean something.

    Args:
        parts: A list with a dict for each sentence, from the name of an output to its value.
        signature: The `Signature` that gave them.
        max_bytes: Longest answer in bytes of JSON.

    Returns:
        A dict of lists, or arrays of numbers.

    Raises:
        Rejection: 413, the answer would certainly be longer than `max_bytes`.
    """
    columns, shapes = {}, {}
    for key, tensor in signature.outputs.items():
        columns[key] = values = [part[key] for part in parts]
        if len(tensor.shape) > 1:
            columns[key] = values = [_as_array(value, tensor) for value in values]
            free = [size is None and signature.padded for size in tensor.shape[1:]]
            needed = [_needed(value, free) for value in values]
            shapes[key] = [max(sizes) for sizes in zip(*needed, strict=True)]
    if signature.padded:
        _agree(shapes)
    least = (len(parts) * math.prod(shapes[key]) * _least(columns[key]) for key in shapes)
    if sum(least) > max_bytes:
        raise answer_too_long(max_bytes)
    return {
        key: _stack(values, shapes[key]) if key in shapes else values
        for key, values in columns.items()
    }


def _as_array(value, tensor):
    return value if isinstance(value, np.ndarray) else to_array([value], tensor)[0]


def _least(arrays):
    return _LEAST.get(arrays[0].dtype.kind, 3) if arrays else 0


def _agree(shapes):
    """For `align`: the matrix is as large as its tokens, whose padding can be told for sure."""
    tokens = [shapes.get(f"{side}_tokens") for side in ("target", "source")]
    if "alignment" in shapes and all(tokens):
        shapes["alignment"] = [tokens[0][0], tokens[1][0]]


def _filler(array):
    return b"" if array.dtype == object else 0


def _needed(array, free):
    """The shape of an array without what stands empty at the end of its free axes."""
    if not any(free):
        return array.shape
    used = array != _filler(array)
    shape = list(array.shape)
    for axis, is_free in enumerate(free):
        if is_free:
            others = tuple(other for other in range(array.ndim) if other != axis)
            places = np.nonzero(used.any(axis=others))[0]
            shape[axis] = int(places[-1]) + 1 if len(places) else 0
    return shape


def _stack(arrays, shape):
    if not arrays:
        return []
    stacked = np.full((len(arrays), *shape), _filler(arrays[0]), arrays[0].dtype)
    for row, array in zip(stacked, arrays, strict=True):
        places = tuple(slice(min(sizes)) for sizes in zip(shape, array.shape, strict=True))
        row[places] = array[places]
    # --> [sentences, *shape]; texts as a list, as those without axes of their own are.
    return stacked.tolist() if stacked.dtype == object else stacked


def _widen(values, shape, axis):
    if axis == len(shape):
        return
    for value in values:
        shape[axis] = max(shape[axis], len(value))
        _widen(value, shape, axis + 1)


def _fill(array, values):
    if array.ndim == 1:
        array[: len(values)] = values
        return
    for row, value in zip(array, values, strict=False):
        _fill(row, value)
