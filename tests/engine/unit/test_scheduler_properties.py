"""Batches of drawn jobs, and what a job gets whatever is beside it."""

import types

import keras
import numpy as np
import pytest
from decoding_oracles import varied_sources
from keras import ops

from keras_transformer.decoding import Hypotheses, SearchModel
from keras_transformer.decoding.arguments import search_arguments
from keras_transformer.decoding.search import Search
from keras_transformer.decoding.search_options import DecodingOptions
from keras_transformer.engine.inputs import Job
from keras_transformer.engine.scheduler import Scheduler, _search_shrinking
from keras_transformer.layers.masks import NEG_INF
from keras_transformer.text.languages import Direction
from keras_transformer.text.shortlist import Shortlist


def _drawn_jobs(rng, count):
    """Sources, prefixes, phrases and forced tokens; many jobs lack one or the other."""
    jobs = []
    for _ in range(count):
        source = [*rng.integers(4, 50, rng.integers(1, 20)).tolist(), 2]
        prefix = rng.integers(50, 100, rng.choice([0, 0, 3, 17])).tolist()
        phrases = [
            rng.integers(100, 150, size).tolist()
            for size in rng.integers(1, 60, rng.choice([0, 0, 1, 3]))
        ]
        forced = tuple(rng.integers(150, 200, rng.choice([0, 1])).tolist())
        jobs.append(
            Job(source, int(rng.integers(99)), prefix, phrases, Direction(target_prefix=forced))
        )
    return jobs


def _without_padding(array):
    return np.trim_zeros(np.asarray(array), "b").tolist()


class _DrawnBatch:
    """Drawn jobs, and the batch of them that a scheduler makes with drawn options."""

    rows = 8

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.jobs = _drawn_jobs(rng, int(rng.integers(1, 6)))
        config = types.SimpleNamespace(output_vocabulary_size=1000)
        shortlist = Shortlist([7], [[200 + i, 300 + i] for i in range(45)])
        model = types.SimpleNamespace(config=config, forbidden_ids=())
        scheduler = Scheduler(
            model, (64, 300), shortlist=shortlist, first_capacity=int(rng.choice([1, 8]))
        )
        self.options = DecodingOptions(
            shortlist=bool(rng.integers(2)),
            logit_bias=[{}, {900: 1.5, 901: -1.0}][rng.integers(2)],
            banned_ids=[(), (910,)][rng.integers(2)],
            sampling=bool(rng.integers(2)),
            beam_size=1,
            max_length_ratio=float(rng.choice([0.5, 2.0, 3.5, 7.0])),
        )
        longest_prefix = max(len(job.prefix) for job in self.jobs)
        self.arguments, self.capacity = scheduler.batch(
            self.jobs, self.options, self.rows, longest_prefix
        )


@pytest.fixture(params=range(60))
def drawn_batch(request):
    return _DrawnBatch(request.param)


def test_a_batch_has_each_job_in_its_row_and_then_padding(drawn_batch):
    arguments, jobs = drawn_batch.arguments, drawn_batch.jobs
    assert arguments.source_ids.shape[0] == drawn_batch.rows
    assert not np.any(arguments.source_ids[len(jobs) :])
    for row, job in enumerate(jobs):
        assert _without_padding(arguments.source_ids[row]) == job.source
        prefix = [] if arguments.prefixes is None else _without_padding(arguments.prefixes[row])
        assert prefix == job.prefix
        phrases = [] if arguments.phrases is None else map(_without_padding, arguments.phrases[row])
        assert list(filter(None, phrases)) == job.phrases
        forced_id = 0 if arguments.forced_ids is None else int(arguments.forced_ids[row])
        assert forced_id == next(iter(job.direction.target_prefix), 0)
        if drawn_batch.options.sampling:
            assert int(arguments.seeds[row]) == job.seed


def test_a_batch_has_room_for_its_longest_translation(drawn_batch):
    for job in drawn_batch.jobs:
        forced = len(job.prefix) + sum(map(len, job.phrases))
        limit = int(drawn_batch.options.max_length_ratio * len(job.source)) + 10 + forced
        assert drawn_batch.capacity >= min(limit, 300)


def test_a_row_has_candidates_for_its_tokens_and_what_its_job_names(drawn_batch):
    arguments, jobs, options = drawn_batch.arguments, drawn_batch.jobs, drawn_batch.options
    if not options.shortlist:
        assert arguments.candidates is None
        return
    ids, mask = map(np.asarray, (arguments.candidates.ids, arguments.candidates.mask))
    assert not mask[len(jobs) :].any()
    for row, job in enumerate(jobs):
        by_token = {id + side for id in job.source if id < 45 for side in (200, 300)}
        named = {*job.prefix, *sum(job.phrases, [])}
        named |= {*dict(options.logit_bias), *options.banned_ids}
        assert ids[mask[row]].tolist() == sorted({0, 1, 2, 3, 7} | by_token | named)


