"""The few shapes that batches are padded to, so that XLA compiles few programs."""

import numpy as np

from keras_transformer.config import PAD_ID

FIRST_CAPACITY = 32
"""Capacity of the first stage of a search, in tokens; each further one has twice as much."""

_LENGTHS = (16, 32, 48, 64, 96)


def length_buckets(max_length):
    """The lengths that sources are padded to: 16, 32, 48, 64, 96, 128, 192, 256, 384, …

    Padding costs at most half as much again; ten lengths reach to 512.

    Args:
        max_length: No length is larger; it is the last one.

    Returns:
        A list of integers.
    """
    lengths = list(_LENGTHS)
    while lengths[-1] < max_length:
        lengths += [lengths[-2] * 2, lengths[-1] * 2]
    return [each for each in sorted(set(lengths)) if each < max_length] + [max_length]


def bucket(length, buckets):
    """The smallest of the `buckets` that `length` fits in, or the largest one."""
    return next((each for each in buckets if length <= each), buckets[-1])


def row_count(count):
    """Rows that a batch of `count` sentences is padded to: a power of two."""
    return 1 << max(count - 1, 0).bit_length()


def pad(ids, rows, columns):
    """Lists of ids as one array.

    Args:
        ids: A list of lists of integers, none longer than `columns`, at most `rows` of them.
        rows: Rows of the array.
        columns: Columns of the array.

    Returns:
        Int32 `(rows, columns)`, padded with 0.
    """
    padded = np.full((rows, columns), PAD_ID, "int32")
    for row, each in enumerate(ids):
        padded[row, : len(each)] = each
    return padded


def pad_to_few_shapes(ids, max_length=512):
    """Lists of ids as one array of a power of two of rows and one of the `length_buckets`."""
    columns = bucket(max(map(len, ids)), length_buckets(max_length))
    return pad(ids, row_count(len(ids)), columns)
