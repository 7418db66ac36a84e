"""Batches of every kind, compared with lists made by the docstring."""

import itertools

import numpy as np
import pytest
from pairwise import pairwise

from keras_transformer.data import EncodedPairs, LabelledDataset, ParallelDataset
from keras_transformer.data.pairs import offsets_of

_LINES = [1, 2, 4, 7, 2, 3, 5, 6, 8, 1, 9]


def _pairs(is_labels=False):
    """11 pairs of three corpora, the second has most; no two have equal sources."""
    sources = [[10 + i] * (1 + i % 4) + [2] for i in range(11)]
    targets = [[3 + i] if is_labels else [30 + i] * (1 + i % 3) for i in range(11)]
    flats = [np.array(list(itertools.chain(*rows)), np.int32) for rows in (sources, targets)]
    offsets = [offsets_of(list(map(len, rows))) for rows in (sources, targets)]
    sides = flats[0], offsets[0], flats[1], offsets[1]
    return EncodedPairs(*sides, np.array(_LINES), {"a": 4, "b": 5, "c": 2})


def _expected(dataset, epoch, step, host, hosts, accumulation, with_sources, is_labels):
    """Batch `step` by the docstring, from the plan's rows."""
    pairs, plan = dataset.pairs, dataset.plan.batches(epoch)
    batch = plan[step]
    rows, length = dataset.shapes[batch.shape]
    rows = -(-rows // hosts) * hosts
    padded = lambda ids: [*ids, *[0] * (length - len(ids))]  # noqa: E731
    ids = [(pairs.source(row).tolist(), pairs.target(row).tolist()) for row in batch.rows]
    ids += [([], None)] * (rows - len(ids))
    sources = [padded(source) for source, _ in ids]
    if is_labels:
        arrays = [sources, [[-1] if target is None else target for _, target in ids]]
    else:
        reads = [padded([] if target is None else [1, *target]) for _, target in ids]
        writes = [padded([] if target is None else [*target, 2]) for _, target in ids]
        arrays = [sources, reads, writes] if with_sources else [reads, writes]
    arrays = [np.split(np.array(array), hosts)[host] for array in arrays]
    if accumulation == 1:
        return arrays
    first = step - step % accumulation
    group = plan[first : first + accumulation]
    tokens = sum(
        1 if is_labels else len(pairs.target(row)) + 1 for one in group for row in one.rows
    )
    return [*arrays, np.full(len(arrays[0]), len(group) / tokens, "float32")]


def _flat(batch):
    inputs, *others = batch
    return [np.asarray(array) for array in (*inputs, *others)]


@pytest.mark.tensorflow
@pairwise(
    hosts=[1, 2],
    accumulation=[1, 2, 3],
    steps=[None, 6, 12],
    kind=["pairs", "targets", "labels"],
    shuffle=[True, False],
)
def test_batches_of_every_kind_are_the_rows_of_the_plan(hosts, accumulation, steps, kind, shuffle):
    is_labels, with_sources = kind == "labels", kind != "targets"
    dataset_class = LabelledDataset if is_labels else ParallelDataset
    for host in range(hosts):
        dataset = dataset_class(
            _pairs(is_labels),
            15,
            2,
            host=host,
            hosts=hosts,
            shards=hosts,
            accumulation_steps=accumulation,
            with_sources=with_sources,
            shuffle=shuffle,
            steps_per_epoch=steps,
        )
        options = host, hosts, accumulation, with_sources, is_labels
        count = range(dataset.steps_per_epoch)
        expected = [
            [_expected(dataset, epoch, step, *options) for step in count] for epoch in (0, 1)
        ]
        keras_batches = dataset.to_py_dataset()
        for epoch in (0, 1):
            dataset.epoch = epoch
            passes = [list(dataset.batches(epoch)), []]
            keras_batches.on_epoch_begin()
            passes[1] = [keras_batches[step] for step in range(len(keras_batches))]
            keras_batches.on_epoch_end()
            assert dataset.epoch == epoch + 1
            dataset.epoch = epoch
            tensors = dataset.to_tf_dataset()
            next(iter(tensors))
            assert dataset.epoch == epoch or len(count) < 6
            dataset.epoch = epoch
            passes.append(list(tensors))
            assert dataset.epoch == epoch + 1
            for batches in passes:
                for batch, arrays in zip(batches, expected[epoch], strict=True):
                    for received, array in zip(_flat(batch), arrays, strict=True):
                        np.testing.assert_array_equal(received, array)
        if not shuffle:
            continue
        for step in count:
            rows = sorted(dataset.plan.batches(1)[step].rows.tolist())
            corpora = {"a": range(4), "b": range(4, 9), "c": range(9, 11)}
            lines = {n: sorted(_LINES[r] for r in rows if r in m) for n, m in corpora.items()}
            assert dataset.lines(1, step) == lines