def test_a_batch_has_the_bias_of_the_options_and_hides_banned_ids(drawn_batch):
    options, bias = drawn_batch.options, drawn_batch.arguments.logit_bias
    received = {} if bias is None else {id: bias[id] for id in np.flatnonzero(bias).tolist()}
    hidden = dict.fromkeys(options.banned_ids, np.float32(NEG_INF))
    assert received == {**dict(options.logit_bias), **hidden}


@pytest.mark.parametrize("seed", range(10))
def test_sentences_that_leave_a_batch_at_drawn_times_keep_their_results(seed):
    """However often the rest is sorted anew, each state meets its own arguments."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(2, 60, 32).tolist()
    jobs = [Job([100 + i, end]) for i, end in enumerate(ends)]
    arguments, _ = Scheduler(None, (16, 64)).batch(jobs, DecodingOptions(), rows=32)

    def state_of(arguments, position):
        ids, ends = np.asarray(arguments.source_ids)[:, :2].T
        running = (ends > position)[:, None]
        return types.SimpleNamespace(ids=ids, running=running, position=position)

    def call(
        arguments, state=None, rows=None, growth_shape=(), shrink_to=0, method=None, capacity=1
    ):
        if method is Search.begin:
            return state_of(arguments, capacity)
        np.testing.assert_array_equal(state.ids[rows], arguments.source_ids[:, 0])
        blocks.append(len(rows))
        size, position = sizes[-1] + len(growth_shape), state.position
        sizes.append(size)
        while position < size and state_of(arguments, position).running.sum() > shrink_to:
            position += 1
        state = state_of(arguments, position)
        results = 1000 * state.ids + np.minimum(position, np.asarray(arguments.source_ids)[:, 1])
        return state, Hypotheses(*[results] * len(Hypotheses._fields))

    blocks, sizes = [], [1]
    results = _search_shrinking(call, arguments, 4, 64, 32)
    assert [int(row.ids) for row in results] == [1000 * (100 + i) + e for i, e in enumerate(ends)]
    assert {*blocks} == {32, 16, 8} and len(blocks) > 4


SEARCHES = {
    "greedy": DecodingOptions(beam_size=1),
    "beam": DecodingOptions(beam_size=3, n_best=3, no_repeat_ngram_size=2),
    "sampling": DecodingOptions(sampling=True, n_best=2, temperature=1.2),
}


@pytest.mark.tensorflow
@pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES)
def test_a_search_that_shrinks_and_grows_finds_what_one_loop_finds(varied, options):
    model, source = varied("pre_norm"), varied_sources()
    seeds = np.arange(len(source), dtype="int32")
    arguments = search_arguments(options, source, 17, seeds)
    row_counts = []

    def call(arguments, *state, method, **capacity):
        row_counts.append(len(arguments.source_ids))
        return method(Search(model, options, arguments), *state, **capacity)

    whole = call(arguments, method=Search.run, capacity=17)
    rows = _search_shrinking(call, arguments, 3, 17, len(source))
    assert len({*row_counts}) > 1
    for row, *expected in zip(rows, whole.ids, whole.scores, strict=True):
        ids, scores = map(np.asarray, expected)
        assert [*map(_without_padding, row.ids)] == [*map(_without_padding, ids)]
        np.testing.assert_allclose(row.scores, scores, atol=1e-5)


# Without XLA, which is not the promise: TensorFlow never frees its programs.
IN_GRAPHS = {"max_compiled": 0 if keras.backend.backend() == "tensorflow" else 64}


class _Endless(SearchModel):
    """A model whose most probable token is never the end."""

    def start_decoding(self, source_ids, capacity, num_beams=1):
        return ops.zeros((source_ids.shape[0], num_beams), "int32")

    def step(self, ids, cache):
        return ops.one_hot(4 + (ids + 1) % 7, 20), cache


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17])
def test_a_stream_that_does_not_end_has_as_many_tokens_as_a_translation(length):
    scheduler = Scheduler(_Endless(), (16, length), **IN_GRAPHS)
    options = DecodingOptions(beam_size=1, max_length_ratio=20.0)
    job = Job([5, 6, 2])
    (whole,) = scheduler.search([job], options, 1)
    streamed = [np.asarray(step.ids)[0, 0] for step in scheduler.stream(job, options)]
    assert [np.count_nonzero(ids) for ids in streamed] == list(range(1, length + 1))
    assert _without_padding(streamed[-1]) == _without_padding(whole.ids[0])
