"""Runs a compiled search over many batches, in stages of growing capacity.

The first stage has capacity for 32 tokens, each further one for twice as many as the one before:
the keys and values of a short sentence never cost those of a long one, in time or in memory.
Between two stages, sentences that have ended leave; those that have not are put together with
others of the same shape, so that batches stay full.
"""

import collections
import concurrent.futures
import functools
from typing import NamedTuple

import keras
import numpy as np

from keras_transformer.decoding.arguments import PER_SENTENCE, SearchArguments
from keras_transformer.decoding.compiled import Compiled
from keras_transformer.decoding.hypotheses import Hypotheses
from keras_transformer.decoding.loop import DecodingState
from keras_transformer.decoding.shapes import FIRST_CAPACITY


class Batch(NamedTuple):
    """Sentences to be decoded together.

    Attributes:
        keys: What the caller knows each sentence by. Rows after these are padding.
        arguments: `SearchArguments`.
        state: Where their search stands, a `DecodingState` of NumPy arrays; `None` before it.
    """

    keys: list
    arguments: SearchArguments
    state: DecodingState | None = None


class Stages:
    """A search, compiled.

    Args:
        search: `Search`.
        max_capacity: No hypothesis is longer.
        kept_weights: From a layout to the model's `step_weights`, laid out once for all calls, or
            `None`: each call then lays them out for itself.
        workers: Batches that are decoded at once. Much of a step on a small model keeps a single
            core busy; another batch then has the other one.
        with_xla: As for `Compiled`.
    """

    def __init__(self, search, max_capacity, kept_weights=None, workers=1, with_xla=True):
        self._search = search
        self._first_capacity = min(FIRST_CAPACITY, max_capacity)
        self._max_capacity = max_capacity
        self._kept_weights = kept_weights
        self._workers = workers
        self._with_xla = with_xla
        self._compiled = {}

    def _begin(self, arguments, stop_at, weights=None):
        return self._search.begin(arguments, self._first_capacity, stop_at, weights)

    def _functions(self, rows):
        """`begin` and `proceed`, compiled."""
        layout = None
        if self._kept_weights is not None:
            one_row = rows == self._search.options.beams == 1
            layout = "one, kept" if one_row else "many, kept"
        if layout not in self._compiled:
            kept = () if layout is None else (self._kept_weights(layout),)
            self._compiled[layout] = tuple(
                Compiled(self._search.model, function, kept, self._with_xla)
                for function in (self._begin, self._search.proceed)
            )
        return self._compiled[layout]

    @property
    def compilations(self):
        """Programs that XLA has compiled for it."""
        return sum(each.compilations for pair in self._compiled.values() for each in pair)

    def run(self, batches):
        """Decodes batches that all have the same number of rows.

        Args:
            batches: Iterable of `Batch`; the shape of each is a program.

        Yields:
            A key and the `Hypotheses` of its sentence, arrays without the batch's axis, as
            sentences come to their end.
        """
        batches, paused, running = iter(batches), collections.defaultdict(list), collections.deque()
        with concurrent.futures.ThreadPoolExecutor(self._workers) as pool:
            rows = None
            while True:
                while len(running) < self._workers:
                    job = self._full_batch(paused, rows)
                    if job is None:
                        batch = next(batches, None)
                        if batch is not None:
                            rows = len(batch.arguments.source_ids)
                            self._functions(rows)  # made here, not by two workers at once
                            job = functools.partial(self._first_stage, batch)
                        elif not running:
                            job = self._what_is_left(paused, rows)
                    if job is None:
                        break
                    running.append(pool.submit(job))
                if not running:
                    return
                # In the order of their beginning: what is put together does not depend on which
                # batch is done first.
                yield from self._finished(*running.popleft().result(), paused)

    def stream(self, batch):
        """Decodes one batch a token at a time.

        Yields:
            The `Hypotheses` so far, arrays `(rows, …)`, after each token.
        """
        begin, proceed = self._functions(len(batch.arguments.source_ids))
        stop_at, capacity = 1, self._first_capacity
        state, found = begin(batch.arguments, np.array(1, "int32"))
        while True:
            yield found
            if not np.asarray(state.running).any():
                return
            if stop_at == capacity:
                capacity = min(2 * capacity, self._max_capacity)
                state = self._search.extended(state, capacity)
            stop_at += 1
            state, found = proceed(state, batch.arguments, np.array(stop_at, "int32"))

    def _first_stage(self, batch):
        begin, _ = self._functions(len(batch.arguments.source_ids))
        state, found = begin(batch.arguments, np.array(self._first_capacity, "int32"))
        return batch._replace(state=state), found

    def _next_stage(self, batch, capacity):
        _, proceed = self._functions(len(batch.arguments.source_ids))
        state = self._search.extended(batch.state, capacity)
        state, found = proceed(state, batch.arguments, np.array(capacity, "int32"))
        return batch._replace(state=state), found

    def _full_batch(self, paused, rows):
        """The next stage of sentences that fill a batch, or `None`."""
        for shape, waiting in paused.items():
            if sum(len(each.keys) for each in waiting) >= rows:
                return self._joined(shape, paused, rows)
        return None

    def _what_is_left(self, paused, rows):
        shape = min((shape for shape, waiting in paused.items() if waiting), default=None)
        return None if shape is None else self._joined(shape, paused, rows)

    def _joined(self, shape, paused, rows):
        """The next stage of as many sentences as a batch has."""
        batch, paused[shape] = _joined(paused[shape]), []
        count = len(batch.keys)
        if count > rows:
            paused[shape].append(_rows_of(batch, range(rows, count)))
        # Short of a whole batch, the first sentence is repeated, at a halt.
        batch = _rows_of(batch, [*range(min(count, rows)), *[0] * (rows - count)])
        running = batch.state.running.copy()
        running[count:] = False
        state = batch.state._replace(running=running)
        batch = batch._replace(keys=batch.keys[:count], state=state)
        capacity = min(2 * shape[0], self._max_capacity)
        return functools.partial(self._next_stage, batch, capacity)

    def _finished(self, batch, found, paused):
        running = np.asarray(batch.state.running).any(axis=1)[: len(batch.keys)]
        found = [np.asarray(each) for each in found]
        for row in np.flatnonzero(~running):
            yield batch.keys[row], Hypotheses(*(each[row] for each in found))
        if running.any():
            shape = batch.state.ids.shape[2], batch.arguments.source_ids.shape[1]
            paused[shape].append(_rows_of(batch, np.flatnonzero(running)))


def _rows_of(batch, rows):
    """Some sentences of a batch, as NumPy arrays."""
    rows = list(rows)

    def taken(values):
        values = np.asarray(values)
        return values[rows] if values.ndim else values

    return Batch(
        [batch.keys[row] for row in rows],
        batch.arguments.of_rows(rows),
        keras.tree.map_structure(taken, batch.state),
    )


def _joined(batches):
    """One batch of the sentences of several that are equally far."""
    first, *others = batches
    if not others:
        return first

    def together(*values):
        return np.concatenate(values) if values[0].ndim else values[0]

    per_sentence = {
        name: np.concatenate([getattr(each.arguments, name) for each in batches])
        for name in PER_SENTENCE
        if getattr(first.arguments, name) is not None
    }
    return Batch(
        [key for each in batches for key in each.keys],
        first.arguments._replace(**per_sentence),
        keras.tree.map_structure(together, *(each.state for each in batches)),
    )
