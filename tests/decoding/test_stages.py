"""Stages of growing capacity: the same results as in one piece, few programs, full batches."""

import os
import subprocess
import sys

import numpy as np
import pytest
from decoding_oracles import as_lists, check_equal, varied_sources

from keras_transformer.decoding import DecodingOptions, search
from keras_transformer.decoding import stages as stages_module
from keras_transformer.decoding.arguments import search_arguments
from keras_transformer.decoding.search import Search
from keras_transformer.decoding.shapes import pad
from keras_transformer.decoding.stages import Batch, Stages

LONGEST = 23
# Capacities of 6, 12, 23.
FIRST_CAPACITY = 6


@pytest.fixture(scope="module", autouse=True)
def small_capacities():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(stages_module, "FIRST_CAPACITY", FIRST_CAPACITY)
        yield


def batches_of(source, options, rows):
    """Batches of `rows` sentences, keyed by their places."""
    for start in range(0, len(source), rows):
        keys = list(range(start, min(start + rows, len(source))))
        padded = pad(source[keys].tolist(), rows, source.shape[1])
        seeds = pad([keys], 1, rows)[0] if options.sampling else None
        yield Batch(keys, search_arguments(options, padded, LONGEST, seeds))


@pytest.fixture(scope="module")
def greedy(varied):
    """Greedy search, traced and compiled once for the tests that look at how it is run."""
    return Stages(Search(varied("post_norm"), DecodingOptions(beam_size=1)), LONGEST)


@pytest.fixture(scope="module")
def whole(varied):
    """What greedy search finds at once, ids of `varied_sources(13)`."""
    found = search(varied("post_norm"), varied_sources(13), 1, max_length=LONGEST)
    return np.asarray(found.ids)[:, 0]


def in_stages(model, source, options, rows):
    stages = Stages(Search(model, options), LONGEST)
    found = dict(stages.run(batches_of(source, options, rows)))
    assert sorted(found) == list(range(len(source)))
    longest = max(each.ids.shape[1] for each in found.values())

    def padded(values):
        missing = longest - values.shape[1] if values.ndim == 2 else 0
        return np.pad(values, ((0, 0), (0, missing))) if missing else values

    rows = [found[i] for i in range(len(source))]
    fields = [np.stack([padded(each) for each in field]) for field in zip(*rows, strict=True)]
    return type(rows[0])(*fields), stages


