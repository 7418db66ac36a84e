"""Shapes, plans and epochs of drawn lengths, compared with a search of all choices."""

import itertools

import numpy as np
import pytest

from keras_transformer.data.batching import choose_shapes, draw_epoch, plan_batches


def _padded_area(lengths, edges):
    return sum(min(edge for edge in edges if edge >= length) for length in lengths.tolist())


@pytest.mark.parametrize("seed", range(8))
def test_no_other_shapes_pad_drawn_lengths_less(seed):
    rng = np.random.default_rng(seed)
    values = np.unique(rng.integers(1, 40, 6))
    lengths = rng.choice(values, rng.integers(1, 50), p=rng.dirichlet(np.full(len(values), 0.3)))
    present, longest = np.unique(lengths).tolist(), int(lengths.max())
    for batch_tokens in (longest, longest + 1, 3 * longest):
        for max_shapes in range(1, 5):
            shapes = choose_shapes(lengths, batch_tokens, max_shapes)
            edges = [length for _, length in shapes]
            assert [rows for rows, _ in shapes] == [batch_tokens // edge for edge in edges]
            assert len(edges) == min(max_shapes, len(present)) and edges[-1] == longest
            choices = itertools.combinations(present, len(edges))
            least = min(_padded_area(lengths, edges) for edges in choices if edges[-1] == longest)
            assert _padded_area(lengths, edges) == least


def _naive_plan(lengths, shapes):
    plan, waiting = [], []
    for index, (rows, edge) in enumerate(shapes):
        shortest = shapes[index - 1][1] if index else 0
        waiting += [i for i, length in enumerate(lengths) if shortest < length <= edge]
        while len(waiting) >= rows:
            plan.append((index, waiting[:rows]))
            waiting = waiting[rows:]
    return plan + ([(len(shapes) - 1, waiting)] if waiting else [])


# Indices have types with borders.
@pytest.mark.parametrize("count", [0, 1, 7, 2**15, 2**15 + 1, 2**16 - 1, 2**16 + 1])
def test_a_plan_has_each_example_once_in_order_or_shuffled(count):
    rng = np.random.default_rng(count)
    lengths, shapes = (
        rng.integers(1, 12, count),
        [(1 + count // 50, 3), (5 + count // 70, 8), (11, 11)],
    )
    plan = [(index, rows.tolist()) for index, rows in plan_batches(lengths, shapes)]
    assert plan == _naive_plan(lengths.tolist(), shapes)
    shuffled = [(index, rows.tolist()) for index, rows in plan_batches(lengths, shapes, rng)]
    assert sorted((i, len(rows)) for i, rows in plan) == sorted(
        (i, len(rows)) for i, rows in shuffled
    )
    assert sorted(itertools.chain(*(rows for _, rows in shuffled))) == list(range(count))
    assert all(lengths[rows].max() <= shapes[index][1] for index, rows in shuffled)


@pytest.mark.parametrize("seed", range(6))
def test_drawn_epochs_are_rounds_of_each_bucket_of_each_corpus(seed):
    """Over the epochs, an example comes again only after all of its bucket have come."""
    rng = np.random.default_rng(seed)
    sizes, rates = [1, 9, 30], [*rng.choice([0.01, 0.3, 1, 2.4], 2).tolist(), 2.4]
    buckets, corpora = rng.integers(0, 3, sum(sizes)).astype(np.uint16), np.repeat([0, 1, 2], sizes)
    drawn = [draw_epoch(buckets, sizes, rates, seed, epoch, [0.25, 0.5]) for epoch in range(7)]
    epochs = [order[is_taken] for order, _, is_taken in drawn]
    orders = set()
    for corpus, bucket in itertools.product(range(3), range(3)):
        members = np.flatnonzero((corpora == corpus) & (buckets == bucket)).tolist()
        parts = [[i for i in rows.tolist() if i in members] for rows in epochs]
        expected = rates[corpus] * len(members)
        assert all(abs(len(part) - expected) < 1 for part in parts)
        assert abs(sum(map(len, parts)) - 7 * expected) <= 1
        drawn, size = list(itertools.chain(*parts)), len(members)
        for start in range(0, len(drawn) - size + 1, size or 1):
            assert sorted(drawn[start : start + size]) == members
            orders.add((corpus, bucket, tuple(drawn[start : start + size])))
    assert len(orders) > 5
