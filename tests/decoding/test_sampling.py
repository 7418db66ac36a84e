"""Sampling: how often each sequence comes, and what a sample depends on."""

import collections
import importlib.util
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from decoding_oracles import (
    MAX_LENGTH,
    HistoryModel,
    as_lists,
    check_equal,
    check_tokens,
    search_program,
    varied_sources,
)
from naive_search import ANYTHING, Rules, naive_greedy, penalty, sequence_probabilities

from keras_transformer.decoding import Sampling, search
from keras_transformer.decoding.compiled import Compiled
from keras_transformer.decoding.options import DecodingOptions
from keras_transformer.decoding.search import Search, settings_of

OTHER_BACKEND = {"tensorflow": "jax", "jax": "tensorflow"}[keras.backend.backend()]
VOCABULARY, ROOM, DRAWS = 5, 3, 4001
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
PROGRAMS = {}


@pytest.fixture
def tree():
    """Two words, three places, no bigram twice: 7 sequences that end, and 6 that do not."""
    return HistoryModel.random(np.random.default_rng(28), 1, VOCABULARY, scale=0.7)


@pytest.fixture
def draw(compiled, tree):
    """`draw(limits, rules, seeds=, temperature=, …)`: three samples of each of many sentences."""
    if "tree" not in PROGRAMS:

        def strategy(seeds, **options):
            return Sampling(seeds, 3, length_penalty=1.0, **options)

        PROGRAMS["tree"] = search_program(compiled, tree, strategy, ROOM, 2, sentences=DRAWS)

    def draw(rules=ANYTHING, **options):
        options = {"seeds": np.arange(DRAWS, dtype="int32")} | NEUTRAL | options
        every = rules._replace(
            min_lengths=rules.min_lengths * DRAWS, prefixes=rules.prefixes * DRAWS, ngram_size=2
        )
        return PROGRAMS["tree"](tree, [ROOM] * DRAWS, every, **options)[0]

    return draw


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 1.7},
        {"top_k": 2},
        {"top_p": 0.6},
        {"min_p": 0.6},
        {"temperature": 1.3, "top_k": 2, "top_p": 0.7, "min_p": 0.1},
    ],
)
@pytest.mark.parametrize(
    "rules",
    [ANYTHING, Rules((3,), ((4,),)), Rules(bias=(0.0, 0.0, -0.2, 0.3, 0.1))],
    ids=["free", "beginning", "bias"],
)
def test_sequences_come_as_often_as_they_are_probable(tree, draw, rules, options):
    probabilities = sequence_probabilities(
        tree, 0, ROOM, rules._replace(ngram_size=2), **(NEUTRAL | options)
    )
    assert sum(probabilities.values()) == pytest.approx(1.0)
    drawn = as_lists(draw(rules, **options))
    counts = collections.Counter(sample.ids for samples in drawn for sample in samples)
    assert set(counts) <= set(probabilities)
    expected = {ids: 3 * DRAWS * share for ids, share in probabilities.items()}
    assert min(expected.values()) > 5
    statistic = sum((counts[ids] - each) ** 2 / each for ids, each in expected.items())
    freedom = max(len(expected) - 1, 1)
    # A chi-square has as many as its mean, and twice as many as its variance.
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)


def test_scores_are_the_models_own_whatever_the_draws_were_made_with(tree, draw):
    rules = Rules(bias=(0.0, 0.0, -0.2, 0.3, 0.1))
    found = draw(rules, temperature=0.5, top_p=0.9)
    few = type(found)(*(np.asarray(each)[:53] for each in found))
    check_tokens(few, lambda rows, prefixes: tree([0] * len(rows), prefixes))
    for samples in as_lists(few):
        for ids, total, score in samples:
            assert score == pytest.approx(total / penalty(len(ids), 1.0), rel=1e-5)


def test_a_temperature_near_zero_gives_greedy_search(tree, draw):
    (expected,) = naive_greedy(tree, [ROOM], Rules(ngram_size=2))
    for samples in as_lists(draw(temperature=1e-6)):
        assert {sample.ids for sample in samples} == {expected[0].ids}


def test_samples_of_one_sentence_and_neighbouring_seeds_are_independent(draw):
    drawn = [[sample.ids for sample in samples] for samples in as_lists(draw())]
    pairs = {
        "samples": [samples[:2] for samples in drawn],
        "seeds": [[a[0], b[0]] for a, b in zip(drawn[:-1], drawn[1:], strict=True)],
    }
    for name, both in pairs.items():
        first, second = (collections.Counter(each) for each in zip(*both, strict=True))
        # The most frequent ones, so that each pair is to come often enough.
        firsts, seconds = ([ids for ids, _ in each.most_common(5)] for each in (first, second))
        counts = collections.Counter(map(tuple, both))
        statistic = 0.0
        for a in firsts:
            for b in seconds:
                expected = first[a] * second[b] / len(both)
                assert expected > 5
                statistic += (counts[a, b] - expected) ** 2 / expected
        assert statistic < 25 + 4 * np.sqrt(50), name


