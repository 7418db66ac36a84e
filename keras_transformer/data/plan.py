"""Plan of the batches of each epoch: which pairs go into which batch, and with which noise."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import check
from keras_transformer.data.batching import (
    check_shapes,
    choose_shapes,
    draw_epoch,
    plan_batches,
)
from keras_transformer.data.noise import PairNoise
from keras_transformer.data.pairs import EncodedPairs, offsets_of


class PlannedBatch(NamedTuple):
    """A batch before its ids are read.

    Attributes:
        shape: Index of the shape.
        rows: Indices of the pairs, at most as many as the shape has rows.
        noise: Kind of noise of each pair, 0 for none; None if no pair has noise.
        turn: Number of earlier passes over the pairs.
    """

    shape: int
    rows: np.ndarray
    noise: np.ndarray | None = None
    turn: int = 0


_EMPTY = PlannedBatch(0, np.zeros(0, np.int64))


class BatchPlan:
    """Shapes of batches, and the pairs of each batch of each epoch.

    Args:
        pairs: Tokenized pairs.
        batch_tokens: As in `ParallelDataset`, like the others.

    Attributes:
        shapes: List of `(batch, length)`, from short to long.
        steps_per_pass: Number of batches of a pass over the pairs, the same for every pass.
        steps_per_epoch: Number of batches per epoch.
        positions: Number of positions of all batches of a pass, on one side.
        real_tokens: Numbers of source ids and of `target_in` ids of a pass, without padding.
    """

    def __init__(
        self,
        pairs: EncodedPairs,
        batch_tokens: int,
        max_shapes: int,
        accumulation_steps: int = 1,
        *,
        shuffle: bool = True,
        seed: int = 0,
        shapes: Sequence[tuple[int, int]] | None = None,
        rates: Sequence[float] | None = None,
        noise: PairNoise | None = None,
        max_length: int | None = None,
        steps_per_epoch: int | None = None,
    ):
        check("seed", seed, "an integer of at least 0", int, 0)
        self._pairs, self._shuffle, self._seed = pairs, shuffle, seed
        self._rates, self._noise = rates, noise
        self._lengths = pairs.lengths
        stretches, longest = ([], 0) if noise is None else noise.stretches(pairs)
        if shapes is None:
            lengths = self._lengths
            # If all pairs are short, noisy pairs would not fit into the shapes.
            limit = batch_tokens if max_length is None else min(batch_tokens, max_length)
            if (noisy_length := min(longest, limit)) > np.max(lengths, initial=0):
                lengths = np.append(lengths, noisy_length)
            shapes = choose_shapes(lengths, batch_tokens, max_shapes)
        self.shapes = check_shapes(shapes, self._lengths)
        # Noise lengthens texts, so noisy pairs go into longer shapes, up to the last shape.
        edges = np.array([length for _, length in self.shapes])
        longer = [np.minimum(np.ceil(edges * factor), edges[-1]) for factor in (1.0, *stretches)]
        self._edges = np.array(longer, np.int32)  # --> [kinds, shapes]
        self._buckets = np.searchsorted(edges, self._lengths).astype(np.uint16)
        sizes = list(pairs.corpora.values())
        if rates is not None:
            if len(rates) != len(sizes) or not all(0 <= rate < np.inf for rate in rates):
                rule = "`rates` must have a number of at least 0 for each corpus"
                values = f"rates={[*rates]}, corpora={[*pairs.corpora]}"
                raise InputError(f"{rule}. Received: {values}.")
        # These numbers do not depend on the order.
        batches = self._batches(0, None)
        self.steps_per_pass = -(-len(batches) // accumulation_steps) * accumulation_steps
        self.steps_per_epoch = steps_per_epoch or self.steps_per_pass
        if self.steps_per_epoch % accumulation_steps:
            rule = "`steps_per_epoch` must be a multiple of `accumulation_steps`"
            values = f"steps_per_epoch={steps_per_epoch}, accumulation_steps={accumulation_steps}"
            raise InputError(f"{rule}. Received: {values}.")
        self._last_turn: tuple[int, list[PlannedBatch]] = -1, []
        self.positions = sum(size * length for size, length in self.step_shapes(batches))
        rows = slice(None) if rates is None else np.concatenate([batch.rows for batch in batches])
        sides = pairs.source_lengths, pairs.target_lengths + 1
        self.real_tokens = tuple(int(np.sum(lengths[rows])) for lengths in sides)

    def step_shapes(self, batches: list[PlannedBatch]) -> list[tuple[int, int]]:
        """Returns the shape of each of some batches."""
        return [self.shapes[batch.shape] for batch in batches]

    def batches(self, epoch: int) -> list[PlannedBatch]:
        """Returns the batches of an epoch, a number from 0: the next ones of pass after pass.

        The last optimizer step of a pass may have empty batches.
        """
        batches: list[PlannedBatch] = []
        while (count := self.steps_per_epoch - len(batches)) > 0:
            step = epoch * self.steps_per_epoch + len(batches)
            turn, first = divmod(step, self.steps_per_pass)
            batches += self._batches_of_turn(turn)[first : first + count]
        return batches

    def _batches_of_turn(self, turn):
        """Returns the batches of a pass; several epochs may have parts of it."""
        last_turn, batches = self._last_turn
        if turn != last_turn:
            rng = np.random.default_rng((self._seed, turn)) if self._shuffle else None
            batches = self._batches(turn, rng)
            batches += [_EMPTY] * (self.steps_per_pass - len(batches))
            self._last_turn = turn, batches
        return batches

    def _batches(self, turn, rng):
        if self._rates is None and self._noise is None:
            return [PlannedBatch(*batch) for batch in plan_batches(self._lengths, self.shapes, rng)]
        sizes = list(self._pairs.corpora.values())
        rates = [1.0] * len(sizes) if self._rates is None else self._rates
        shares = () if self._noise is None else self._noise.shares
        places = draw_epoch(self._buckets, sizes, rates, self._seed, turn, shares)
        order, kinds, are_taken = places
        batches = plan_batches(self._edges[kinds, self._buckets[order]], self.shapes, rng)
        taken = ((shape, rows[are_taken[rows]]) for shape, rows in batches)
        return [PlannedBatch(shape, order[rows], kinds[rows], turn) for shape, rows in taken]

    def read(self, batch: PlannedBatch) -> tuple[EncodedPairs, np.ndarray]:
        """Returns pairs and the rows of a batch in them; with noise these are new pairs."""
        if self._noise is None or batch.noise is None or not batch.noise.any():
            return self._pairs, batch.rows
        _, length = self.shapes[batch.shape]
        sources, targets = [], []
        for row, kind in zip(batch.rows.tolist(), batch.noise.tolist(), strict=True):
            pair = source, target = self._pairs.source(row), self._pairs.target(row)
            if kind:
                rng = np.random.default_rng((self._seed, batch.turn, row))
                source, target = self._noise.change(kind, source, target, rng)
                if max(len(source), len(target) + 1) > length:
                    source, target = pair
            sources.append(source)
            targets.append(target)
        flat_sources, flat_targets = np.concatenate(sources), np.concatenate(targets)
        offsets = offsets_of(list(map(len, sources))), offsets_of(list(map(len, targets)))
        pairs = EncodedPairs(flat_sources, offsets[0], flat_targets, offsets[1])
        return pairs, np.arange(len(batch.rows))
