"""Batches of parallel ids for `model.fit`: few static shapes, and a new order in every epoch."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import BOS_ID, EOS_ID, NO_LABEL, PAD_ID, UNK_ID
from keras_transformer.base.options import check, check_positive
from keras_transformer.data.pairs import EncodedPairs
from keras_transformer.data.plan import BatchPlan

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    Ids = np.ndarray
    Batch = tuple[tuple[Ids, Ids], Ids] | tuple[tuple[Ids, Ids], Ids, np.ndarray]

# Number of batches made ahead of the train step, which is hundreds of times slower.
_PREFETCH = 4


class ParallelDataset:
    """Token-budget batches `((source_ids, target_in_ids), target_out_ids)`.

    `target_in_ids` is BOS and the target, `target_out_ids` the target and EOS. After reading column
    `t` of `target_in_ids`, the model predicts column `t` of `target_out_ids`. All three are int32
    and have the same shape, one of `shapes`. Padding is `PAD_ID`; an incomplete batch ends in rows
    of padding. In `target_out_ids` an unknown token is `PAD_ID`, too: losses and metrics leave it
    out, because a search never writes it.

    Args:
        pairs: Tokenized pairs.
        batch_tokens: Maximum number of positions of a batch on one side, including padding.
        max_shapes: Maximum number of shapes; XLA compiles each shape once.
        accumulation_steps: Number of batches per optimizer step. If it is above 1, batches have a
            third part, sample weights, float32 `(batch,)`. With them the mean of the gradients of
            the batches' *sums* is the gradient of the mean over all tokens of the step. Batches of
            padding fill the last step of an epoch.
        host: Index of this host; its batches have only its rows.
        hosts: Number of hosts.
        shards: Divisor of the number of rows of a batch, a multiple of `hosts`; rows of padding
            fill the batch.
        with_sources: False for a model that reads no sources: batches are
            `((target_in_ids,), target_out_ids)`, and source ids do not count as tokens.
        **options: Options of the plan. `shuffle`, by default True: whether each epoch has its own
            order; otherwise all epochs have the same order. `seed`, by default 0: seed of the order
            of each epoch, on every machine. `shapes`: shapes to use instead of choosing them, such
            as the training set's, so that validation compiles no other shapes. `batch_tokens` and
            `max_shapes` then do nothing. `rates`: how often an epoch takes each pair of each of
            `pairs.corpora`; by default once. `noise`: noise on a share of the
            pairs, which depends on `seed`, epoch and pair. A pair that would get too long for its
            shape stays unchanged; the attributes count pairs without noise. `max_length`: maximum
            length of the shapes that noisy pairs need; by default `batch_tokens`.
            `steps_per_epoch`: number of batches per epoch, by default a pass over the pairs. The
            next epoch continues in the pass. It is a multiple of `accumulation_steps`.

    Attributes:
        shapes: List of `(batch, length)`, from short to long.
        steps_per_epoch: Number of batches per epoch.
        plan: `BatchPlan` of the batches.
        real_tokens: Number of source and `target_in` ids of an average epoch that are not padding,
            of the sides that the model reads.
        real_token_share: Their share of all positions of these sides.
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

    _inputs = 2  # number of input arrays of the model
    _counts_targets = True
    _no_label = PAD_ID  # label that losses leave out

    def __init__(
        self,
        pairs: EncodedPairs,
        batch_tokens: int = 4096,
        max_shapes: int = 8,
        *,
        accumulation_steps: int = 1,
        host: int = 0,
        hosts: int = 1,
        shards: int = 1,
        with_sources: bool = True,
        **options: Any,
    ):
        check_positive(accumulation_steps=accumulation_steps, hosts=hosts, shards=shards)
        check("host", host, "an index below `hosts`", int, 0, hosts - 1)
        self.plan = BatchPlan(pairs, batch_tokens, max_shapes, accumulation_steps, **options)
        self.pairs, self.shapes = pairs, self.plan.shapes
        self.steps_per_epoch = self.plan.steps_per_epoch
        self.accumulation_steps = accumulation_steps
        self._shards = shards
        self._last_step: tuple[Any, list[tuple[Ids, ...]]] = None, []
        self._host, self._hosts = host, hosts
        self._with_sources = with_sources
        if not with_sources:
            self._inputs = 1
        positions = self._sum_of_sides(self.plan.positions, self.plan.positions)
        real_tokens = self._sum_of_sides(*self.plan.real_tokens)
        self.real_token_share = real_tokens / positions
        self.real_tokens = real_tokens * self.steps_per_epoch // self.plan.steps_per_pass
        self.epoch = 0

    def batches(self, epoch: int, start: int = 0) -> Iterator["Batch"]:
        """Iterates over the NumPy batches of one epoch, a number from 0, from step `start` on."""
        plan = self.plan.batches(epoch)
        return (self._batch(plan, step, epoch) for step in range(start, len(plan)))

    def step_shapes(self, epoch: int) -> list[tuple[int, int]]:
        """Returns the shape of each batch of an epoch, a number from 0."""
        return self.plan.step_shapes(self.plan.batches(epoch))

    def lines(self, epoch: int, step: int) -> list[int] | dict[str, list[int]]:
        """Returns the lines of the files in batch `step` of an epoch, both from 0.

        With several corpora it returns a dict of lines by the corpora's names.
        """
        rows = np.sort(self.plan.batches(epoch)[step].rows)
        sizes = self.pairs.corpora
        corpus_rows = np.split(rows, np.searchsorted(rows, np.cumsum(list(sizes.values()))[:-1]))
        lines = [np.sort(self.pairs.lines[rows]).tolist() for rows in corpus_rows]
        return lines[0] if len(sizes) == 1 else dict(zip(sizes, lines, strict=True))

    def _sum_of_sides(self, source, target):
        return self._with_sources * source + self._counts_targets * target

    def _batch(self, plan, step, epoch):
        first = step // self.accumulation_steps * self.accumulation_steps
        batches = self._batches_of_step(plan, first, epoch)
        arrays = [np.split(array, self._hosts)[self._host] for array in batches[step - first]]
        inputs, labels = tuple(arrays[-1 - self._inputs : -1]), arrays[-1]
        if self.accumulation_steps == 1:
            return inputs, labels
        tokens = sum(np.count_nonzero(rows[-1] != self._no_label) for rows in batches)
        weight = len(batches) / tokens
        return inputs, labels, np.full(len(labels), weight, "float32")

    def _batches_of_step(self, plan, first, epoch):
        """Returns the arrays of each batch of an optimizer step, which are made once."""
        last_step, arrays = self._last_step
        if last_step != (epoch, first):
            batches = plan[first : first + self.accumulation_steps]
            arrays = [
                self._fill(*self.plan.read(batch), self.shapes[batch.shape]) for batch in batches
            ]
            self._last_step = (epoch, first), arrays
        return arrays

    def _fill(self, pairs, rows, shape):
        source_ids = self._sources(pairs, rows, shape)
        target_in_ids = np.full(source_ids.shape, PAD_ID, np.int32)
        _copy_rows(target_in_ids[:, 1:], pairs.target_flat, pairs.target_offsets, rows)
        target_in_ids[: len(rows), 0] = BOS_ID
        target_out_ids = np.full(source_ids.shape, PAD_ID, np.int32)
        target_out_ids[:, :-1] = target_in_ids[:, 1:]
        # As a label, the token that no search writes would teach the model to drop its text.
        target_out_ids[target_out_ids == UNK_ID] = PAD_ID
        ends = pairs.target_offsets[rows + 1] - pairs.target_offsets[rows]
        target_out_ids[np.arange(len(rows)), ends] = EOS_ID
        return source_ids, target_in_ids, target_out_ids

    def _sources(self, pairs, rows, shape):
        batch, length = shape
        batch = -(-batch // self._shards) * self._shards
        ids = np.full((batch, length), PAD_ID, np.int32)
        _copy_rows(ids, pairs.source_flat, pairs.source_offsets, rows)
        return ids

    def to_tf_dataset(self) -> "tf.data.Dataset":
        """Makes a `tf.data.Dataset` of these batches, with `steps_per_epoch` as its cardinality.

        Its dimensions are None, so that a Keras train step is traced once, and XLA compiles it once
        per shape. Each iteration is the epoch `self.epoch`. When its last batch is made, which
        prefetching may do a few steps early, it increments `self.epoch`. Set `epoch` before it, in
        a callback's `on_epoch_begin`, to resume at an epoch.
        """
        import tensorflow as tf

        def one_epoch():
            epoch = self.epoch
            yield from self.batches(epoch)
            # Only at the end, because Keras reads one batch to build a model, which is no epoch.
            self.epoch = epoch + 1

        ids = tf.TensorSpec((None, None), tf.int32)
        weights = (tf.TensorSpec((None,), tf.float32),) if self.accumulation_steps > 1 else ()
        signature = ((ids,) * self._inputs, ids, *weights)
        dataset = tf.data.Dataset.from_generator(one_epoch, output_signature=signature)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(self.steps_per_epoch))
        return dataset.prefetch(_PREFETCH)

    def to_py_dataset(self) -> "keras.utils.PyDataset":
        """Makes a `keras.utils.PyDataset` of these batches, for any backend, without TensorFlow.

        Each epoch has the batches of `self.epoch`, and then increments it. Call `fit` with
        `shuffle=False`, because Keras would change the order, and separate accumulated batches.

        Raises:
            InputError: `fit` takes the batches in another order.
        """
        import keras

        dataset, planned = self, {}

        class Batches(keras.utils.PyDataset):
            _is_running, _next = False, 0

            def __len__(self):
                return dataset.steps_per_epoch

            def on_epoch_begin(self):
                self._is_running = True

            def __getitem__(self, step):
                # Outside an epoch Keras may read any batch; an epoch may start again or continue.
                if self._is_running:
                    if step not in (0, self._next):
                        raise InputError(
                            "Call `fit` with `shuffle=False`: these batches have a fixed order. "
                            f"Received: batch {step} instead of {self._next}."
                        )
                    self._next = (step + 1) % len(self)
                if dataset.epoch not in planned:
                    planned.clear()
                    planned[dataset.epoch] = dataset.plan.batches(dataset.epoch)
                return dataset._batch(planned[dataset.epoch], step, dataset.epoch)

            def on_epoch_end(self):
                self._is_running = False
                dataset.epoch += 1

        return Batches()


