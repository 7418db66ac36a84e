"""Columns of values as arrays, and arrays as columns; what padding a batch added goes again."""

import numpy as np


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
    """The rows of an array as a list of Python values.

    A float32 becomes the shortest decimal that means it, as TensorFlow Serving writes it: 0.1,
    not 0.10000000149011612.
    """
    if array.dtype == np.float32:
        array = array.astype("U").astype(np.float64)
    return array.tolist()


def join(parts, outputs):
    """Puts the sentences of one request together, whichever batches they were in.

    An axis whose size is not fixed is as long as its batch needed: here it becomes what this
    request needs, so that an answer does not depend on who else was in the batch.

    Args:
        parts: A list with a dict for each sentence, from the name of an output to its value.
        outputs: Dict of `Tensor` by name.

    Returns:
        A dict of lists.
    """
    columns = {}
    needed = {}
    for key, tensor in outputs.items():
        values = [part[key] for part in parts]
        free = [size is None for size in tensor.shape[1:]]
        if any(free):
            shape = [len(values)] + [0] * len(free)
            _widen(values, shape, 1)
            array = to_array(values, tensor)
            needed[key] = _needed(array, free)
            values = array
        columns[key] = values
    for key, shape in _agreed(needed, columns).items():
        columns[key] = columns[key][tuple(slice(size) for size in shape)].tolist()
    return columns


def _agreed(needed, columns):
    """For `align`: the matrix is as large as its tokens, whose padding can be told for sure."""
    tokens = [needed.get(f"{side}_tokens") for side in ("target", "source")]
    if "alignment" in needed and all(tokens):
        needed["alignment"] = [len(columns["alignment"]), tokens[0][1], tokens[1][1]]
    return needed


def _needed(array, free):
    filler = b"" if array.dtype == object else 0
    used = array != filler
    shape = [len(array)]
    for axis, is_free in enumerate(free, 1):
        size = array.shape[axis]
        if is_free:
            others = tuple(other for other in range(array.ndim) if other != axis)
            places = np.nonzero(used.any(axis=others))[0]
            size = int(places[-1]) + 1 if len(places) else 0
        shape.append(size)
    return shape


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
