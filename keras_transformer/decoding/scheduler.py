"""Many sentences, one model: batches of few shapes, and the compiled programs that are kept."""

import functools
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import keras
import numpy as np

from keras_transformer.decoding.compiled import Compiled
from keras_transformer.decoding.results import NEG_INF, Hypotheses
from keras_transformer.decoding.scoring import TeacherForcedScorer
from keras_transformer.decoding.search import (
    FIRST_CAPACITY,
    Search,
    SearchArguments,
    result_capacity,
    search_arguments,
)
from keras_transformer.errors import InputError
from keras_transformer.inputs import bucket, in_batches, length_buckets, pad, row_count
from keras_transformer.options import DecodingOptions

# Sets of options whose programs are kept: 30 MB, also of a tiny model, for each batch shape.
MOST_PROGRAMS = 64
_MOST_GRAPHS = 8
_PREFIX_MULTIPLE = 16


class Job(NamedTuple):
    """A sentence to be searched."""

    source: list[int]  # including EOS
    seed: int = 0  # for sampling
    prefix: Sequence[int] = ()  # what its translation must begin with


class Batch(NamedTuple):
    """Sentences to be decoded together."""

    sentences: int  # further rows are padding
    arguments: SearchArguments
    capacity: int  # tokens that the longest translation may have, or more


