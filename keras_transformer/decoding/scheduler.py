"""Many sentences, one model: batches of few shapes, stages of growing capacity, programs kept.

The first stage has capacity for 32 tokens, each further one for twice as many as the one before:
the keys and values of a short sentence never cost those of a long one, in time or in memory.
Between two stages, sentences that have ended leave; those that have not are put together with
others of the same shape, so that batches stay full.
"""

import collections
import concurrent.futures
import functools
import threading
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

import keras
import numpy as np

from keras_transformer.decoding.compiled import Compiled
from keras_transformer.decoding.loop import DecodingState
from keras_transformer.decoding.options import SearchArguments, search_arguments
from keras_transformer.decoding.results import IMPOSSIBLE, Hypotheses
from keras_transformer.decoding.scoring import TeacherForcedScorer
from keras_transformer.decoding.search import Search
from keras_transformer.errors import InputError
from keras_transformer.inputs import bucket, length_buckets, pad, row_count
from keras_transformer.options import DecodingOptions

FIRST_CAPACITY = 32  # of the first stage of a search, in tokens
# Sets of options whose programs are kept: 30 MB, also of a tiny model, for each batch shape.
MOST_PROGRAMS = 64
_MOST_GRAPHS = 8
_PREFIX_MULTIPLE = 16


class Job(NamedTuple):
    """A sentence to be searched."""

    key: Hashable  # what the caller knows it by
    source: list[int]  # including EOS
    seed: int  # for sampling
    prefix: Sequence[int]  # what its translation must begin with


class Batch(NamedTuple):
    """Sentences to be decoded together; rows after those with a key are padding."""

    keys: list[Hashable]
    arguments: SearchArguments
    state: DecodingState | None = None  # where their search stands

    def sentence(self, row: int) -> "Batch":
        """A copy of one sentence of a batch of NumPy arrays."""

        def taken(values):
            return values[row : row + 1].copy() if values.ndim else values

        state = keras.tree.map_structure(taken, self.state)
        return Batch([self.keys[row]], self.arguments.map_sentences(taken), state)


def together(sentences: Sequence[Batch], rows: int) -> Batch:
    """A batch of `rows` of some that are equally far; the first is repeated, at a halt."""
    count, first = len(sentences), sentences[0]
    _, others, states = zip(*sentences, *[first] * (rows - count), strict=True)

    def joined(*values):
        return np.concatenate(values) if values[0].ndim else values[0]

    state = keras.tree.map_structure(joined, *states)
    state.running[count:] = False
    keys = [each.keys[0] for each in sentences]
    return Batch(keys, first.arguments.map_sentences(joined, *others[1:]), state)


