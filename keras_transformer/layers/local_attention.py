"""Restricted self-attention whose time and memory grow linearly with the length."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.layers.kv_cache import KeyValue


def takes_blocks(
    query: keras.KerasTensor,
    value: keras.KerasTensor,
    mask: keras.KerasTensor | None,
    sliding_window: int,
) -> bool:
    """Returns True for self-attention with many more pairs than the blocks of the window have.

    Shapes are `(batch, length, features)`; an unknown length counts as long. A mask
    `(batch, heads, query, key)` with a row for each query is as large as all pairs.
    """
    length = query.shape[1]
    if mask is not None and mask.shape[2] != 1:
        return False
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
        mask: Bool, True = may attend, broadcastable to `(batch, heads, 1, length)`.
        sliding_window: A query sees the keys within `sliding_window` - 1 of itself.
        causal: Whether position `i` sees the positions `0 … i` only.

    Returns:
        Float `(batch, length, heads, value_dim)`.

    Reference: Vaswani et al. 2017, section 4 (arXiv:1706.03762).
    """
    batch, heads, length, _ = ops.shape(query)
    blocks = _Blocks.of(length, _reach(sliding_window))
    # Divide queries, and keys and values with their neighbours.
    queries = blocks.divide(query, 2)  # --> [batch * blocks, heads, size, key_dim]
    local = KeyValue(
        blocks.with_neighbours(key_value.key, 3), blocks.with_neighbours(key_value.value, 2)
    )
    # Hide padding, and later positions.
    mask = ops.ones((1, 1, 1, length), "bool") if mask is None else mask
    mask = ops.broadcast_to(mask, (batch, ops.shape(mask)[1], 1, length))
    mask = blocks.with_neighbours(mask, 3)  # --> [batch * blocks, heads or 1, 1, keys]
    positions = blocks.side + ops.arange(blocks.size), ops.arange(blocks.size + 2 * blocks.side)
    if causal:
        is_causal = ops.expand_dims(positions[0], 1) >= positions[1]
        mask = ops.logical_and(mask, ops.expand_dims(is_causal, (0, 1)))
    # Attend, and join the blocks.
    attended, _ = attend(queries, local, mask, positions=positions)
    shape = batch, blocks.count * blocks.size, heads, key_value.value.shape[3]
    return ops.reshape(attended, shape)[:, :length]


def _reach(sliding_window):
    """Returns the length of a block: the keys that a query sees to each side, at least one."""
    return max(sliding_window - 1, 1)


class _Blocks(NamedTuple):
    """Division of a sequence into blocks, in integers or, for a traced length, scalar tensors."""

    count: Any
    size: Any  # tokens of a block
    side: Any  # tokens of each neighbour that a block sees
    num_padding: Any  # tokens that fill the last block

    @classmethod
    def of(cls, length, reach):
        if isinstance(length, int):
            size, side = (reach, reach) if length > 4 * reach else (max(length, 1), 0)
        else:
            # Arithmetic instead of a condition: XLA would reserve the memory of both branches.
            is_long = length > 4 * reach
            size = ops.where(is_long, reach, ops.maximum(length, 1))
            side = ops.where(is_long, reach, 0)
        count = -(-length // size)
        return cls(count, size, side, count * size - length)

    def divide(self, sequence, axis):
        """Makes a sentence of each block of an axis, `(batch * blocks, …)`."""
        return self._part(_pad(sequence, axis, 0, self.num_padding), axis, 0, self.size)

    def with_neighbours(self, sequence, axis):
        """Makes a sentence of each block and what it sees of its two neighbours."""
        size, side = self.size, self.side
        padded = _pad(sequence, axis, side, side + self.num_padding)
        # Slices: the gradient of `take` would be a scatter, which takes longer and more memory.
        starts_and_widths = (0, side), (side, size), (2 * side, side)
        parts = [self._part(padded, axis, start, width) for start, width in starts_and_widths]
        return ops.concatenate(parts, axis=axis)

    def _part(self, padded, axis, start, width):
        """Returns the first `width` tokens of each block of what begins at `start`."""
        shape, leading_axes = ops.shape(padded), (slice(None),) * axis
        stretch = padded[(*leading_axes, slice(start, start + self.count * self.size))]
        blocks = ops.reshape(stretch, (*shape[:axis], self.count, self.size, *shape[axis + 1 :]))
        part = ops.moveaxis(blocks[(*leading_axes, slice(None), slice(0, width))], axis, 1)
        return ops.reshape(part, (-1, *ops.shape(part)[2:]))  # [batch, blocks, …] -->


def _pad(sequence, axis, before, after):
    pads = [(0, 0)] * len(sequence.shape)
    pads[axis] = (before, after)
    return ops.pad(sequence, pads)