class TestWithATransformer:
    """Sentences of one to seven tokens, three samples each, a seed for each sentence."""

    OPTIONS = DecodingOptions(
        sampling=True, n_best=3, temperature=1.3, top_k=11, min_length=2, no_repeat_ngram_size=3
    )
    SEEDS = np.array([7, 5, -3, 2**31 - 1, 0, 7, 11, -(2**31), 1, 2, 3, 5, 8], "int32")

    @pytest.fixture
    def run(self, varied):
        """`run(source_ids, seeds)`: as lists."""
        if "transformer" not in PROGRAMS:
            search = Search(varied("pre_norm"), self.OPTIONS)
            settings = settings_of(self.OPTIONS, MAX_LENGTH, 1)

            def sampled(source_ids, seeds):
                return search.begin(source_ids, settings._replace(seeds=seeds), MAX_LENGTH)[1]

            if keras.backend.backend() == "jax":  # JAX would compile each eager loop anew.
                sampled = Compiled(search.model, sampled)
            PROGRAMS["transformer"] = sampled, as_lists(sampled(varied_sources(), self.SEEDS))
        sampled, together = PROGRAMS["transformer"]
        return lambda source_ids, seeds: as_lists(sampled(source_ids, seeds)), together

    def test_a_sample_depends_on_its_sentence_and_seed_alone(self, run):
        sampled, together = run
        source, order = varied_sources(), np.random.default_rng(3).permutation(13)
        assert len({sample.ids for samples in together for sample in samples}) > 35
        check_same(sampled(source[order], self.SEEDS[order]), [together[i] for i in order])
        padded, seeds = np.pad(source, ((0, 2), (0, 12))), np.pad(self.SEEDS, (0, 2))
        check_same(sampled(padded, seeds)[:-2], together)
        check_same(sampled(source[6:7], self.SEEDS[6:7]), together[6:7])

    def test_another_seed_gives_another_sample(self, run):
        sampled, together = run
        others = sampled(varied_sources(), self.SEEDS + 1)
        same = sum(
            a.ids == b.ids
            for p, q in zip(together, others, strict=True)
            for a, b in zip(p, q, strict=True)
        )
        assert same < 5

    def test_more_samples_keep_the_first_ones(self, varied, run):
        source = varied_sources()
        settings = settings_of(self.OPTIONS, MAX_LENGTH, 13)._replace(seeds=self.SEEDS)
        one = Search(varied("pre_norm"), DecodingOptions(**{**vars(self.OPTIONS), "n_best": 1}))
        found = one.begin(source, settings, MAX_LENGTH)[1]
        check_same(as_lists(found), [samples[:1] for samples in run[1]])


def check_same(received, expected):
    check_equal(received, expected, 1e-5)


@pytest.mark.skipif(
    importlib.util.find_spec(OTHER_BACKEND) is None, reason=f"needs {OTHER_BACKEND}"
)
def test_tensorflow_and_jax_draw_the_same(varied, tmp_path):
    source, options = varied_sources(), dict(sampling=True, seed=11, n_best=3, temperature=0.9)
    model = varied("pre_norm")
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "source.npy", source)
    program = """
import sys
import keras
import numpy as np
import keras_transformer
from keras_transformer.decoding import search

folder, max_length = sys.argv[1], int(sys.argv[2])
model = keras.saving.load_model(f"{folder}/model.keras", compile=False)
options = dict(sampling=True, seed=11, n_best=3, temperature=0.9)
found = search(model, np.load(f"{folder}/source.npy"), max_length=max_length, **options)
np.savez(f"{folder}/theirs.npz", *map(np.asarray, found))
"""
    root = os.path.dirname(os.path.dirname(sys.modules["keras_transformer"].__file__))
    environment = {**os.environ, "KERAS_BACKEND": OTHER_BACKEND, "PYTHONPATH": root}
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), str(MAX_LENGTH)],
        env=environment,
        check=True,
        timeout=300,
    )
    with np.load(tmp_path / "theirs.npz") as theirs:
        expected = as_lists([theirs[name] for name in theirs.files])
    found = as_lists(search(model, source, max_length=MAX_LENGTH, **options))
    assert len({sample.ids for samples in found for sample in samples}) > 30
    check_same(found, expected)
