"""Greedy search against a naive one; how often each sample comes, and what it depends on."""

import collections

import numpy as np
import pytest
from decoding_oracles import HistoryModel, as_lists, check_tokens, search_program
from keras import ops
from naive_search import ANYTHING, EOS, Rules, penalty, sequence_probabilities

from keras_transformer.decoding import Constraints, GNMTRanking, Greedy, Sampling, decode

VOCABULARY, CAPACITY, DRAWS = 5, 3, 4001
SENTENCES, WORDS, LONGEST = 31, 7, 11  # of greedy search
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
PROGRAMS = []  # compiled once for all tests


def run_greedy(model, limits, capacity=LONGEST, **constraints):
    limits = ops.convert_to_tensor(limits, "int32")
    return decode(
        model.step, model.start(1), Greedy(), Constraints(limits, **constraints), capacity
    )


@pytest.mark.tensorflow
def test_another_id_can_be_the_end(rng):
    model = HistoryModel.random(rng, SENTENCES, WORDS)
    limits = [LONGEST] * SENTENCES
    endless = [ranked[0].ids for ranked in as_lists(run_greedy(model, limits, end_id=-1))]
    assert {len(ids) for ids in endless} == {LONGEST}
    cut = [ids[: ids.index(5) + 1] if 5 in ids else ids for ids in endless]
    assert [ranked[0].ids for ranked in as_lists(run_greedy(model, limits, end_id=5))] == cut


@pytest.mark.tensorflow
def test_greedy_search_stops_as_soon_as_all_have_ended(step_by_step):
    chosen = [3, 4, EOS]
    after = {tuple(chosen[:i]): {token: 1.0} for i, token in enumerate(chosen)}
    model = HistoryModel.of_probabilities(after, {(): {EOS: 1.0}}, vocabulary=5)
    with step_by_step:
        run_greedy(model, [LONGEST, LONGEST])
    assert model.calls == len(chosen)


@pytest.fixture
def tree():
    """Two words, three places, no bigram twice: 7 sequences that end, and 6 that do not."""
    return HistoryModel.random(np.random.default_rng(28), 1, VOCABULARY, scale=0.7)


@pytest.fixture
def draw(compiled, tree):
    """`draw(limits, rules, seeds=, temperature=, …)`: three samples of each of many sentences."""
    if not PROGRAMS:

        def strategy(seeds, **options):
            return Sampling(seeds, 3, ranking=GNMTRanking(1.0), **options)

        PROGRAMS.append(search_program(compiled, tree, strategy, CAPACITY, 2, sentences=DRAWS))

    def draw(rules=ANYTHING, **options):
        options = {"seeds": np.arange(DRAWS, dtype="int32")} | NEUTRAL | options
        every = rules._replace(
            min_lengths=rules.min_lengths * DRAWS, prefixes=rules.prefixes * DRAWS, ngram_size=2
        )
        return PROGRAMS[0](tree, [CAPACITY] * DRAWS, every, **options)[0]

    return draw


ALL_FILTERS = {"temperature": 1.3, "top_k": 2, "top_p": 0.55}


@pytest.mark.parametrize(
    ("rules", "options"),
    [
        *[(ANYTHING, case) for case in ({}, {"temperature": 0.5}, {"top_k": 2}, {"top_p": 0.6})],
        (Rules((3,), ((4,),)), ALL_FILTERS),
        (Rules(bias=(0.0, 0.0, -0.2, 0.3, 0.1)), ALL_FILTERS),
    ],
)
def test_sequences_come_as_often_as_they_are_probable(tree, draw, rules, options):
    probabilities = sequence_probabilities(
        tree, 0, CAPACITY, rules._replace(ngram_size=2), **(NEUTRAL | options)
    )
    assert sum(probabilities.values()) == pytest.approx(1.0)
    drawn = as_lists(draw(rules, **options))
    counts = collections.Counter(sample.ids for samples in drawn for sample in samples)
    assert set(counts) <= set(probabilities)
    expected = {ids: 3 * DRAWS * share for ids, share in probabilities.items()}
    assert min(expected.values()) > 5
    statistic = sum((counts[ids] - mean) ** 2 / mean for ids, mean in expected.items())
    freedom = max(len(expected) - 1, 1)
    # A chi-square has as many as its mean, and twice as many as its variance.
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)


def test_scores_are_the_models_own_whatever_the_draws_were_made_with(tree, draw):
    rules = Rules(bias=(0.0, 0.0, -0.2, 0.3, 0.1))
    drawn = draw(rules, temperature=0.5, top_p=0.9)
    few = type(drawn)(*(np.asarray(field)[:53] for field in drawn))
    check_tokens(few, lambda rows, prefixes: tree([0] * len(rows), prefixes))
    for samples in as_lists(few):
        for ids, total, score in samples:
            assert score == pytest.approx(total / penalty(len(ids), 1.0), rel=1e-5)


def test_samples_of_one_sentence_and_neighbouring_seeds_are_independent(draw):
    drawn = [[sample.ids for sample in samples] for samples in as_lists(draw())]
    pairs = {
        "samples": [samples[:2] for samples in drawn],
        "seeds": [[a[0], b[0]] for a, b in zip(drawn[:-1], drawn[1:], strict=True)],
    }
    for name, both in pairs.items():
        first, second = (collections.Counter(side) for side in zip(*both, strict=True))
        # The most frequent ones, so that each pair is to come often enough.
        firsts, seconds = ([ids for ids, _ in side.most_common(5)] for side in (first, second))
        counts = collections.Counter(map(tuple, both))
        statistic = 0.0
        for a in firsts:
            for b in seconds:
                expected = first[a] * second[b] / len(both)
                assert expected > 5
                statistic += (counts[a, b] - expected) ** 2 / expected
        assert statistic < 25 + 4 * np.sqrt(50), name


def test_each_sentence_may_have_its_own_options():
    chance = np.random.default_rng(7)
    logits = chance.normal(size=(5, 3, 17)).astype("float32")
    seeds = chance.integers(0, 2**31, 5).astype("int32")
    numbers = {"temperature": [1.0, 0.5, 2.0, 1.5, 1.0], "top_p": [1.0, 1.0, 0.5, 0.75, 1.0]}
    options = {name: np.array(values, "float32") for name, values in numbers.items()}
    options["top_k"] = np.array([0, 3, 0, 5, 1], "int32")
    tensors = {name: ops.convert_to_tensor(values) for name, values in options.items()}
    position = ops.convert_to_tensor(2, "int32")
    together = np.asarray(Sampling(seeds, 3, **tensors).pick(logits, position))
    for row in range(5):
        scalars = {name: values[row].item() for name, values in options.items()}
        alone = Sampling(seeds[row : row + 1], 3, **scalars).pick(logits[row : row + 1], position)
        np.testing.assert_array_equal(np.asarray(alone)[0], together[row])
    np.testing.assert_array_equal(together[4], logits[4].argmax(axis=1))
