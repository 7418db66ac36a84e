"""Restricted self-attention whose time and memory grow linearly with the length."""

from collections.abc import Callable

import keras
from keras import ops

from keras_transformer.layers.kv_cache import KeyValue


def is_long(query: keras.KerasTensor, value: keras.KerasTensor, sliding_window: int) -> bool:
    """Returns True for self-attention with many more pairs than the blocks of the window have.

    Shapes are `(batch, length, features)`; an unknown length counts as long.
    """
    length = query.shape[1]
    if length is None:
        return query is value
    return value.shape[1] == length > 4 * _reach(sliding_window)


def attend_in_blocks(
    attend: Callable,
    query: keras.KerasTensor,
    key_value: KeyValue,
    mask: keras.KerasTensor | None,
    sliding_window: int,
    causal: bool = False,
) -> keras.KerasTensor:
    """Attends block by block, each block to itself and to its two neighbours.

    A query sees `sliding_window` - 1 keys to each side. With blocks of that length, three blocks
    hold all keys that it may see. So `3 · length · window` pairs are multiplied, not `length²`. A
    sequence of at most four blocks is one block.

    Args:
        attend: A function of queries, a `KeyValue`, a mask and `positions`, as
            `MultiHeadAttention.attend`, which applies the window. Each block is a sentence to it.
        query: Float `(batch, heads, length, key_dim)`, of one sequence with `key_value`; the
            length may be unknown until the program runs.
        key_value: `KeyValue` of as many positions.
        mask: Bool, True = may attend, broadcastable to `(batch, heads, length, length)`. Memory
            grows with the square of the length if it has a row for each query.
        sliding_window: A query sees the keys within `sliding_window` - 1 of itself.
        causal: Whether position `i` sees the positions `0 … i` only.

    Returns:
        Float `(batch, length, heads, value_dim)`.

    Reference: Vaswani et al. 2017, section 4 (arXiv:1706.03762).
    """
    batch, heads, length, _ = ops.shape(query)
    size, side = _sizes(length, _reach(sliding_window))
    blocks = -(-length // size)
    num_padding = blocks * size - length

    def in_blocks(sequence):  # [batch, heads, length, width] -> [batch * blocks, heads, size, …]
        shape = ops.shape(sequence)
        padded = ops.pad(sequence, ((0, 0), (0, 0), (0, num_padding), (0, 0)))
        blocks_of_sequence = ops.reshape(padded, (*shape[:2], blocks, size, shape[3]))
        return _joined(ops.transpose(blocks_of_sequence, (0, 2, 1, 3, 4)))

    def around(sequence, axis):  # each block with its neighbours along an axis, as a sentence
        pads = [(0, 0)] * len(sequence.shape)
        pads[axis] = (side, side + num_padding)
        padded, shape = ops.pad(sequence, pads), ops.shape(sequence)
        leading_axes, parts = (slice(None),) * axis, []
        # Slices: the gradient of `take` would be a scatter, which takes longer and more memory.
        for start, width in ((0, side), (side, size), (2 * side, side)):
            stretch = padded[(*leading_axes, slice(start, start + blocks * size))]
            blocks_of_stretch = ops.reshape(
                stretch, (*shape[:axis], blocks, size, *shape[axis + 1 :])
            )
            parts.append(blocks_of_stretch[(*leading_axes, slice(None), slice(0, width))])
        return _joined(ops.moveaxis(ops.concatenate(parts, axis=axis + 1), axis, 1))

    local = KeyValue(around(key_value.key, 3), around(key_value.value, 2))
    if mask is None:
        mask = ops.ones((1, 1, 1, length), "bool")
    rows, is_one_for_all = mask.shape[1] or heads, mask.shape[2] == 1
    mask = ops.broadcast_to(mask, (batch, rows, 1 if is_one_for_all else length, length))
    if is_one_for_all:
        block_mask = around(mask, 3)
    else:
        mask_shape, keys = (batch, rows, blocks, size), size + 2 * side
        padded = ops.pad(mask, ((0, 0), (0, 0), (0, num_padding), (side, side + num_padding)))
        blocks_of_mask = ops.reshape(padded, (*mask_shape, length + num_padding + 2 * side))
        indices = size * ops.expand_dims(ops.arange(blocks), 1) + ops.arange(keys)
        index = ops.broadcast_to(ops.expand_dims(indices, (0, 1, 3)), (*mask_shape, keys))
        block_mask = _joined(
            ops.transpose(ops.take_along_axis(blocks_of_mask, index, 4), (0, 2, 1, 3, 4))
        )
    positions = side + ops.arange(size), ops.arange(size + 2 * side)
    if causal:
        is_causal = ops.expand_dims(positions[0], 1) >= positions[1]
        block_mask = ops.logical_and(block_mask, ops.expand_dims(is_causal, (0, 1)))
    attended, _ = attend(in_blocks(query), local, block_mask, positions=positions)
    width = key_value.value.shape[3]
    return ops.reshape(attended, (batch, blocks * size, heads, width))[:, :length]


def _reach(sliding_window):
    """Returns the length of a block: the keys that a query sees to each side, at least one."""
    return max(sliding_window - 1, 1)


def _sizes(length, reach):
    """Returns the length of a block, and of the part of its neighbours that it sees."""
    if isinstance(length, int):
        return (reach, reach) if length > 4 * reach else (max(length, 1), 0)
    # Arithmetic instead of a condition: XLA would reserve the memory of both branches.
    is_long = length > 4 * reach
    return ops.where(is_long, reach, ops.maximum(length, 1)), ops.where(is_long, reach, 0)


def _joined(sequence):
    """Reshapes `(batch, blocks, …)` to `(batch · blocks, …)`."""
    shape = ops.shape(sequence)
    return ops.reshape(sequence, (-1, *shape[2:]))
