"""Length bucketing: chooses few static shapes, and puts examples into batches of these shapes.

A train step takes seconds to compile for each new shape, and padding takes time in every step. So
examples go into a few length buckets, whose edges give the least padding for their lengths.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import check_positive

_MAX_DENOMINATOR = 10**6  # of a rate


def choose_shapes(
    lengths: Sequence[int] | np.ndarray, batch_tokens: int, max_shapes: int = 8
) -> list[tuple[int, int]]:
    """Returns the `(batch, length)` shapes that pad these lengths least.

    An example goes into the shortest shape that holds it. Dynamic programming finds the lengths of
    the shapes that give the fewest padded positions in total, if incomplete batches do not count.
    Each shape has as many rows as `batch_tokens` allows.

    Args:
        lengths: Integers `(examples,)`, the number of columns that each example needs.
        batch_tokens: Maximum number of positions of a batch on one side, including padding.
        max_shapes: Maximum number of shapes; fewer if there are fewer distinct lengths.

    Returns:
        A list of `(batch, length)`, from short to long; the last length is the largest of
        `lengths`.

    Raises:
        InputError: There is no length, or `batch_tokens` does not hold the longest example.

    Example: three lengths and two shapes, so that one length is padded.

    >>> choose_shapes([3, 4, 9], batch_tokens=36, max_shapes=2)
    [(9, 4), (4, 9)]
    """
    lengths = np.asarray(lengths)
    check_positive(batch_tokens=batch_tokens, max_shapes=max_shapes)
    if not lengths.size or lengths.min() < 1:
        raise InputError(f"`lengths` must be positive, at least one. Received: {lengths!r:.80}.")
    if batch_tokens < lengths.max():
        raise InputError(
            "`batch_tokens` must hold the longest example. "
            f"Received: batch_tokens={batch_tokens}, longest example={lengths.max()}."
        )
    edges = _best_edges(*np.unique(lengths, return_counts=True), max_shapes)
    return [(int(batch_tokens // edge), int(edge)) for edge in edges]


def _best_edges(values, counts, max_edges):
    """Chooses `max_edges` of the sorted `values`, to which all values round up at the least cost.

    `best[j]` is the least padded area of the `j` smallest values in the buckets used so far. One
    more bucket, for the values from i to j - 1, costs their count times `values[j - 1]`.
    """
    size = len(values)
    below = np.concatenate([[0], np.cumsum(counts)])
    best = np.concatenate([[0.0], np.full(size, np.inf)])
    starts = []
    for _ in range(min(max_edges, size)):
        next_best, start = np.full(size + 1, np.inf), np.zeros(size + 1, int)
        for j in range(1, size + 1):
            costs = best[:j] + (below[j] - below[:j]) * float(values[j - 1])
            start[j] = np.argmin(costs)
            next_best[j] = costs[start[j]]
        best = next_best
        starts.append(start)
    edges, end = [], size
    for start in reversed(starts):
        edges.append(values[end - 1])
        end = start[end]
    return edges[::-1]


def plan_batches(
    lengths: Sequence[int] | np.ndarray,
    shapes: Sequence[tuple[int, int]],
    rng: np.random.Generator | None = None,
) -> list[tuple[int, np.ndarray]]:
    """Puts each example into exactly one batch.

    Examples that do not fill a batch of their shape move to the next longer shape, so that only one
    batch, of the longest shape, can be incomplete. The number of batches per shape depends only on
    the lengths, not on the order, so every epoch has the same number of steps.

    Args:
        lengths: Integers `(examples,)`, the number of columns that each example needs.
        shapes: Pairs `(batch, length)`, from short to long; the longest holds every example.
        rng: Generator that shuffles the examples of each shape and the order of the batches. None
            keeps the examples' order, with short shapes first.

    Returns:
        A list of `(shape index, example indices)`, one entry per batch. The indices are int32 or
        int64, at most `batch` of them.
    """
    lengths = np.asarray(lengths)
    shapes = check_shapes(shapes, lengths)
    bucket_of = np.searchsorted([length for _, length in shapes], lengths).astype(np.uint16)
    plan: list[tuple[int, np.ndarray]] = []
    # With millions of examples, these indices need most of an epoch's memory.
    index_type = np.int32 if len(lengths) < 2**31 else np.int64
    left_over = np.zeros(0, index_type)
    for index, (batch, _) in enumerate(shapes):
        members = np.flatnonzero(bucket_of == index).astype(index_type)
        members = np.concatenate([left_over, members])
        if rng is not None:
            members = rng.permutation(members)
        full = len(members) // batch * batch
        plan.extend((index, rows) for rows in members[:full].reshape(-1, batch))
        left_over = members[full:]
    if len(left_over):
        plan.append((len(shapes) - 1, left_over))
    if rng is not None:
        plan = [plan[position] for position in rng.permutation(len(plan))]
    return plan


def draw_epoch(
    buckets: np.ndarray,
    sizes: Sequence[int],
    rates: Sequence[float],
    seed: int,
    epoch: int,
    shares: Sequence[float] = (),
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Chooses the examples of an epoch from several corpora, and the kind of each example.

    Every epoch has the same number of places for the examples of each bucket of each corpus, so
    that all epochs have the same number of batches. At a rate of 0.25, the only example of a bucket
    has a place in each epoch, and is there in every fourth. The examples of a bucket come in
    rounds, in another order per round: an example comes again after all examples of the bucket.

    Args:
        buckets: Unsigned integers `(examples,)`, the bucket of each example, corpus after corpus.
        sizes: Number of examples of each corpus.
        rates: How often an epoch takes an example of each corpus.
        seed: Seed of all orders.
        epoch: Number of the epoch, from 0.
        shares: Shares of the places of each bucket of a corpus that have kind 1, 2, …; the
            others have kind 0.

    Returns:
        For each place the index of an example, int32 or int64, the kind, uint8, and whether this
        epoch takes the example.
    """
    index_type = np.int32 if len(buckets) < 2**31 else np.int64
    places, kinds, are_taken = (
        [np.zeros(0, index_type)],
        [np.zeros(0, np.uint8)],
        [np.zeros(0, bool)],
    )
    starts = np.cumsum([0, *sizes])
    for corpus, (start, size, rate) in enumerate(zip(starts[:-1], sizes, rates, strict=True)):
        of_corpus = buckets[start : start + size]
        for bucket in np.unique(of_corpus):
            members = (start + np.flatnonzero(of_corpus == bucket)).astype(index_type)
            seed_of_bucket = seed, corpus, int(bucket)
            begin, end, count = _range_of_epoch(len(members), rate, seed_of_bucket, epoch)
            places.append(_in_rounds(members, begin, begin + count, seed_of_bucket))
            # The members are in random order, so that evenly spaced places sample the kinds.
            kinds.append(_evenly_spaced(count, shares))
            are_taken.append(np.arange(count) < end - begin)
    return np.concatenate(places), np.concatenate(kinds), np.concatenate(are_taken)


