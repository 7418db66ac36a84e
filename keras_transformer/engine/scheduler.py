"""Searches many sentences with one model: batches of few shapes, and their compiled functions."""

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import keras
import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.memory import is_large
from keras_transformer.decoding.arguments import SearchArguments, search_arguments
from keras_transformer.decoding.candidates import Candidates
from keras_transformer.decoding.results import Hypotheses
from keras_transformer.decoding.search import (
    FIRST_CAPACITY,
    Search,
    bias_of,
    result_capacity,
    score_targets,
)
from keras_transformer.decoding.search_options import DecodingOptions
from keras_transformer.engine.device import DevicePlan, device_plan
from keras_transformer.engine.inputs import (
    Job,
    bucket,
    in_batches,
    length_buckets,
    pad,
    row_count,
)
from keras_transformer.engine.programs import Compiled
from keras_transformer.text.shortlist import compiled_size, union_of

# Maximum number of sets of options whose compiled functions stay in memory. Each batch shape of a
# set takes 30 MB, even for a tiny model.
MAX_PROGRAMS = 64
_MAX_UNCOMPILED = 8
FEWEST_ROWS = 8  # of a batch that shrinks
_PREFIX_MULTIPLE = 16
_FEWEST_PHRASES, _SHORTEST_PHRASE = 4, 8  # smallest capacity of arrays of phrases


class SearchCall(NamedTuple):
    """Call of a method of `Search`: what its compiled function depends on, besides shapes.

    Attributes:
        method: Method of `Search`.
        capacity: The method's argument of this name; None for a method without it.
        num_candidates: Number of the batch's candidates, which a traced function does not know;
            None without a shortlist.
        one_row: Whether a step reads one hypothesis, for which weights have another layout.
    """

    method: Callable
    capacity: int | None
    num_candidates: int | None
    one_row: bool

    @classmethod
    def of(
        cls,
        arguments: SearchArguments,
        options: DecodingOptions,
        method: Callable,
        capacity: int | None = None,
    ) -> "SearchCall":
        """Returns the call of a method for a batch."""
        candidates = arguments.candidates
        num_candidates = None if candidates is None else len(candidates.ids)
        one_row = len(arguments.source_ids) == options.beams == 1
        return cls(method, capacity, num_candidates, one_row)

    def search_arguments(self, arguments: SearchArguments) -> SearchArguments:
        """Returns the arguments of a traced function, with the number of candidates."""
        candidates, count = arguments.candidates, self.num_candidates
        if candidates is None or count is None:
            return arguments
        return arguments._replace(candidates=candidates.of_size(count))

    def run(self, search: Search, method_arguments: tuple):
        """Calls the method."""
        if self.capacity is None:
            return self.method(search, *method_arguments)
        return self.method(search, *method_arguments, capacity=self.capacity)


