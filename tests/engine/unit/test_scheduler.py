"""Batches of few shapes, loops that give what one loop gives, kept programs."""

import functools
import gc
import sys
import weakref

import keras
import numpy as np
import pytest
from decoding_oracles import as_lists, check_equal, varied_sources

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.base import memory
from keras_transformer.decoding import DecodingOptions, Hypotheses
from keras_transformer.engine.programs import Compiled
from keras_transformer.engine.scheduler import Job, Scheduler
from keras_transformer.text.shortlist import Shortlist

JOBS = [Job([7 + i] * length, 100 + i) for i, length in enumerate((40, 19, 17))]
SHORT_JOBS = [Job([5, 2]), Job([6, 7, 2])]
# Without XLA where it is not the promise: TensorFlow never frees its programs.
IN_GRAPHS = {"max_compiled": 0 if keras.backend.backend() == "tensorflow" else 64}


def batch(jobs=JOBS, max_lengths=(50, 29), **options):
    return Scheduler(None, max_lengths).batch(jobs, DecodingOptions(**options), rows=4)


def test_a_batch_is_padded_to_few_shapes():
    # 40 tokens go into 48 columns, 3 into 16; up to 4 phrases of 9 tokens into 4 of 16.
    assert batch()[0].source_ids.shape == (4, 48)
    assert batch(SHORT_JOBS)[0].source_ids.shape == (4, 16)
    phrases = ((5, 6), (7,), (5,) * 9)
    jobs = [JOBS[0], JOBS[1]._replace(phrases=phrases), JOBS[2]._replace(phrases=phrases[:1])]
    assert batch(jobs)[0].phrases.shape == (4, 4, 16)
    assert batch()[0].phrases is None


CAPACITIES = [({}, (128, 64))]  # of 2 · 48 + 10 and 2 · 16 + 10 tokens
CAPACITIES += [({"max_length_ratio": 1.0, "max_length": 20}, (128, 64))]
CAPACITIES += [({"max_length_ratio": 3.0}, (150, 64))]
CAPACITIES += [({"max_length_ratio": float("inf")}, (150, 150))]


@pytest.mark.parametrize("options, capacities", CAPACITIES)
def test_capacities_are_few_and_suffice_for_the_longest_translation(options, capacities):
    batches = (batch(jobs, max_lengths=(50, 150), **options) for jobs in (JOBS, SHORT_JOBS))
    assert tuple(capacity for _, capacity in batches) == capacities


LONGEST = 23
SCHEDULER = sys.modules[Scheduler.__module__]
IN_LOOPS = {**IN_GRAPHS, "first_capacity": 12}  # of 12 and 23 tokens


