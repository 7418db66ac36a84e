"""Batches of any size inside a TensorFlow graph: sorted, divided, padded to few shapes."""

from typing import Any

import tensorflow as tf

from keras_transformer.engine.inputs import batch_rows
from keras_transformer.ids import PAD_ID

# Much of a step on a small model keeps a single core busy; each chunk holds a cache of its own.
# The iterations of one loop follow one another, whatever its `parallel_iterations`.
_LOOPS = 2
_TEXTS_PER_CALL = 64  # that the size of chunks is chosen for

# Characters that `str.strip` removes; RE2's `\s` knows only ASCII.
_BLANK = "[\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*"


def is_blank(text):
    """Bool `(batch,)`: whether `str.strip` would leave nothing of a string."""
    return tf.strings.regex_full_match(text, _BLANK)


def last_turns(ids, limit, turn_id):
    """The last turns of conversations that fit into `limit` tokens, at least one: ragged ids."""
    lengths, places = ids.row_lengths(), tf.ragged.range(ids.row_lengths())
    rows, after = ids.value_rowids(), places.values + 1
    length = tf.gather(lengths, rows)
    starts = tf.where((ids.values == turn_id) & (after < length), after, 0)  # where a turn begins
    fits = (starts > 0) & (length - starts <= limit)
    count = ids.nrows()
    first = tf.math.unsorted_segment_min(tf.where(fits, starts, length), rows, count)
    last = tf.math.unsorted_segment_max(starts, rows, count)
    start = tf.where(lengths > limit, tf.minimum(first, last), 0)
    return tf.ragged.boolean_mask(ids, places >= tf.expand_dims(start, 1))


def longest_first(wanted, lengths):
    """Places of the wanted rows by falling length: from bool and int64 `(batch,)` to int64."""
    places = tf.where(wanted)[:, 0]
    order = tf.argsort(tf.gather(lengths, places), direction="DESCENDING", stable=True)
    return tf.gather(places, order)


def largest_chunk(engine: Any, beam_size: int) -> int:
    """Returns the rows of a graph's chunks, which are the same for calls of any size."""
    return batch_rows(_TEXTS_PER_CALL, engine.model.config.model_dim, beam_size)


def chunk_rows(largest: int) -> list[int]:
    """The numbers of rows that chunks of at most `largest` rows are padded to: powers of two."""
    return [2**i for i in range(largest.bit_length())]


def in_chunks(places, call, results, size: int):
    """Runs `call` on at most `size` rows at a time, in loops side by side. No row, no call: XLA
    fails on an empty batch.

    `places`, int64 `(rows,)`, are the rows of the batch in the order to be taken. `call` gives for
    some of them a dict of tensors with a row for each, which take their places in `results`.
    """

    def chunk(start, results):
        chosen = places[start : start + size]
        found, at = call(chosen), tf.expand_dims(chosen, 1)
        results = {
            name: tf.tensor_scatter_nd_update(whole, at, found[name])
            for name, whole in results.items()
        }
        return start + _LOOPS * size, results

    found = [
        tf.while_loop(lambda start, _: start < tf.size(places), chunk, (loop * size, results))[1]
        for loop in range(_LOOPS)
    ]
    loops = tf.range(tf.size(places)) // size % _LOOPS
    merged = found[0]
    for loop, others in enumerate(found[1:], start=1):
        chosen = tf.boolean_mask(places, loops == loop)
        merged = {
            name: tf.tensor_scatter_nd_update(
                whole, tf.expand_dims(chosen, 1), tf.gather(others[name], chosen)
            )
            for name, whole in merged.items()
        }
    return merged


def pad_rows(values, chosen, rows):
    """Some rows of a `(batch,)` tensor, with zeros up to one of `rows`."""
    count = tf.size(chosen)
    return tf.pad(tf.gather(values, chosen), [[0, _least(rows, count) - count]])


def pad_ids(ids, chosen, rows, lengths):
    """Some rows of ragged ids `(batch, (length))` as `(one of rows, one of lengths)`."""
    dense = tf.gather(ids, chosen).to_tensor(default_value=PAD_ID)
    count, columns = tf.size(chosen), tf.shape(dense)[1]
    more = [[0, _least(rows, count) - count], [0, _least(lengths, columns) - columns]]
    return tf.pad(dense, more, constant_values=PAD_ID)


def widen(values, width, axis):
    """Cuts or pads one axis with zeros to `width`."""
    values = tf.gather(values, tf.range(tf.minimum(tf.shape(values)[axis], width)), axis=axis)
    more = [[0, 0] for _ in values.shape]
    more[axis][1] = width - tf.shape(values)[axis]
    return tf.pad(values, more)


def _least(sizes, needed):
    """The smallest of the sizes that is enough."""
    sizes = tf.constant(sizes)
    return tf.reduce_min(tf.boolean_mask(sizes, sizes >= needed))


def labelled(labels, probabilities, present):
    """The outputs of a classifier; a text that is not `present` has the label ""."""
    best = tf.argmax(probabilities, axis=1, output_type=tf.int32)
    best = tf.where(present, best, len(labels))
    return {"label": tf.gather(tf.constant([*labels, ""]), best), "probabilities": probabilities}
