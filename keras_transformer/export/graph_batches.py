"""Batches of any size inside a TensorFlow graph: sorted, divided, padded to few shapes."""

from keras_transformer.config import PAD_ID

CHUNK_SIZE = 32
"""Most sentences in one call of a compiled function, a power of two: it bounds the memory of a
large request, and with it the number of programs that XLA compiles."""

ROWS = tuple(2**i for i in range(CHUNK_SIZE.bit_length()))
"""The numbers of sentences that batches are padded to."""

# What `str.strip` takes away; RE2's `\s` knows ASCII alone.
_BLANK = "[\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*"


def is_blank(text):
    """Bool `(batch,)`: whether `str.strip` would leave nothing of a string."""
    import tensorflow as tf

    return tf.strings.regex_full_match(text, _BLANK)


def longest_first(wanted, lengths):
    """The order in which rows are put into chunks.

    Args:
        wanted: Bool `(batch,)`; the other rows are left out.
        lengths: Int64 `(batch,)`.

    Returns:
        Places of the wanted rows by falling length, int64 `(at most batch,)`.
    """
    import tensorflow as tf

    places = tf.where(wanted)[:, 0]
    order = tf.argsort(tf.gather(lengths, places), direction="DESCENDING", stable=True)
    return tf.gather(places, order)


def in_chunks(places, call, results):
    """Runs `call` on at most `CHUNK_SIZE` rows at a time. No row, no call: XLA fails on an
    empty batch.

    Args:
        places: Int64 `(rows,)`: the rows of the batch, in the order to be taken.
        call: From some of the places to a dict of tensors, a row for each of them.
        results: A dict of the same tensors for the whole batch, as they stay where no row is
            taken.

    Returns:
        A dict like `results`.
    """
    import tensorflow as tf

    def chunk(start, results):
        chosen = places[start : start + CHUNK_SIZE]
        found, at = call(chosen), tf.expand_dims(chosen, 1)
        results = {
            name: tf.tensor_scatter_nd_update(whole, at, found[name])
            for name, whole in results.items()
        }
        return start + CHUNK_SIZE, results

    _, results = tf.while_loop(
        lambda start, _: start < tf.size(places),
        chunk,
        (0, results),
        # One chunk at a time: more would hold several caches at once.
        parallel_iterations=1,
    )
    return results


def pad_rows(values, chosen):
    """Some rows of a `(batch,)` tensor, with zeros up to one of `ROWS`."""
    import tensorflow as tf

    count = tf.size(chosen)
    return tf.pad(tf.gather(values, chosen), [[0, _least(ROWS, count) - count]])


def pad_ids(ids, chosen, lengths):
    """Some rows of ids in one of the few shapes.

    Args:
        ids: Ragged int32 `(batch, (length))`.
        chosen: Int64 `(rows,)`, at least one.
        lengths: The lengths that are padded to, from `length_buckets`.

    Returns:
        Int32 `(one of ROWS, one of lengths)`, padded with 0.
    """
    import tensorflow as tf

    dense = tf.gather(ids, chosen).to_tensor(default_value=PAD_ID)
    rows, columns = tf.size(chosen), tf.shape(dense)[1]
    more = [[0, _least(ROWS, rows) - rows], [0, _least(lengths, columns) - columns]]
    return tf.pad(dense, more, constant_values=PAD_ID)


def widen(values, width, axis):
    """Cuts or pads one axis with zeros to `width`."""
    import tensorflow as tf

    values = tf.gather(values, tf.range(tf.minimum(tf.shape(values)[axis], width)), axis=axis)
    more = [[0, 0] for _ in values.shape]
    more[axis][1] = width - tf.shape(values)[axis]
    return tf.pad(values, more)


def _least(sizes, needed):
    """The smallest of the sizes that is enough."""
    import tensorflow as tf

    sizes = tf.constant(sizes)
    return tf.reduce_min(tf.boolean_mask(sizes, sizes >= needed))
