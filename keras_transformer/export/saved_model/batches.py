"""Batches of any size inside a TensorFlow graph: sorted, divided, padded to few shapes."""

from typing import TYPE_CHECKING, NamedTuple

import tensorflow as tf

from keras_transformer.base.ids import PAD_ID
from keras_transformer.engine.inputs import batch_rows, length_buckets
from keras_transformer.export.saved_model.graph_tokenizer import SPACES

if TYPE_CHECKING:
    from keras_transformer.engine.model_engine import TrainedEngine

# Much of a step on a small model keeps only one core busy, so two loops run at once. More loops
# need more memory: each chunk holds its own cache. `parallel_iterations` does not help, because
# the iterations of one loop follow one another.
_LOOPS = 2
_TEXTS_PER_CALL = 64  # The size of chunks is chosen for this number of texts.


def is_blank(text):
    """Returns bool `(batch,)`: whether `str.strip` would leave nothing of a string."""
    return tf.strings.regex_full_match(text, SPACES)


def last_turns(ids, limit, turn_id):
    """Returns ragged ids: the last turns of conversations that fit into `limit`, at least one."""
    lengths, indices = ids.row_lengths(), tf.ragged.range(ids.row_lengths())
    rows, next_indices = ids.value_rowids(), indices.values + 1
    length = tf.gather(lengths, rows)
    starts = tf.where(
        (ids.values == turn_id) & (next_indices < length), next_indices, 0
    )  # where a turn begins
    fits = (starts > 0) & (length - starts <= limit)
    count = ids.nrows()
    first = tf.math.unsorted_segment_min(tf.where(fits, starts, length), rows, count)
    last = tf.math.unsorted_segment_max(starts, rows, count)
    start = tf.where(lengths > limit, tf.minimum(first, last), 0)
    return tf.ragged.boolean_mask(ids, indices >= tf.expand_dims(start, 1))


def longest_first(selected, lengths):
    """Returns int64 indices of the selected rows, longest first. Takes two tensors `(batch,)`."""
    indices = tf.where(selected)[:, 0]
    order = tf.argsort(tf.gather(lengths, indices), direction="DESCENDING", stable=True)
    return tf.gather(indices, order)


class ChunkShapes(NamedTuple):
    """Shapes that chunks are padded to; XLA compiles a function for each shape.

    They bound the memory of a large request, and the number of compiled functions.
    """

    rows: list[int]
    source_lengths: list[int]
    target_lengths: list[int]

    @classmethod
    def of(cls, engine: "TrainedEngine", beam_size: int, forced: int = 0) -> "ChunkShapes":
        """Returns the shapes of an engine's model, the same for calls of any size.

        A target may follow `forced` ids.
        """
        largest = batch_rows(_TEXTS_PER_CALL, engine.model.config.model_dim, beam_size)
        limits = engine.max_source_length, engine.max_target_length + forced
        return cls(chunk_rows(largest), *map(length_buckets, limits))

    @property
    def largest(self) -> int:
        """Maximum number of rows of a chunk."""
        return self.rows[-1]

    def pad_sources(self, ids, indices):
        """Calls `pad_ids` for ragged source ids."""
        return pad_ids(ids, indices, self.rows, self.source_lengths)

    def pad_targets(self, ids, indices):
        """Calls `pad_ids` for ragged target ids."""
        return pad_ids(ids, indices, self.rows, self.target_lengths)


def chunk_rows(largest: int) -> list[int]:
    """Returns the numbers of rows that chunks are padded to: powers of two up to `largest`."""
    return [2**i for i in range(largest.bit_length())]


def in_chunks(indices, call, results, size: int):
    """Runs `call` on at most `size` rows at a time, in parallel loops.

    Without rows it makes no call, because XLA fails on an empty batch.

    Args:
        indices: Int64 `(rows,)`, of the rows in the batch, in the order of the calls.
        call: Function from the indices of a chunk to a dict of tensors with one row per index.
        results: Dict of tensors `(batch, …)` that these rows are written into.
        size: Maximum number of rows of a chunk.
    """

    def chunk(start, results):
        chunk_indices = indices[start : start + size]
        outputs, rows = call(chunk_indices), tf.expand_dims(chunk_indices, 1)
        results = {
            name: tf.tensor_scatter_nd_update(values, rows, outputs[name])
            for name, values in results.items()
        }
        return start + _LOOPS * size, results

    loop_results = [
        tf.while_loop(lambda start, _: start < tf.size(indices), chunk, (loop * size, results))[1]
        for loop in range(_LOOPS)
    ]
    loops = tf.range(tf.size(indices)) // size % _LOOPS
    merged = loop_results[0]
    for loop, other_results in enumerate(loop_results[1:], start=1):
        loop_indices = tf.boolean_mask(indices, loops == loop)
        merged = {
            name: tf.tensor_scatter_nd_update(
                values,
                tf.expand_dims(loop_indices, 1),
                tf.gather(other_results[name], loop_indices),
            )
            for name, values in merged.items()
        }
    return merged


def pad_rows(values, indices, rows):
    """Gathers rows of a `(batch,)` tensor, and pads them with zeros up to one of `rows`."""
    count = tf.size(indices)
    return tf.pad(tf.gather(values, indices), [[0, _least(rows, count) - count]])


def pad_ids(ids, indices, rows, lengths):
    """Gathers and pads rows of ragged ids `(batch, (length))` to one of `rows` and `lengths`."""
    dense = tf.gather(ids, indices).to_tensor(default_value=PAD_ID)
    count, columns = tf.size(indices), tf.shape(dense)[1]
    padding = [[0, _least(rows, count) - count], [0, _least(lengths, columns) - columns]]
    return tf.pad(dense, padding, constant_values=PAD_ID)


def widen(values, width, axis):
    """Cuts or pads one axis with zeros to `width`."""
    values = tf.gather(values, tf.range(tf.minimum(tf.shape(values)[axis], width)), axis=axis)
    padding = [[0, 0] for _ in values.shape]
    padding[axis][1] = width - tf.shape(values)[axis]
    return tf.pad(values, padding)


def _least(sizes, needed):
    """Returns the smallest of the rising sizes that is at least `needed`, or `needed` itself."""
    is_smaller = tf.constant(sizes[:-1], tf.int32) < needed
    return tf.maximum(tf.gather(sizes, tf.math.count_nonzero(is_smaller)), needed)


def labelled(labels, probabilities, present):
    """Returns the outputs of a classifier; a text that is not `present` has the label ""."""
    best = tf.argmax(probabilities, axis=1, output_type=tf.int32)
    best = tf.where(present, best, len(labels))
    return {"label": tf.gather(tf.constant([*labels, ""]), best), "probabilities": probabilities}