def _range_of_epoch(size, rate, seed, epoch):
    """Returns the begin and the end of an epoch in an endless row of examples, and its places.

    An epoch takes `size * rate` examples on average, and has places for this number rounded up.
    """
    # A fraction, so that a sum over epochs is exact.
    number = Fraction(rate).limit_denominator(_MAX_DENOMINATOR) * size
    # Otherwise the first epochs would take no example of any small bucket.
    phase = Fraction(np.random.default_rng(seed).random())
    begin, end = (math.floor(number * passes + phase) for passes in (epoch, epoch + 1))
    return begin, end, math.ceil(number)


def _in_rounds(members, begin, end, seed):
    """Returns a part of an endless row of the members, round after round in another order."""
    size = len(members)
    rounds = range(begin // size, -(-end // size))
    orders = [np.random.default_rng((*seed, number)).permutation(members) for number in rounds]
    first = rounds.start * size
    return np.concatenate([members[:0], *orders])[begin - first : end - first]


def _evenly_spaced(count, shares):
    """Returns the kinds of `count` places, uint8: shares of them have kind 1, 2, …, others 0."""
    ends = np.cumsum(shares)
    kinds = np.searchsorted(ends, (np.arange(count) + 0.5) / count, side="right")
    return np.where(kinds < len(ends), kinds + 1, 0).astype(np.uint8)


def check_shapes(shapes: Any, lengths: Any) -> list[tuple[int, int]]:
    """Converts shapes to a list of tuples of ints; raises `InputError` for invalid shapes."""
    try:
        checked = [(int(batch), int(length)) for batch, length in shapes]
    except (TypeError, ValueError):
        checked = []
    edges = [length for _, length in checked]
    if not edges or edges != sorted(set(edges)) or min(min(shape) for shape in checked) < 1:
        raise InputError(
            "`shapes` must be pairs (batch, length) of positive integers, from short to long. "
            f"Received: shapes={shapes!r}."
        )
    longest = int(np.max(lengths, initial=0))
    if longest > edges[-1]:
        raise InputError(
            "The longest of `shapes` must hold every example. "
            f"Received: longest shape={edges[-1]}, longest example={longest}."
        )
    return checked