# All that a state may hold grows in one of these; see test_loop.py for each by itself.
OPTIONS = {
    "greedy": dict(beam_size=1),
    "beam": dict(beam_size=3, n_best=3),
    "groups, coverage and n-grams": dict(
        beam_size=4, num_groups=2, n_best=4, coverage_penalty=0.3, no_repeat_ngram_size=2
    ),
    "sampling": dict(sampling=True, n_best=2, top_k=5),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_stages_give_what_one_piece_gives(varied, name):
    model, source = varied("pre_norm"), varied_sources(13)
    options = DecodingOptions(**OPTIONS[name])
    found, stages = in_stages(model, source, options, rows=5)
    seeds = dict(seeds=np.arange(len(source), dtype="int32")) if options.sampling else {}
    whole = search(model, source, max_length=LONGEST, **seeds, **OPTIONS[name])
    check_equal(found, as_lists(whole), 1e-5)
    lengths = (np.asarray(whole.ids)[:, 0] != 0).sum(axis=1)
    # Some end in the first stage, some in the last: this says something.
    assert (lengths <= 6).any() and (lengths > 12).any()
    # One source length: a program for each capacity.
    assert stages.compilations == 3


def test_sentences_that_go_on_are_put_together(greedy, whole, monkeypatch):
    source, ran = varied_sources(13), []
    begin, proceed = greedy._functions(3)

    class Counted:
        programs = proceed.programs

        def __call__(self, state, arguments, stop_at):
            ran.append(np.asarray(state.running).any(axis=1).sum())
            return proceed(state, arguments, stop_at)

    monkeypatch.setitem(greedy._compiled, None, (begin, Counted()))
    list(greedy.run(batches_of(source, greedy._search.options, 3)))
    lengths = (whole != 0).sum(axis=1)
    expected = 0
    for capacity in (6, 12):
        going_on = (lengths > capacity).sum()
        expected += -(-going_on // 3)
    # As few calls as full batches of three need, whatever the batches were before.
    assert len(ran) == expected and ran.count(3) >= len(ran) - 3


def test_batches_that_are_decoded_at_once_change_nothing(greedy, monkeypatch):
    source, options = varied_sources(13), greedy._search.options
    assert greedy._workers == 1
    alone = dict(greedy.run(batches_of(source, options, 3)))
    monkeypatch.setattr(greedy, "_workers", 3)
    for _ in range(3):
        together = dict(greedy.run(batches_of(source, options, 3)))
        assert sorted(together) == sorted(alone)
        for place, found in together.items():
            np.testing.assert_array_equal(found.ids, alone[place].ids)
            np.testing.assert_allclose(found.scores, alone[place].scores, atol=1e-5)


def test_what_a_stage_leaves_is_not_held_for_sentences_that_have_ended(greedy, whole):
    lengths = (whole != 0).sum(axis=1)
    chosen = np.argsort(lengths)[[0, -2, -1]]
    assert lengths[chosen[0]] <= 6 < lengths[chosen[1]]
    found = greedy.run(batches_of(varied_sources(13)[chosen], greedy._search.options, 3))
    place, first = next(found)  # what ended within six tokens comes before the others are done
    assert (place, first.ids.shape) == (0, (1, 6))
    assert max(each.ids.shape[1] for _, each in found) > 6


def test_a_stream_grows_a_token_at_a_time_to_the_whole(greedy, whole):
    batch, *_ = batches_of(varied_sources(13), greedy._search.options, 3)
    steps = [np.asarray(found.ids)[:, 0] for found in greedy.stream(batch)]
    whole = whole[:3]
    assert (whole != 0).sum(axis=1).max() > 2 * FIRST_CAPACITY
    for tokens, ids in enumerate(steps, start=1):
        np.testing.assert_array_equal(ids[:, :tokens], whole[:, :tokens])
        assert not ids[:, tokens:].any()
    assert len(steps) == (whole != 0).sum(axis=1).max()


COUNT = """
import os, sys
import keras
import numpy as np
from decoding_oracles import varied_transformer, VOCABULARY
from test_engine import NumberTokenizer
from keras_transformer.decoding import ModelEngine
from keras_transformer.decoding.shapes import length_buckets

engine = ModelEngine(
    varied_transformer("post_norm"), NumberTokenizer(), max_source_length=64, max_target_length=40
)
rng = np.random.default_rng(0)
texts = [
    " ".join(map(str, rng.integers(4, VOCABULARY, length)))
    for length in rng.integers(1, 64, 5000)
]
found = engine.translate(texts, beam_size=1)
assert len(found) == 5000
buckets, capacities = len(length_buckets(64)), 2
print(engine.compilations, buckets * capacities)
"""


@pytest.mark.slow
@pytest.mark.tensorflow
def test_5000_sentences_of_mixed_length_compile_no_more_than_promised(tmp_path):
    # Counted by XLA itself: it writes a file for each program that it compiles.
    tests = os.path.dirname(os.path.dirname(__file__))
    environment = {
        **os.environ,
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_dump_to={tmp_path} --xla_dump_hlo_as_text",
        "PYTHONPATH": os.pathsep.join((tests, os.path.dirname(__file__))),
    }
    done = subprocess.run(
        [sys.executable, "-c", COUNT], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    counted, promised = map(int, done.stdout.split()[-2:])
    written = [
        name
        for name in os.listdir(tmp_path)
        if name.endswith("before_optimizations.txt") and "_run_" in name
    ]
    assert len(written) == counted <= promised