class LabelledDataset(ParallelDataset):
    """`ParallelDataset` of texts with `Labels`: batches `((source_ids,), label_ids)`.

    Both are int32; `label_ids` is `(batch, 1)` with `NO_LABEL` for a row of padding. The model
    predicts no EOS, and only tokens of the texts count as non-padding tokens.
    """

    _inputs = 1
    _counts_targets = False
    _no_label = NO_LABEL

    def _fill(self, pairs, rows, shape):
        source_ids = self._sources(pairs, rows, shape)
        label_ids = np.full((len(source_ids), 1), NO_LABEL, np.int32)
        _copy_rows(label_ids, pairs.target_flat, pairs.target_offsets, rows)
        return source_ids, label_ids


def _copy_rows(grid, flat, offsets, rows):
    """Writes sequence `rows[r]` at the start of row `r` of `grid` `(batch, length)`."""
    starts, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    # Columns that sequences of this batch reach, which can be fewer than the grid has.
    columns = np.arange(lengths.max(initial=0))
    real = columns < lengths[:, None]  # --> [rows, columns]
    # After its end a row would read the next sequence, or beyond the array: read id 0 instead.
    positions = np.where(real, starts[:, None] + columns, 0)
    grid[: len(rows), : len(columns)] = np.where(real, flat[positions], PAD_ID)
