"""Properties of engine/scheduler: batches of jobs, and what a job gets whatever is beside it."""
import types

import numpy as np
import pytest

from keras_transformer.decoding.search_options import DecodingOptions
from keras_transformer.engine.inputs import Job
from keras_transformer.engine.scheduler import Scheduler
from keras_transformer.text.languages import Direction
from keras_transformer.text.shortlist import Shortlist


def _drawn_jobs(rng, count):
    """Sources, prefixes, phrases and forced tokens; many jobs lack one or the other."""
    jobs = []
    for _ in range(count):
        source = [*rng.integers(4, 50, rng.integers(1, 20)).tolist(), 2]
        prefix = rng.integers(50, 100, rng.choice([0, 0, 3, 17])).tolist()
        phrases = [rng.integers(100, 150, size).tolist() for size in rng.integers(1, 9, rng.choice([0, 0, 1, 3]))]
        forced = tuple(rng.integers(150, 200, rng.choice([0, 1])).tolist())
        jobs.append(Job(source, int(rng.integers(99)), prefix, phrases, Direction(target_prefix=forced)))
    return jobs


def _without_padding(array):
    return np.trim_zeros(np.asarray(array), "b").tolist()


@pytest.mark.parametrize("seed", range(60))
def test_a_batch_has_each_job_in_its_row_and_room_for_its_longest_translation(seed):
    rng = np.random.default_rng(seed)
    jobs = _drawn_jobs(rng, int(rng.integers(1, 6)))
    config = types.SimpleNamespace(output_vocabulary_size=1000)
    shortlist = Shortlist([7], [[200 + i, 300 + i] for i in range(45)])
    model = types.SimpleNamespace(config=config, forbidden_ids=())
    scheduler = Scheduler(model, (64, 300), shortlist=shortlist, first_capacity=int(rng.choice([1, 8])))
    options = DecodingOptions(
        shortlist=bool(rng.integers(2)), logit_bias=[{}, {900: 1.5, 901: -1.0}][rng.integers(2)],
        banned_ids=[(), (910,)][rng.integers(2)], sampling=bool(rng.integers(2)), beam_size=1,
        max_length_ratio=float(rng.choice([0.5, 2.0, 3.5, 7.0])),
    )
    rows, longest_prefix = 8, max(len(job.prefix) for job in jobs)
    arguments, capacity = scheduler.batch(jobs, options, rows, longest_prefix)
    assert arguments.source_ids.shape[0] == rows and not np.any(arguments.source_ids[len(jobs) :])
    for row, job in enumerate(jobs):
        forced = len(job.prefix) + sum(map(len, job.phrases))
        limit = int(options.max_length_ratio * len(job.source)) + 10 + forced
        assert capacity >= min(limit, 300)
        assert _without_padding(arguments.source_ids[row]) == job.source
        prefix = [] if arguments.prefixes is None else _without_padding(arguments.prefixes[row])
        assert prefix == job.prefix
        phrases = [] if arguments.phrases is None else map(_without_padding, arguments.phrases[row])
        assert list(filter(None, phrases)) == job.phrases
        forced_id = 0 if arguments.forced_ids is None else int(arguments.forced_ids[row])
        assert forced_id == next(iter(job.direction.target_prefix), 0)
        if options.sampling:
            assert int(arguments.seeds[row]) == job.seed
        if options.shortlist:
            chosen = np.asarray(arguments.candidates.ids)[np.asarray(arguments.candidates.mask[row])]
            by_token = {i + side for i in job.source if i < 45 for side in (200, 300)}
            named = {*job.prefix, *sum(job.phrases, []), *dict(options.logit_bias), *options.banned_ids}
            assert {*chosen.tolist()} == {0, 1, 2, 3, 7} | by_token | named
    if options.logit_bias:
        assert arguments.logit_bias[900] == 1.5 and arguments.logit_bias[901] == -1.0