def batch_of(
    jobs: Sequence[Job],
    options: DecodingOptions,
    max_lengths: tuple[int, int],
    model,
    rows: int,
    longest_prefix: int = 0,
) -> Batch:
    """Pads jobs to `rows`, and their ids to few lengths; the arguments of one compiled call."""
    columns = bucket(max(len(job.source) for job in jobs), length_buckets(max_lengths[0]))
    prefix_columns = -(-longest_prefix // _PREFIX_MULTIPLE) * _PREFIX_MULTIPLE
    bias = None
    if options.banned_ids or options.logit_bias:
        bias = np.zeros(model.config.output_vocabulary_size, "float32")
        for each, value in (*options.logit_bias, *((id, NEG_INF) for id in options.banned_ids)):
            bias[each] = max(value, NEG_INF)
    sources, seeds, prefixes = zip(*jobs, strict=True)
    arguments = search_arguments(
        options,
        pad(sources, rows, columns),
        max_lengths[1],
        seeds=pad([seeds], 1, rows)[0] if options.sampling else None,
        prefixes=pad(prefixes, rows, prefix_columns) if prefix_columns else None,
        logit_bias=bias,
    )
    # One of few capacities, since each has its program: not smaller for smaller limits.
    ratio = max(options.max_length_ratio, DecodingOptions.max_length_ratio)
    forced_columns = columns if getattr(model, "continues_source", False) else prefix_columns
    capacity = result_capacity(columns, ratio, max_lengths[1], forced_columns)
    capacity = FIRST_CAPACITY * row_count(-(-capacity // FIRST_CAPACITY))
    return Batch(len(jobs), arguments, min(capacity, max_lengths[1]))


class CompiledSearch:
    """A search with one set of options, compiled for each shape of a batch.

    `kept_weights(one_row)` gives the model's `step_weights`, laid out once for all calls; without
    it each call lays them out for itself.
    """

    def __init__(self, model, options: DecodingOptions, kept_weights=None, with_xla=True):
        self._model, self._options, self._with_xla = model, options, with_xla
        self._kept_weights, self._compiled = kept_weights, {}
        self._lock = threading.Lock()

    @property
    def compilations(self) -> int:
        """Programs that XLA has compiled for it."""
        return sum(each.compilations for each in self._compiled.values())

    def run(self, batch: Batch) -> list[Hypotheses]:
        """The `Hypotheses` of each sentence, arrays without the batch's axis."""
        found = [np.asarray(each) for each in self._function("run", batch)(batch.arguments)]
        return [Hypotheses(*(each[row] for each in found)) for row in range(batch.sentences)]

    def stream(self, batch: Batch) -> Iterator[Hypotheses]:
        """Decodes a batch a token at a time; yields what is found so far, `(batch, …)`."""
        state = self._function("begin", batch)(batch.arguments)
        proceed = self._function("proceed", batch)
        for tokens in range(1, batch.capacity + 1):
            state, found = proceed(batch.arguments, state, np.array(tokens, "int32"))
            yield found
            if not np.asarray(state.running).any():
                return

    def _function(self, name, batch):
        """A method of `Search`, compiled, with the batch's capacity and the kept weights."""
        keeps = self._kept_weights is not None and name != "begin"
        one_row = keeps and len(batch.arguments.source_ids) == self._options.beams == 1
        key, bound = (name, batch.capacity, one_row), (batch.capacity,) * (name != "proceed")

        def function(arguments, *others):
            # The kept weights come last.
            others, weights = (others[:-1], others[-1]) if keeps else (others, None)
            search = Search(self._model, self._options, arguments, weights)
            return getattr(search, name)(*others, *bound)

        with self._lock:
            if key not in self._compiled:
                kept = (self._kept_weights(one_row),) if keeps else ()
                self._compiled[key] = Compiled(self._model, function, kept, self._with_xla)
            return self._compiled[key]


class Scheduler:
    """Searches and scorings of one model, each compiled when it is first asked for.

    Args:
        max_lengths: Most tokens of a source and of a target.
        frozen: Whether the weights will not change any more: they are then laid out once.
        workers: Batches that are decoded at once: much of a step on a small model keeps a single
            core busy, and another batch then has the other one.
        most: Sets of options that XLA compiles programs for. TensorFlow never frees what XLA has
            compiled (tensorflow#64170): further sets run as its ordinary graphs, a few times as
            slow, of which the last few are kept. JAX frees, and the last `most` are kept.
    """

    def __init__(self, model, max_lengths, frozen=False, workers=1, most: int = MOST_PROGRAMS):
        self._model, self._max_lengths = model, max_lengths
        self._frozen, self._workers, self._weights = frozen, workers, {}
        self._most, self._lock = most, threading.Lock()
        self._compiled, self._graphs, self._freed = {}, {}, 0

    @property
    def compilations(self) -> int:
        """Programs that XLA has compiled so far."""
        kept = (*self._compiled.values(), *self._graphs.values())
        return self._freed + sum(each.compilations for each in kept)

    def search(
        self, jobs: Sequence[Job], options: DecodingOptions, batch_size: int
    ) -> list[Hypotheses]:
        """The `Hypotheses` of each job, arrays without the batch's axis."""
        compiled, rows = self.compiled(options), row_count(min(len(jobs), batch_size))
        longest_prefix = max((len(job.prefix) for job in jobs), default=0)

        def run(places):
            chosen = [jobs[place] for place in places]
            return compiled.run(self._batch(chosen, options, rows, longest_prefix))

        lengths = [len(job.source) for job in jobs]
        return in_batches(lengths, batch_size, [run] * self._workers)

    def stream(self, job: Job, options: DecodingOptions) -> Iterator[Hypotheses]:
        """The `Hypotheses` of one job so far, after each token."""
        batch = self._batch([job], options, 1, len(job.prefix))
        return self.compiled(options).stream(batch)

    def compiled(self, options: DecodingOptions) -> CompiledSearch:
        """The compiled search with these options."""
        lays_out = self._frozen and hasattr(self._model, "step_weights")
        kept_weights = self._kept_weights if lays_out else None
        make = functools.partial(CompiledSearch, self._model, options, kept_weights)
        return self._one_of_few(options.program_key, make)

    def scorer(self, options: DecodingOptions, alignment: bool) -> TeacherForcedScorer:
        """The compiled scoring with these options, with or without alignments."""
        if alignment and not self._model.config.heads_of("cross"):
            raise InputError("`alignment` needs attention, which the model has none of.")
        key = (options.attention_layer, options.attention_heads, alignment)
        make = functools.partial(TeacherForcedScorer, self._model, *key, self._max_lengths)
        return self._one_of_few(key, make)

    def _batch(self, jobs, options, rows, longest_prefix):
        return batch_of(jobs, options, self._max_lengths, self._model, rows, longest_prefix)

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

    def _kept_weights(self, one_row):
        if one_row not in self._weights:
            lay_out = Compiled(self._model, lambda: self._model.step_weights(one_row, kept=True))
            self._weights[one_row] = lay_out()
        return self._weights[one_row]