def batches(
    jobs: Sequence[Job], options: DecodingOptions, batch_size: int, max_lengths, vocabulary_size
) -> Iterator[Batch]:
    """Batches by falling length; all have the same number of rows."""
    jobs = sorted(jobs, key=lambda job: len(job.source), reverse=True)
    rows = row_count(min(len(jobs), batch_size))
    buckets = length_buckets(max_lengths[0])
    longest_prefix = max(len(job.prefix) for job in jobs)
    prefix_columns = -(-longest_prefix // _PREFIX_MULTIPLE) * _PREFIX_MULTIPLE
    bias = None
    if options.banned_ids or options.logit_bias:
        bias = np.zeros(vocabulary_size, "float32")
        for each, value in (*options.logit_bias, *((id, IMPOSSIBLE) for id in options.banned_ids)):
            bias[each] = max(value, IMPOSSIBLE)
    for start in range(0, len(jobs), batch_size):
        keys, sources, seeds, prefixes = zip(*jobs[start : start + batch_size], strict=True)
        arguments = search_arguments(
            options,
            pad(sources, rows, bucket(len(sources[0]), buckets)),
            max_lengths[1],
            seeds=pad([seeds], 1, rows)[0] if options.sampling else None,
            prefixes=pad(prefixes, rows, prefix_columns) if prefix_columns else None,
            logit_bias=bias,
        )
        yield Batch(list(keys), arguments)


class Stages:
    """A search, compiled, over batches that all have the same number of rows.

    `kept_weights(layout)` gives the model's `step_weights`, laid out once for all calls; without
    it each call lays them out for itself. `workers` batches are decoded at once: much of a step on
    a small model keeps a single core busy, and another batch then has the other one.
    """

    def __init__(self, search, max_capacity: int, kept_weights=None, workers=1, with_xla=True):
        self._search, self._compiled = search, {}
        self._first_capacity = min(FIRST_CAPACITY, max_capacity)
        self._max_capacity = max_capacity
        self._kept_weights, self._workers, self._with_xla = kept_weights, workers, with_xla

    @property
    def compilations(self) -> int:
        """Programs that XLA has compiled for it."""
        return sum(each.compilations for pair in self._compiled.values() for each in pair)

    def run(self, batches: Iterable[Batch]) -> Iterator[tuple[Hashable, Hypotheses]]:
        """Yields a key and its `Hypotheses`, without the batch's axis, as sentences end."""
        batches, running = iter(batches), collections.deque()
        paused = collections.defaultdict(list)  # sentences, by capacity, source columns and rows
        with concurrent.futures.ThreadPoolExecutor(self._workers) as pool:
            while True:
                while len(running) < self._workers:
                    batch = self._next(paused) or next(batches, None)
                    if batch is None and not running:
                        batch = self._next(paused, only_full=False)
                    if batch is None:
                        break
                    self._functions(batch)  # made here, not by two workers at once
                    running.append(pool.submit(self._run_stage, batch))
                if not running:
                    return
                # In the order of their beginning: what is put together does not depend on which
                # batch is done first.
                batch, found = running.popleft().result()
                going_on = [any(each) for each in np.asarray(batch.state.running)]
                found = [np.asarray(each) for each in found]
                if any(going_on):
                    batch = batch._replace(state=keras.tree.map_structure(np.asarray, batch.state))
                shape = batch.state.ids.shape[2], *batch.arguments.source_ids.shape[::-1]
                for row, key in enumerate(batch.keys):
                    if going_on[row]:
                        paused[shape].append(batch.sentence(row))
                    else:
                        yield key, Hypotheses(*(each[row] for each in found))

    def stream(self, batch: Batch) -> Iterator[Hypotheses]:
        """Decodes a batch a token at a time; yields what is found so far, `(batch, …)`."""
        begin, proceed = self._functions(batch)
        state, found = begin(batch.arguments, np.array(1, "int32"))
        for tokens in range(1, self._max_capacity + 1):
            yield found
            if not np.asarray(state.running).any():
                return
            if tokens == state.ids.shape[2]:
                state = self._search.extended(state, min(2 * tokens, self._max_capacity))
            state, found = proceed(state, batch.arguments, np.array(tokens + 1, "int32"))

    def _functions(self, batch):  # `begin` and `proceed`, compiled
        layout = None
        if self._kept_weights is not None:
            one_row = len(batch.arguments.source_ids) == self._search.options.beams == 1
            layout = "one, kept" if one_row else "many, kept"
        if layout not in self._compiled:
            kept = () if layout is None else (self._kept_weights(layout),)
            self._compiled[layout] = tuple(
                Compiled(self._search.model, function, kept, self._with_xla)
                for function in (self._begin, self._search.proceed)
            )
        return self._compiled[layout]

    def _begin(self, arguments, stop_at, weights=None):
        return self._search.begin(arguments, self._first_capacity, stop_at, weights)

    def _run_stage(self, batch):
        begin, proceed = self._functions(batch)
        if batch.state is None:
            state, found = begin(batch.arguments, np.array(self._first_capacity, "int32"))
        else:
            capacity = min(2 * batch.state.ids.shape[2], self._max_capacity)
            state = self._search.extended(batch.state, capacity)
            state, found = proceed(state, batch.arguments, np.array(capacity, "int32"))
        return batch._replace(state=state), found

    def _next(self, paused, only_full=True):
        """A batch of paused sentences of one shape for their next stage, or `None`."""
        for shape, sentences in sorted(paused.items()):
            rows = shape[-1]
            if len(sentences) >= rows or not only_full:
                paused[shape] = sentences[rows:]
                if len(sentences) <= rows:
                    del paused[shape]
                return together(sentences[:rows], rows)
        return None


class Scheduler:
    """Searches and scorings of one model, each compiled when it is first asked for.

    Args:
        max_lengths: Most tokens of a source and of a target.
        frozen: Whether the weights will not change any more: they are then laid out once.
        workers: As for `Stages`.
        most: Sets of options that XLA compiles programs for. TensorFlow never frees what XLA has
            compiled (tensorflow#64170): further sets run as its ordinary graphs, a few times as
            slow, of which the last few are kept. JAX frees, and the last `most` are kept.
    """

    def __init__(self, model, max_lengths, frozen=False, workers=1, most: int = MOST_PROGRAMS):
        self._model, self._max_lengths = model, max_lengths
        self._vocabulary_size = model.config.output_vocabulary_size
        self._frozen, self._workers, self._weights = frozen, workers, {}
        self._most, self._lock = most, threading.Lock()
        self._compiled, self._graphs, self._freed = {}, {}, 0

    @property
    def compilations(self) -> int:
        """Programs that XLA has compiled so far."""
        kept = (*self._compiled.values(), *self._graphs.values())
        return self._freed + sum(each.compilations for each in kept)

    def search(self, jobs: Sequence[Job], options: DecodingOptions, batch_size: int) -> dict:
        """The `Hypotheses` of each job by its key, arrays without the batch's axis."""
        if not jobs:
            return {}
        return dict(self.stages(options).run(self._batches(jobs, options, batch_size)))

    def stream(self, job: Job, options: DecodingOptions) -> Iterator[Hypotheses]:
        """The `Hypotheses` of one job so far, after each token."""
        return self.stages(options).stream(next(self._batches([job], options, 1)))

    def stages(self, options: DecodingOptions) -> Stages:
        """The compiled search with these options."""
        lays_out = self._frozen and hasattr(self._model, "step_weights")
        kept_weights = self._kept_weights if lays_out else None
        search, longest = Search(self._model, options), self._max_lengths[1]
        make = functools.partial(Stages, search, longest, kept_weights, self._workers)
        return self._one_of_few(options.program_key, make)

    def scorer(self, options: DecodingOptions, alignment: bool) -> TeacherForcedScorer:
        """The compiled scoring with these options, with or without alignments."""
        if alignment and not self._model.config.heads_of("cross"):
            raise InputError("`alignment` needs attention, which the model has none of.")
        key = (options.attention_layer, options.attention_heads, alignment)
        make = functools.partial(TeacherForcedScorer, self._model, *key, self._max_lengths)
        return self._one_of_few(key, make)

    def _batches(self, jobs, options, batch_size):
        return batches(jobs, options, batch_size, self._max_lengths, self._vocabulary_size)

    def _one_of_few(self, key, make):
        frees = keras.backend.backend() == "jax"
        with self._lock:
            if key not in self._compiled and not frees and len(self._compiled) < self._most:
                self._compiled[key] = make(with_xla=True)
            if key in self._compiled:
                return self._compiled[key]
            # Taken out and put in again: the one asked for last is the last.
            self._graphs[key] = self._graphs.pop(key, None) or make(with_xla=False)
            if len(self._graphs) > (self._most if frees else _MOST_GRAPHS):
                self._freed += self._graphs.pop(next(iter(self._graphs))).compilations
            return self._graphs[key]

    def _kept_weights(self, layout):
        if layout not in self._weights:
            lay_out = Compiled(self._model, lambda: self._model.step_weights(layout))
            self._weights[layout] = lay_out()
        return self._weights[layout]
