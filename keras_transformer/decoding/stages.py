"""Runs a compiled search over many batches, in stages of growing room.

The first stage has room for 32 tokens, each further one for twice as many as the one before: the
keys and values of a short sentence never cost those of a long one, in time or in memory. Between
two stages, sentences that have ended leave; those that have not are put together with others of
the same shape, so that batches stay full.
"""

import collections
from typing import NamedTuple

import keras
import numpy as np

from keras_transformer.decoding.compiled import Compiled
from keras_transformer.decoding.hypotheses import Hypotheses
from keras_transformer.decoding.search import Settings
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


class Stages:
    """A search, compiled.

    Args:
        search: `Search`.
        max_room: No hypothesis is longer.
    """

    def __init__(self, search, max_room):
        self._search = search
        self._first_room = min(FIRST_ROOM, max_room)
        self._max_room = max_room
        self._begin = Compiled(search.model, self._begin_first_stage)
        self._proceed = Compiled(search.model, search.proceed)

    def _begin_first_stage(self, source_ids, settings, until):
        return self._search.begin(source_ids, settings, self._first_room, until)

    @property
    def compilations(self):
        """Programs that XLA has compiled for it."""
        return len(self._begin.programs) + len(self._proceed.programs)

    def run(self, batches):
        """Decodes batches that all have the same number of rows.

        Args:
            batches: Iterable of `Batch`; the shape of each is a program.

        Yields:
            A key and the `Hypotheses` of its sentence, arrays without the batch's axis, as
            sentences come to their end.
        """
        paused = collections.defaultdict(list)
        for batch in batches:
            rows = len(batch.source_ids)
            until = np.array(self._first_room, "int32")
            state, found = self._begin(batch.source_ids, batch.settings, until)
            yield from self._finished(batch.keys, state, found, batch.settings, rows, paused)
            for shape in list(paused):
                while sum(len(each.keys) for each in paused[shape]) >= rows:
                    yield from self._resume(shape, rows, paused)
        while any(paused.values()):
            shape = min(shape for shape, waiting in paused.items() if waiting)
            yield from self._resume(shape, rows, paused)

    def stream(self, batch):
        """Decodes one batch a token at a time.

        Yields:
            The `Hypotheses` so far, arrays `(rows, …)`, after each token.
        """
        until, room = 1, self._first_room
        state, found = self._begin(batch.source_ids, batch.settings, np.array(1, "int32"))
        while True:
            yield found
            if not np.asarray(state.running).any():
                return
            if until == room:
                room = min(2 * room, self._max_room)
                state = self._search.grow(state, room)
            until += 1
            state, found = self._proceed(state, batch.settings, np.array(until, "int32"))

    def _finished(self, keys, state, found, settings, rows, paused):
        running = np.asarray(state.running).any(axis=1)[: len(keys)]
        found = [np.asarray(each) for each in found]
        for row in np.flatnonzero(~running):
            yield keys[row], Hypotheses(*(each[row] for each in found))
        left = np.flatnonzero(running)
        if len(left):
            shape = (np.asarray(state.ids).shape[2], *np.asarray(state.cache.memory_mask).shape[3:])
            paused[shape].append(
                _Paused([keys[row] for row in left], _take(state, left), _take(settings, left))
            )

    def _resume(self, shape, rows, paused):
        """Runs the next stage of as many sentences as a batch has."""
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
        state = self._search.grow(state._replace(running=running), room)
        state, found = self._proceed(state, settings, np.array(room, "int32"))
        yield from self._finished(keys, state, found, settings, rows, paused)


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