@pytest.fixture(scope="module", autouse=True)
def whole_batches():
    """No batch shrinks."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(SCHEDULER, "FEWEST_ROWS", 16)
        yield


def jobs_of(source, phrases=(), prefix=()):
    jobs = [Job(row[row != 0].tolist(), seed) for seed, row in enumerate(source)]
    return [
        job._replace(phrases=phrases[: 1 + job.seed % 3], prefix=prefix[: job.seed % 3])
        for job in jobs
    ]


def search_in_batches(model, source, options, rows, first_capacity=12, **of_jobs):
    """The hypotheses of all sentences."""
    shape = {**IN_GRAPHS, "first_capacity": first_capacity}
    lists = [range(4 + i % 3, 17, 2) for i in range(17)]
    scheduler = Scheduler(model, (16, LONGEST), shortlist=Shortlist([7], lists), **shape)
    hypotheses = scheduler.search(jobs_of(source, **of_jobs), options, rows)
    # Arrays have the capacity of the last loop of a sentence.
    return Hypotheses(*(stacked(arrays) for arrays in zip(*hypotheses, strict=True)))


def stacked(arrays):
    if np.ndim(arrays[0]) < 2:
        return np.stack(arrays)
    return np.stack([np.pad(rows, ((0, 0), (0, LONGEST - rows.shape[1]))) for rows in arrays])


# All that a state may hold grows between two loops, and is taken for some of the sentences;
# `test_scheduler_properties.py` has greedy search and samples.
OPTIONS = {
    "phrases": dict(beam_size=4, n_best=2, early_stopping=False),
    "candidates": dict(beam_size=4, n_best=4, shortlist=True, no_repeat_ngram_size=2),
}
OF_JOBS = {"phrases": {"phrases": ((5, 9), (9, 4, 4))}, "candidates": {"prefix": (6, 8)}}
VARIANTS = {"phrases": "rotary"}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_loops_of_growing_capacity_and_fewer_rows_give_what_one_loop_gives(
    varied, name, monkeypatch
):
    options, of_jobs = DecodingOptions(**OPTIONS[name]), OF_JOBS.get(name, {})
    model, source = varied(VARIANTS.get(name, "pre_norm")), varied_sources(13)
    growing = search_in_batches(model, source, options, 5, **of_jobs)
    rows, of_sentences = set(), SCHEDULER._of_sentences

    def recorded(arguments, sentences):
        rows.add(len(sentences))
        return of_sentences(arguments, sentences)

    with monkeypatch.context() as patched:
        patched.setattr(SCHEDULER, "FEWEST_ROWS", 2)
        patched.setattr(SCHEDULER, "_of_sentences", recorded)
        shrinking = search_in_batches(model, source, options, 4, **of_jobs)
    assert rows == {4, 2}
    whole = search_in_batches(model, source, options, 13, LONGEST, **of_jobs)
    check_equal(growing, as_lists(whole), 1e-5)
    check_equal(shrinking, as_lists(whole), 1e-5)
    lengths = (np.asarray(whole.ids)[:, 0] != 0).sum(axis=1)
    # Some end in the first loop, some in the last: this says something.
    assert (lengths <= 12).any() and (lengths > 12).any()


@pytest.mark.tensorflow
def test_a_stream_grows_a_token_at_a_time_to_the_whole(varied):
    options, longest = DecodingOptions(beam_size=1), 0
    scheduler = Scheduler(varied("post_norm"), (16, LONGEST), **IN_LOOPS)
    for job in jobs_of(varied_sources(13))[:3]:
        (whole,) = scheduler.search([job], options, 1)
        steps = [np.asarray(step.ids)[0, 0] for step in scheduler.stream(job, options)]
        for tokens, ids in enumerate(steps, start=1):
            np.testing.assert_array_equal(ids[:tokens], whole.ids[0, :tokens])
            assert not ids[tokens:].any()
        assert len(steps) == (whole.ids[0] != 0).sum()
        longest = max(longest, len(steps))
    assert longest > 12


@pytest.mark.tensorflow
def test_batches_that_are_decoded_at_once_change_nothing(varied):
    jobs, options = jobs_of(varied_sources(13)), DecodingOptions(beam_size=1)
    make = functools.partial(Scheduler, varied("post_norm"), (16, LONGEST), **IN_LOOPS)
    alone, together = (make(workers=workers).search(jobs, options, 3) for workers in (1, 3))
    for received, expected in zip(together, alone, strict=True):
        np.testing.assert_array_equal(received.ids, expected.ids)
        np.testing.assert_allclose(received.scores, expected.scores, atol=1e-5)


@pytest.fixture
def tiny():
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    return Transformer(
        TransformerConfig(11, model_dim=4, num_heads=2, intermediate_dim=3, **layers)
    )


def test_options_that_are_no_part_of_a_program_share_it(tiny):
    programs, plain = Scheduler(tiny, (16, 16)), DecodingOptions(beam_size=3)
    changes = [{"length_penalty": 1.3}, {"max_length": 7}, {"min_length": 2}]
    for change in [*changes, {"banned_ids": (5,)}, {"max_length_ratio": 1.1}]:
        same = DecodingOptions(beam_size=3, **change)
        assert programs.compiled(same) is programs.compiled(plain)
    changes = [{"beam_size": 2}, {"n_best": 2}, {"early_stopping": False}, {"allow_unknown": True}]
    for change in [*changes, {"no_repeat_ngram_size": 2}, {"beam_size": 1, "sampling": True}]:
        other = DecodingOptions(**{"beam_size": 3, **change})
        assert programs.compiled(other) is not programs.compiled(plain)
        assert programs.compiled(other) is programs.compiled(other)
    assert programs.scorer(True) is programs.scorer(True)
    assert programs.scorer(True) is not programs.scorer(False)
    assert programs.compilations == 0


def hypotheses_of(programs, size):
    options = DecodingOptions(beam_size=1, no_repeat_ngram_size=size)
    (hypotheses,) = programs.search([Job([5, 7, 2])], options, 1)
    return hypotheses


@pytest.mark.tensorflow  # JAX keeps as many as it is told
def test_of_many_graphs_those_of_the_last_uses_stay(tiny):
    scheduler = Scheduler(tiny, (8, 6), max_compiled=0)

    def graph(size):
        return scheduler.compiled(DecodingOptions(beam_size=1, no_repeat_ngram_size=size))

    graphs = {size: graph(size) for size in range(2, 10)}
    assert graph(2) is graphs[2]  # Now the graph of 3 was used the longest time ago.
    graph(10)
    for size in (2, *range(4, 10)):
        assert graph(size) is graphs[size]
    assert graph(3) is not graphs[3]


@pytest.mark.slow
@pytest.mark.tensorflow
def test_what_comes_after_the_most_is_no_program_and_is_let_go(tiny):
    gc.freeze()  # What other tests have left is not searched: it takes half a minute.
    few, many = (Scheduler(tiny, (8, 6), max_compiled=count) for count in (1, 64))
    first = few.compiled(DecodingOptions(beam_size=1, no_repeat_ngram_size=2))
    references = []
    for size in (2, 3):
        received, expected = hypotheses_of(few, size), hypotheses_of(many, size)
        np.testing.assert_array_equal(received.ids, expected.ids)
        np.testing.assert_allclose(received.scores, expected.scores, rtol=1e-5)
    assert few.compiled(DecodingOptions(beam_size=1, no_repeat_ngram_size=2)) is first
    assert (few.compilations, many.compilations) == (1, 2)
    for size in range(3, 33):
        options = DecodingOptions(beam_size=1, no_repeat_ngram_size=size)
        references.append(weakref.ref(few.compiled(options)))
    gc.collect()
    assert 0 < sum(reference() is not None for reference in references) < 10
    assert few.compilations == 1


@pytest.mark.jax  # only JAX frees what it compiled
def test_where_programs_can_be_freed_the_oldest_is(tiny):
    few = Scheduler(tiny, (8, 6), max_compiled=1)
    for size in (2, 3, 3):
        hypotheses_of(few, size)
    assert few.compilations == 2
    hypotheses_of(few, 2)
    assert few.compilations == 3


def test_a_large_model_has_no_copies_of_its_weights_and_the_same_translations(monkeypatch, varied):
    """Its programs are compiled by a search of one token, before caches fill the memory."""
    options, jobs = DecodingOptions(beam_size=4), jobs_of(varied_sources(5))
    shape = {"frozen": True, **IN_GRAPHS}

    def search():
        scheduler = Scheduler(varied("pre_norm"), (16, LONGEST), **shape)
        hypotheses = scheduler.search(jobs, options, 2)
        whole = Hypotheses(*(stacked(arrays) for arrays in zip(*hypotheses, strict=True)))
        return scheduler, as_lists(whole)

    _, expected = search()
    max_lengths, run = [], Compiled.__call__

    def recording(self, arguments, *others, **static):
        max_lengths.append(int(arguments.max_length))
        return run(self, arguments, *others, **static)

    times_given_back = []
    monkeypatch.setattr(memory, "give_back", lambda: times_given_back.append(len(max_lengths)))
    monkeypatch.setattr(memory, "LARGE_MODEL_BYTES", 1)
    monkeypatch.setattr(Compiled, "__call__", recording)
    scheduler, received = search()
    check_equal(received, expected, 1e-5)
    assert scheduler._weights == {}
    assert max_lengths == [1, LONGEST, LONGEST, LONGEST]
    assert {*times_given_back} == {1}  # before the first whole search, and never again
