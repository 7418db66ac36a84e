"""Restricted self-attention whose time and memory grow with the length alone."""

from collections.abc import Callable

import keras
from keras import ops

from keras_transformer.cache import KeyValue


def attend_in_blocks(
    attend: Callable,
    query: keras.KerasTensor,
    key_value: KeyValue,
    mask: keras.KerasTensor | None,
    window: int,
) -> keras.KerasTensor:
    """Attends block by block, each to itself and to the blocks beside it.

    A query sees `window` keys to each side, so that with blocks of that length three blocks hold
    all that it may see: the products are those of `3 · length · window` pairs, not of `length²`.

    Args:
        attend: A function of queries, a `KeyValue`, a mask and `positions`, as
            `MultiHeadAttention.attend`, which applies the window; blocks are sentences to it.
        query: Float `(batch, heads, length, key_dim)`, of one sequence with `key_value`.
        key_value: `KeyValue` of as many positions.
        mask: Bool, True = may attend, broadcastable to `(batch, heads, length, length)`.
        window: Tokens that a query sees to each side.

    Returns:
        Float `(batch, length, heads, value_dim)`.

    Reference: Vaswani et al. 2017, section 4 (arXiv:1706.03762).
    """
    batch, heads, length, _ = ops.shape(query)
    blocks = -(-length // window)
    more = blocks * window - length
    # Three blocks for each one: places in keys with a block of nothing before and behind them.
    places = window * ops.expand_dims(ops.arange(blocks), 1) + ops.arange(3 * window)
    sides = (window, window + more)

    def in_blocks(sequence):  # [batch, heads, length, width] -> [batch * blocks, heads, window, …]
        shape = ops.shape(sequence)
        padded = ops.pad(sequence, ((0, 0), (0, 0), (0, more), (0, 0)))
        cut = ops.reshape(padded, (*shape[:2], blocks, window, shape[3]))
        return _joined(ops.transpose(cut, (0, 2, 1, 3, 4)))

    def around(sequence, axis):  # The axis' neighbourhood of each block, blocks as sentences.
        pads = [(0, 0)] * len(sequence.shape)
        pads[axis] = sides
        found = ops.take(ops.pad(sequence, pads), places, axis=axis)
        return _joined(ops.moveaxis(found, axis, 1))

    local = KeyValue(around(key_value.key, 3), around(key_value.value, 2))
    if mask is None:
        mask = ops.ones((1, 1, 1, length), "bool")
    if mask.shape[3] == 1:
        mask = ops.broadcast_to(mask, (*ops.shape(mask)[:3], length))
    mask = ops.broadcast_to(mask, (batch, *ops.shape(mask)[1:]))
    if mask.shape[2] == 1:
        seen = around(mask, 3)
    else:
        rows = ops.shape(mask)[1]
        padded = ops.pad(mask, ((0, 0), (0, 0), (0, more), sides))
        cut = ops.reshape(padded, (batch, rows, blocks, window, length + sum(sides)))
        index = ops.expand_dims(places, (0, 1, 3))
        index = ops.broadcast_to(index, (batch, rows, blocks, window, 3 * window))
        seen = _joined(ops.transpose(ops.take_along_axis(cut, index, 4), (0, 2, 1, 3, 4)))
    positions = window + ops.arange(window), ops.arange(3 * window)
    found, _ = attend(in_blocks(query), local, seen, positions=positions)
    return ops.reshape(found, (batch, blocks * window, heads, -1))[:, :length]


def _joined(cut):
    """From `(batch, blocks, …)` to `(batch · blocks, …)`."""
    shape = ops.shape(cut)
    return ops.reshape(cut, (-1, *shape[2:]))
