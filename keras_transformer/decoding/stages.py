"""Runs a compiled search over many batches, in stages of growing room.

The first stage has room for 32 tokens, each further one for twice as many as the one before: the
keys and values of a short sentence never cost those of a long one, in time or in memory. Between
two stages, sentences that have ended leave; those that have not are put together with others of
the same shape, so that batches stay full.
"""

import collections
import concurrent.futures
import functools
from typing import NamedTuple

import keras
import numpy as np

from keras_transformer.decoding.compiled import Compiled
from keras_transformer.decoding.hypotheses import Hypotheses
from keras_transformer.decoding.settings import Settings
from keras_transformer.decoding.shapes import FIRST_ROOM


class Batch(NamedTuple):
    """Sentences to be decoded together.

    Attributes:
        keys: A list: what the caller knows each sentence by. Rows after these are padding.
        source_ids: Int32 `(rows, source)`.
        settings: `Settings`; seeds and prefixes have a row for each sentence.
    """

    keys: list
    source_ids: object
    settings: Settings


class _Paused(NamedTuple):
    keys: list
    state: object  # a `Decoding` of NumPy arrays
    settings: Settings


class _Done(NamedTuple):
    keys: list
    settings: Settings
    state: object
    found: Hypotheses


class Stages:
    """A search, compiled.

    Args:
        search: `Search`.
        max_room: No hypothesis is longer.
        kept_weights: From a layout to the model's `step_weights`, laid out once for all calls, or
            `None`: each call then lays them out for itself.
        workers: Batches that are decoded at once. Much of a step on a small model keeps a single
            core busy; another batch then has the other one.
        with_xla: As for `Compiled`.
    """

    def __init__(self, search, max_room, kept_weights=None, workers=1, with_xla=True):
        self._search = search
        self._first_room = min(FIRST_ROOM, max_room)
        self._max_room = max_room
        self._kept_weights = kept_weights
        self._workers = workers
        self._with_xla = with_xla
        self._compiled = {}

    def _begin(self, source_ids, settings, until, weights=None):
        return self._search.begin(source_ids, settings, self._first_room, until, weights)

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
                            rows = len(batch.source_ids)
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
        begin, proceed = self._functions(len(batch.source_ids))
        until, room = 1, self._first_room
        state, found = begin(batch.source_ids, batch.settings, np.array(1, "int32"))
        while True:
            yield found
            if not np.asarray(state.running).any():
                return
            if until == room:
                room = min(2 * room, self._max_room)
                state = self._search.grow(state, room)
            until += 1
            state, found = proceed(state, batch.settings, np.array(until, "int32"))

    def _first_stage(self, batch):
        begin, _ = self._functions(len(batch.source_ids))
        until = np.array(self._first_room, "int32")
        return _Done(batch.keys, batch.settings, *begin(batch.source_ids, batch.settings, until))

    def _next_stage(self, keys, state, settings, room):
        _, proceed = self._functions(len(state.ids))
        state = self._search.grow(state, room)
        return _Done(keys, settings, *proceed(state, settings, np.array(room, "int32")))

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
        waiting, paused[shape] = paused[shape], []
        keys = [key for each in waiting for key in each.keys]
        state = _join([each.state for each in waiting])
        settings = _join([each.settings for each in waiting])
        if len(keys) > rows:
            rest = np.arange(rows, len(keys))
            paused[shape].append(_Paused(keys[rows:], _take(state, rest), _take(settings, rest)))
        # Short of a whole batch, the first sentence is repeated, at a halt.
        order = np.arange(rows)
        order[len(keys) :] = 0
        keys, state, settings = keys[:rows], _take(state, order), _take(settings, order)
        running = state.running.copy()
        running[len(keys) :] = False
        room = min(2 * shape[0], self._max_room)
        state = state._replace(running=running)
        return functools.partial(self._next_stage, keys, state, settings, room)

    def _finished(self, keys, settings, state, found, paused):
        running = np.asarray(state.running).any(axis=1)[: len(keys)]
        found = [np.asarray(each) for each in found]
        for row in np.flatnonzero(~running):
            yield keys[row], Hypotheses(*(each[row] for each in found))
        left = np.flatnonzero(running)
        if len(left):
            shape = (np.asarray(state.ids).shape[2], np.asarray(state.cache.memory_mask).shape[3])
            paused[shape].append(
                _Paused([keys[row] for row in left], _take(state, left), _take(settings, left))
            )


def _take(structure, rows):
    """Some rows of every array of a `Decoding` or of `Settings`."""
    if isinstance(structure, Settings):
        return structure._replace(
            **{
                name: None if getattr(structure, name) is None else getattr(structure, name)[rows]
                for name in ("seeds", "prefixes")
            }
        )
    return keras.tree.map_structure(
        lambda each: np.asarray(each)[rows] if np.ndim(each) else np.asarray(each), structure
    )


def _join(structures):
    """One `Decoding` or `Settings` of the rows of several."""
    first = structures[0]
    if len(structures) == 1:
        return first
    if isinstance(first, Settings):
        return first._replace(
            **{
                name: None
                if getattr(first, name) is None
                else np.concatenate([getattr(each, name) for each in structures])
                for name in ("seeds", "prefixes")
            }
        )
    return keras.tree.map_structure(
        lambda *each: np.concatenate(each) if each[0].ndim else each[0], *structures
    )