class Scheduler:
    """Searches and scores with one model; compiles functions at their first use.

    Args:
        model: A model of this package, or any other `decoding.SearchModel`.
        max_lengths: Maximum numbers of tokens of a source and of a target.
        frozen: Whether the weights will not change any more, so that they are prepared once.
        workers: Number of batches that are decoded at once. Much of a step on a small model keeps
            only one core busy, so that another batch can use the other core.
        max_compiled: Maximum number of sets of options that XLA compiles functions for. TensorFlow
            never frees what XLA has compiled (tensorflow#64170). So further sets run as its
            ordinary graphs, a few times as slow; the last few graphs stay in memory. JAX frees
            compiled functions, and the functions of the last `max_compiled` sets stay in memory.
        shortlist: `Shortlist` of searches with this option.
        first_capacity: As in `Search`; by default the plan's.
        plan: What suits the device; by default the plan of the device in use.
    """

    def __init__(
        self,
        model,
        max_lengths,
        frozen=False,
        workers=1,
        max_compiled: int = MAX_PROGRAMS,
        shortlist=None,
        first_capacity: int | None = None,
        plan: DevicePlan | None = None,
    ):
        self._model, self._max_lengths, self._shortlist = model, max_lengths, shortlist
        self._plan = plan or device_plan()
        self._first_capacity = first_capacity or self._plan.first_capacity or FIRST_CAPACITY
        self._buckets = [
            length_buckets(max_length)
            for max_length in max_lengths  # of source and target
        ]
        self._workers, self._weights, self._is_large = workers, {}, is_large(model)
        # Copies of a large model's weights would take more memory than they save time.
        self._frozen = frozen and not self._is_large
        self._max_compiled, self._lock = max_compiled, threading.Lock()
        self._compiled, self._uncompiled, self._freed = {}, {}, 0

    @property
    def compilations(self) -> int:
        """Number of functions that XLA has compiled so far."""
        programs = (*self._compiled.values(), *self._uncompiled.values())
        return self._freed + sum(program.compilations for program in programs)

    def search(
        self,
        jobs: Sequence[Job],
        options: DecodingOptions,
        batch_size: int,
        least_candidates: int = 0,
    ) -> list[Hypotheses]:
        """Returns the `Hypotheses` of each job, arrays without the batch's axis.

        A list of candidates has room for at least `least_candidates`. Sentences with phrases need
        another strategy, and so separate batches: other sentences in a batch change no result.
        """
        results: dict[int, Hypotheses] = {}
        for with_phrases in (False, True):
            indices = [i for i, job in enumerate(jobs) if bool(job.phrases) == with_phrases]
            if indices:
                hypotheses = self._search_batches(
                    [jobs[i] for i in indices], options, batch_size, least_candidates
                )
                results |= zip(indices, hypotheses, strict=True)
        return [results[index] for index in range(len(jobs))]

    def _search_batches(self, jobs, options, batch_size, least_candidates):
        """Returns the `Hypotheses` of jobs that have the same strategy."""
        compiled, rows = self.compiled(options), self._row_count(len(jobs), batch_size)
        longest_prefix = max((len(job.prefix) for job in jobs), default=0)
        # A single batch is not worth the compilation of more programs.
        shrinks = self._model.can_shrink and len(jobs) > rows > FEWEST_ROWS
        shrinks = shrinks and self._plan.can_shrink
        lengths = [len(job.source) for job in jobs]
        buckets = self._few_buckets(lengths, batch_size)

        def run(indices):
            batch_jobs = [jobs[index] for index in indices]
            arguments, capacity = self.batch(
                batch_jobs, options, rows, longest_prefix, least_candidates, buckets
            )
            if shrinks:
                call = functools.partial(_call, compiled, options)
                sizes = min(self._first_capacity, capacity), capacity
                return _search_shrinking(call, arguments, *sizes, len(indices))
            if self._is_large:
                # Compilers leave as much memory as a search takes: it is given back before that.
                one_token = {"min_length": np.int32(0), "max_length": np.int32(1)}
                start = arguments._replace(**one_token)
                _call(compiled, options, start, method=Search.run, capacity=capacity, is_new=True)
            hypotheses = _call(compiled, options, arguments, method=Search.run, capacity=capacity)
            return _by_sentence(hypotheses, len(indices))

        return in_batches(lengths, batch_size, [run] * self._workers)

    def _few_buckets(self, lengths, batch_size):
        """Returns the lengths that sources are padded to, as few as suit the device."""
        buckets = self._buckets[0]
        if not self._plan.has_few_programs:
            return buckets
        longest_of_batches = sorted(lengths, reverse=True)[::batch_size]
        return self._plan.lengths_for([bucket(length, buckets) for length in longest_of_batches])

    def _row_count(self, count, batch_size):
        """Returns the rows of each batch of `count` sentences."""
        rows = row_count(min(count, batch_size))
        # Rows cost little where the device names their numbers, programs much.
        return next((size for size in self._plan.rows if size >= rows), rows)

    def stream(self, job: Job, options: DecodingOptions) -> Iterator[Hypotheses]:
        """Yields the `Hypotheses` of one job so far, `(1, …)`, after each token."""
        arguments, capacity = self.batch([job], options, 1, len(job.prefix))
        run = functools.partial(_call, self.compiled(options), options, arguments)
        state = run(method=Search.begin, capacity=capacity)
        for tokens in range(1, capacity + 1):
            state, hypotheses = run(state, np.array(tokens, "int32"), method=Search.proceed)
            yield hypotheses
            if not np.asarray(state.running).any():
                return

    def score(
        self,
        pairs: Sequence[tuple[list, list]],
        batch_size: int,
        alignment: bool = False,
    ) -> list[tuple]:
        """Scores pairs of source and target ids, including EOS, by teacher forcing.

        Returns for each pair a list of log-probabilities, and the alignment `(target, source)` or
        `None`.
        """
        few = self._plan.has_few_programs
        longest_of_all = [max(map(len, ids)) for ids in zip(*pairs, strict=True)]
        if self._plan.scored_logits is not None:
            columns = bucket(longest_of_all[1], self._buckets[1])
            logits = columns * self._model.config.output_vocabulary_size  # of a pair
            batch_size = min(batch_size, max(1, self._plan.scored_logits // logits))
        compiled, rows = self.scorer(alignment), row_count(min(len(pairs), batch_size))

        def run(indices):
            sides = list(zip(*(pairs[index] for index in indices), strict=True))
            longest = longest_of_all if few else [max(map(len, ids)) for ids in sides]
            padded = [  # A target of the maximum length may follow a forced token.
                pad(ids, rows, max(length, bucket(length, buckets)))
                for ids, length, buckets in zip(sides, longest, self._buckets, strict=True)
            ]
            by_token, *attention = (np.asarray(array) for array in compiled(*padded))
            for row, index in enumerate(indices):
                source, target = map(len, pairs[index])
                aligned = attention[0][row, :target, :source].copy() if attention else None
                yield by_token[row, :target].tolist(), aligned

        lengths = [(len(source), len(target)) for source, target in pairs]
        return in_batches(lengths, batch_size, [run])

    def batch(
        self,
        jobs: Sequence[Job],
        options: DecodingOptions,
        rows: int,
        longest_prefix: int = 0,
        least_candidates: int = 0,
        buckets: Sequence[int] | None = None,
    ) -> tuple[SearchArguments, int]:
        """Pads jobs to `rows`, and their ids to few lengths, by default the lengths of all calls.

        Returns:
            The arguments of one compiled call, and its capacity: at least the maximum number of
            tokens of a translation in the batch.
        """
        columns = bucket(max(len(job.source) for job in jobs), buckets or self._buckets[0])
        prefix_columns = -(-longest_prefix // _PREFIX_MULTIPLE) * _PREFIX_MULTIPLE
        sources, seeds, prefixes, phrases, directions = zip(*jobs, strict=True)
        forced_ids = [direction.target_prefix for direction in directions]
        longest, candidates = self._max_lengths[1], None
        if options.shortlist:
            candidates = self._candidates(jobs, options, rows, least_candidates)
        arguments = search_arguments(
            options,
            pad(sources, rows, columns),
            longest,
            seeds=pad([seeds], 1, rows)[0] if options.sampling else None,
            prefixes=pad(prefixes, rows, prefix_columns) if prefix_columns else None,
            logit_bias=bias_of(options, self._model),
            phrases=_pad_phrases(phrases, rows) if any(phrases) else None,
            candidates=candidates,
            forced_ids=pad(forced_ids, rows, 1)[:, 0] if any(forced_ids) else None,
        )
        # Few capacities, because each needs a compiled function. So smaller limits than the default
        # do not make the capacity smaller.
        ratio = max(options.max_length_ratio, DecodingOptions.max_length_ratio)
        in_phrases = max(sum(map(len, phrases_of_row)) for phrases_of_row in phrases)
        capacity = result_capacity(columns, ratio, longest, prefix_columns + in_phrases)
        first = self._first_capacity
        capacity = first * row_count(-(-capacity // first))
        return arguments, min(capacity, longest)

    def _candidates(self, jobs, options, rows, least):
        biased_ids = [*dict(options.logit_bias), *options.banned_ids]
        lists = []
        for job in jobs:
            # Not the token of a language, which the decoder only reads.
            chosen_ids = itertools.chain(job.prefix, *job.phrases, biased_ids)
            lists.append(self._shortlist.candidates_of(job.source, chosen_ids))
        vocabulary_size = self._model.config.output_vocabulary_size
        return Candidates(
            *union_of(lists, rows, lambda n: compiled_size(n, vocabulary_size, least))
        )

    def compiled(self, options: DecodingOptions) -> Compiled:
        """Returns the methods of `Search` with these options, compiled by shape and `SearchCall`.

        The function takes the arguments of a search, and a tuple of the method's own arguments.
        """

        def function(arguments, method_arguments, weights, *, call: SearchCall):
            arguments, first = call.search_arguments(arguments), self._first_capacity
            search = Search(self._model, options, arguments, weights, first_capacity=first)
            return call.run(search, method_arguments)

        def outer_arguments(call: SearchCall):
            needs_weights = self._frozen and call.method is not Search.begin
            return (self._weights_of(call.one_row) if needs_weights else None,)

        return self._compiled_for(options.program_key, function, outer_arguments)

    def scorer(self, alignment: bool) -> Compiled:
        """Returns the compiled scoring, with or without alignments."""
        if alignment and not self._model.config.heads_of("cross"):
            raise InputError("`alignment` needs attention, which the model lacks.")

        def function(source_ids, target_ids):
            scored = score_targets(self._model, source_ids, target_ids)
            return scored if alignment else scored[:1]

        return self._compiled_for(("score", alignment), function)

    def _compiled_for(self, key, function, outer_arguments=None):
        frees = keras.backend.backend() == "jax"
        make = functools.partial(Compiled, self._model, function, outer_arguments)
        with self._lock:
            if key not in self._compiled and not frees and len(self._compiled) < self._max_compiled:
                self._compiled[key] = make(with_xla=True)
            if key in self._compiled:
                return self._compiled[key]
            # Removed and inserted again, so that the dict's order is the order of the last uses.
            self._uncompiled[key] = self._uncompiled.pop(key, None) or make(with_xla=False)
            if len(self._uncompiled) > (self._max_compiled if frees else _MAX_UNCOMPILED):
                self._freed += self._uncompiled.pop(next(iter(self._uncompiled))).compilations
            return self._uncompiled[key]

    def _weights_of(self, one_row):
        if one_row not in self._weights:
            prepare = Compiled(self._model, lambda: self._model.step_weights(one_row, cached=True))
            self._weights[one_row] = prepare()
        return self._weights[one_row]


def _call(compiled, options, arguments, *method_arguments, method, capacity=None, is_new=False):
    """Calls a method of `Search` for a batch; with `is_new` only if that compiles its program."""
    call = SearchCall.of(arguments, options, method, capacity)
    if is_new and compiled.has_program(arguments, method_arguments, call=call):
        return None
    return compiled(arguments, method_arguments, call=call)


def _search_shrinking(call, arguments, first_capacity, capacity, count):
    """Searches a batch; when half of its sentences have ended, half of its rows continue.

    So few steps are computed for sentences that have ended. `call` runs a method of `Search`.
    Returns the `Hypotheses` of the first `count` sentences.
    """
    results, size, growth = {}, 1, first_capacity - 1
    state = call(arguments, method=Search.begin, capacity=size)
    sentences = rows = np.arange(len(arguments.source_ids))
    while True:
        # `rows` of the state are its next sentences.
        sentences, size, num_rows = sentences[rows], size + growth, len(rows)
        shrink_to = num_rows // 2 if num_rows > FEWEST_ROWS else 0
        state, hypotheses = call(
            _of_sentences(arguments, sentences),
            state,
            rows.astype("int32"),
            np.zeros(growth, "int8"),
            np.int32(shrink_to),
            method=Search.continue_block,
        )
        results |= zip(sentences, _by_sentence(hypotheses, num_rows), strict=True)
        is_left = np.asarray(state.running).any(axis=1)
        if not is_left.any():
            return [results[index] for index in range(count)]
        growth = min(size, capacity - size) if int(state.position) == size else 0
        # Those that are left come first, then ended ones that fill the rows.
        rows = np.argsort(~is_left, kind="stable")[
            : shrink_to if is_left.sum() <= shrink_to else num_rows
        ]


def _of_sentences(arguments, sentences):
    """Returns the arguments of some sentences."""
    names = ("source_ids", "seeds", "prefixes", "phrases", "forced_ids")
    arrays = {name: getattr(arguments, name) for name in names}
    taken = {name: array[sentences] for name, array in arrays.items() if array is not None}
    if (candidates := arguments.candidates) is not None:
        taken["candidates"] = candidates._replace(mask=candidates.mask[sentences])
    return arguments._replace(**taken)


def _by_sentence(hypotheses, count):
    """Returns the `Hypotheses` of each of the first `count` sentences, as arrays of NumPy."""
    arrays = [np.asarray(array) for array in hypotheses]
    return [Hypotheses(*(array[row] for array in arrays)) for row in range(count)]


def _pad_phrases(phrases, rows):
    """Pads the phrases of each job to int32 `(rows, phrases, length)`, of few shapes."""
    count = row_count(max(_FEWEST_PHRASES, *map(len, phrases)))
    length = row_count(max(_SHORTEST_PHRASE, *(len(ids) for row in phrases for ids in row)))
    padded = [
        (*phrases_of_row, *[()] * (count - len(phrases_of_row))) for phrases_of_row in phrases
    ]
    return pad([*itertools.chain(*padded)], rows * count, length).reshape(rows, count, length)
