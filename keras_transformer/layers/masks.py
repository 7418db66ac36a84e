"""Attention masks: bool, True = may attend.

A padding mask is `(batch, length)`, True = not padding. An attention mask is broadcastable to
`(batch, heads, query, key)`. `None` = all is visible.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.base.ids import PAD_ID
from keras_transformer.base.impossible import NEG_INF


def padding_mask(ids: keras.KerasTensor, pad_id: int = PAD_ID) -> keras.KerasTensor:
    """Marks the non-padding tokens of integer `ids` `(batch, length)`: bool of that shape."""
    return ops.not_equal(ids, pad_id)


def vocabulary_mask(ids: keras.KerasTensor, vocabulary_size: int) -> keras.KerasTensor:
    """Marks the integers that are ids of a vocabulary: bool of the shape of `ids`."""
    # A narrow type of integers may not hold the size of the vocabulary.
    is_wide = keras.backend.standardize_dtype(ids.dtype).endswith(("32", "64"))
    ids = ids if is_wide else ops.cast(ids, "int32")
    return ops.logical_and(ids >= 0, ids < vocabulary_size)


def causal_mask(
    query_length: int | keras.KerasTensor, key_length: int | keras.KerasTensor | None = None
) -> keras.KerasTensor:
    """Lets each query see the keys up to its own position.

    For three positions, rows are queries and columns are keys:

        1 0 0
        1 1 0
        1 1 1

    Args:
        query_length: Number of queries; an integer or a scalar tensor.
        key_length: Number of keys; `query_length` by default.

    Returns:
        Bool `(1, 1, query, key)`.
    """
    key_length = query_length if key_length is None else key_length
    queries = ops.expand_dims(ops.arange(query_length, dtype="int32"), 1)
    keys = ops.expand_dims(ops.arange(key_length, dtype="int32"), 0)
    return ops.expand_dims(ops.greater_equal(queries, keys), (0, 1))


def segment_mask(
    queries: keras.KerasTensor, keys: keras.KerasTensor | None = None
) -> keras.KerasTensor:
    """Lets each query see the keys of its own sequence, in rows that are packed of several ones.

    From integers `(batch, query)` and `(batch, key)`, which number the sequences of a row, to bool
    `(batch, 1, query, key)`. `keys` is `queries` by default. Padding has a number
    of its own, such as 0.
    """
    keys = queries if keys is None else keys
    same = ops.equal(ops.expand_dims(queries, 2), ops.expand_dims(keys, 1))
    return ops.expand_dims(same, 1)


def window_mask(
    queries: keras.KerasTensor, keys: keras.KerasTensor, sliding_window: int
) -> keras.KerasTensor:
    """Lets each query see the keys within `sliding_window` - 1 tokens of itself.

    From the positions of both, integer `(query,)` and `(key,)`, to bool `(1, 1, query, key)`.
    """
    distance = ops.expand_dims(queries, 1) - ops.expand_dims(keys, 0)
    return ops.expand_dims(ops.less(ops.abs(distance), sliding_window), (0, 1))


def to_bool(mask: keras.KerasTensor, name: str = "mask") -> keras.KerasTensor:
    """Converts a mask of bool or integers, 0 = hidden, to bool.

    Raises:
        ValueError: The mask is float. Floats have two opposite meanings: 1 and 0, as here, or 0 and
            -1e9, which other programs add to scores.
    """
    mask = ops.convert_to_tensor(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if "float" in dtype:
        raise ValueError(
            f"`{name}` must be bool, True = may attend. Received: {name} of dtype {dtype}. Give "
            "`mask == 0` for a mask of 0 and -1e9 or -inf, or `mask > 0` for a mask of 1 and 0."
        )
    return ops.cast(mask, "bool")


def key_mask(mask: keras.KerasTensor | None) -> keras.KerasTensor | None:
    """Makes an attention mask `(batch, 1, 1, key)` of a padding mask `(batch, key)`."""
    return None if mask is None else ops.expand_dims(to_bool(mask), (1, 2))


def with_heads_axis(mask: keras.KerasTensor | None) -> keras.KerasTensor | None:
    """Brings an attention mask to four axes, `(batch, heads, query, key)`.

    Masks have the axes `(query, key)`, `(batch, query, key)` or all four; others are a
    `ValueError`.
    """
    if mask is None:
        return None
    mask = to_bool(mask, "attention_mask")
    rank = len(mask.shape)
    if rank == 2:
        return ops.expand_dims(mask, (0, 1))
    if rank == 3:
        return ops.expand_dims(mask, 1)
    if rank == 4:
        return mask
    raise ValueError(
        "`attention_mask` must have the axes (query, key), (batch, query, key) or "
        f"(batch, heads, query, key). Received: attention_mask of shape {tuple(mask.shape)}."
    )


def combine_padding(
    shape: Sequence[int | None], **padding_masks: keras.KerasTensor | None
) -> keras.KerasTensor | None:
    """Returns the conjunction of padding masks, given by the names of a layer's arguments.

    Args:
        shape: Shape of the sequence, `(batch, length, …)`.
        **padding_masks: Masks `(batch, length)`; a batch of 1 serves all sentences.

    Raises:
        ValueError: A mask is float or has another shape; the message names the argument.
    """
    batch, length = shape[:2]
    combined = None
    for name, mask in padding_masks.items():
        if mask is None:
            continue
        mask = to_bool(mask, name)
        if not any(fits(mask.shape, (rows, length)) for rows in (batch, 1)):
            raise ValueError(
                f"`{name}` must have the axes (batch, length), here {(batch, length)}. "
                f"Received: {name} of shape {tuple(mask.shape)}."
            )
        combined = combine(combined, mask)
    return combined


def combine_attention(
    query_shape: Sequence[int | None],
    key_shape: Sequence[int | None],
    num_heads: int,
    padding_masks: Mapping[str, keras.KerasTensor | None],
    attention_masks: Mapping[str, keras.KerasTensor | None],
) -> keras.KerasTensor | None:
    """Returns the conjunction of masks, given by the names of a layer's arguments.

    Args:
        query_shape: Shape of the queries' sequence, `(batch, query, …)`.
        key_shape: Shape of the keys' sequence, `(batch, key, …)`.
        num_heads: Number of heads.
        padding_masks: Masks of the keys' sequence, as `combine_padding` takes them.
        attention_masks: Masks with the axes `(query, key)`, `(batch, query, key)` or
            `(batch, heads, query, key)`, each axis full or 1.

    Returns:
        Bool with the axes `(batch, heads, query, key)`; `None` when all masks are `None`.

    Raises:
        ValueError: A mask is float or has another shape; the message names the argument.
    """
    batch, query, key = query_shape[0], query_shape[1], key_shape[1]
    full_shapes = (query, key), (batch, query, key), (batch, num_heads, query, key)
    combined = key_mask(combine_padding(key_shape, **padding_masks))
    for name, mask in attention_masks.items():
        if mask is None:
            continue
        mask = to_bool(mask, name)
        if not any(fits(mask.shape, shape, or_one=True) for shape in full_shapes):
            shape, advice = tuple(mask.shape), ""
            if fits(shape, (batch, key)):
                advice = " Give a padding mask with the axes (batch, key) as mask[:, None]."
            raise ValueError(
                f"`{name}` must have the axes (query, key), (batch, query, key) or (batch, heads, "
                "query, key), each of its full size or 1: here {}, {} or {}. "
                "Received: {} of shape {}.{}".format(*full_shapes, name, shape, advice)
            )
        combined = combine(combined, with_heads_axis(mask))
    return combined


def fits(shape: Sequence[Any], full_shape: Sequence[Any], or_one: bool = False) -> bool:
    """Returns whether a shape is the full one; sizes that are not known yet fit."""
    pairs = zip(shape, full_shape, strict=False)
    return len(shape) == len(full_shape) and all(
        size == full or (or_one and size == 1)
        for size, full in pairs
        if isinstance(size, int) and isinstance(full, int)
    )


def combine(*masks: keras.KerasTensor | None) -> keras.KerasTensor | None:
    """Returns the conjunction of the given masks; `None` when all are `None`."""
    combined = None
    for mask in masks:
        if mask is not None:
            mask = to_bool(mask)
            combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined


def masked_softmax(
    scores: keras.KerasTensor, mask: keras.KerasTensor | None = None
) -> keras.KerasTensor:
    """Computes the softmax over the visible keys of each query; zeros where none is visible.

    From float `(…, query, key)` to float32; the mask, True = may attend, broadcasts to the scores.
    """
    # float32: float16 has no place for the mask's value, and a bfloat16 softmax over a long
    # row loses small probabilities.
    scores = ops.cast(scores, "float32")
    mask = None if mask is None else to_bool(mask)
    if scores.shape[-1] == 1:  # Keras warns of a softmax over one number.
        ones = ops.ones_like(scores)
        return ones if mask is None else ops.where(mask, ones, 0.0)
    if mask is None:
        return ops.softmax(scores, axis=-1)
    weights = ops.softmax(ops.where(mask, scores, NEG_INF), axis=-1)
    # A row that is masked throughout has a uniform softmax: here it becomes zeros.
    return ops.where(mask, weights, 0.0)
