"""Batches of parallel ids for `model.fit`: few static shapes, a new order every epoch."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.data.batching import check_shapes, choose_shapes, plan_batches
from keras_transformer.data.pairs import EncodedPairs
from keras_transformer.errors import InputError

if TYPE_CHECKING:
    import tensorflow as tf

    Batch = tuple[tuple[np.ndarray, np.ndarray], np.ndarray]

# Batches made ahead of the train step, which is hundreds of times slower than making one.
_PREFETCH = 4


class ParallelDataset:
    """Token-budget batches `((source_ids, target_in_ids), target_out_ids)`.

    `target_in_ids` is BOS and the target, `target_out_ids` the target and EOS: column `t` of the
    second is what the model predicts after reading column `t` of the first. All three are int32
    and of one shape, one of `shapes`; padding is `PAD_ID`, an incomplete batch ends in rows of it.

    Args:
        pairs: `EncodedPairs`.
        batch_tokens: Most positions of a batch on one side, padding counted.
        max_shapes: Most shapes, each of which XLA compiles once.
        shuffle: Whether each epoch has an order of its own. False: one fixed order.
        seed: Together with the epoch's number it decides that order, on every machine.
        shapes: Shapes to use instead of choosing them, such as those of the training set, so that
            validation compiles nothing new. `batch_tokens` and `max_shapes` then do nothing.

    Attributes:
        shapes: List of `(batch, length)`, from short to long.
        steps_per_epoch: Batches of an epoch, the same for every epoch.
        real_tokens: Source and `target_out` ids of an epoch that are not padding.
        real_token_share: Their share of all source and `target_out` positions.
        epoch: The number of the next pass over `to_tf_dataset()`.

    Raises:
        InputError: `batch_tokens` or `shapes` do not hold the longest pair, or an option is out
            of range.

    Example:

    >>> from keras_transformer.data import EncodedPairs
    >>> pairs = EncodedPairs.from_lists([[7, 8, 2]], [[9]])
    >>> dataset = ParallelDataset(pairs, shapes=[(1, 4)])
    >>> next(dataset.batches(epoch=0))[0][1]
    array([[1, 9, 0, 0]], dtype=int32)
    """

    def __init__(
        self,
        pairs: EncodedPairs,
        batch_tokens: int = 4096,
        max_shapes: int = 8,
        shuffle: bool = True,
        seed: int = 0,
        shapes: Sequence[tuple[int, int]] | None = None,
    ):
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise InputError(f"`seed` must be an integer of at least 0. Received: seed={seed!r}.")
        self.pairs, self.shuffle, self.seed = pairs, bool(shuffle), seed
        self._lengths = pairs.lengths
        if shapes is None:
            shapes = choose_shapes(self._lengths, batch_tokens, max_shapes)
        self.shapes = check_shapes(shapes, self._lengths)
        # The shapes of a plan do not depend on its order, so any plan tells them.
        plan = plan_batches(self._lengths, self.shapes)
        self.steps_per_epoch = len(plan)
        self.real_tokens = int(np.sum(pairs.source_lengths) + np.sum(pairs.target_lengths + 1))
        positions = 2 * sum(self.shapes[index][0] * self.shapes[index][1] for index, _ in plan)
        self.real_token_share = self.real_tokens / positions
        self.epoch = 0

    def batches(self, epoch: int) -> Iterator["Batch"]:
        """Iterates over the NumPy batches of one epoch; `epoch` is a number from 0."""
        rng = np.random.default_rng((self.seed, epoch)) if self.shuffle else None
        for index, rows in plan_batches(self._lengths, self.shapes, rng):
            yield self._fill(rows, self.shapes[index])

    def _fill(self, rows, shape):
        pairs = self.pairs
        source_ids = np.full(shape, PAD_ID, np.int32)
        target_in_ids, target_out_ids = source_ids.copy(), source_ids.copy()
        _copy_rows(source_ids, pairs.source_flat, pairs.source_offsets, rows)
        _copy_rows(target_in_ids[:, 1:], pairs.target_flat, pairs.target_offsets, rows)
        target_in_ids[: len(rows), 0] = BOS_ID
        _copy_rows(target_out_ids, pairs.target_flat, pairs.target_offsets, rows)
        ends = pairs.target_offsets[rows + 1] - pairs.target_offsets[rows]
        target_out_ids[np.arange(len(rows)), ends] = EOS_ID
        return (source_ids, target_in_ids), target_out_ids

    def to_tf_dataset(self) -> "tf.data.Dataset":
        """A `tf.data.Dataset` of these batches, with `steps_per_epoch` as its cardinality.

        Its dimensions are None, so that a Keras train step is traced once and XLA compiles one
        program for each shape. Each pass is one epoch: it takes the order of `self.epoch` when it
        begins and sets `self.epoch` to the following number when its last batch is made, which
        prefetching may do a few steps early. Set `epoch` before a pass, in a callback's
        `on_epoch_begin`, to resume at a given epoch.
        """
        import tensorflow as tf

        def one_epoch():
            epoch = self.epoch
            yield from self.batches(epoch)
            # Not before the end: Keras looks at one batch to build a model, and that peek is no
            # epoch.
            self.epoch = epoch + 1

        ids = tf.TensorSpec((None, None), tf.int32)
        dataset = tf.data.Dataset.from_generator(one_epoch, output_signature=((ids, ids), ids))
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(self.steps_per_epoch))
        return dataset.prefetch(_PREFETCH)


def _copy_rows(grid, flat, offsets, rows):
    """Writes sequence `rows[r]` at the start of row `r` of `grid` `(batch, length)`."""
    starts, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    # Columns that sequences of this batch reach, which can be fewer than the grid has.
    columns = np.arange(lengths.max())
    real = columns < lengths[:, None]  # --> [rows, columns]
    # Past its end a row would read the next sequence, or past the array: point at 0 instead.
    positions = np.where(real, starts[:, None] + columns, 0)
    grid[: len(rows), : len(columns)] = np.where(real, flat[positions], PAD_ID)
