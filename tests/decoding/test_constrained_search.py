"""Each strategy under constraints: against searches of only those sequences that satisfy them."""

import numpy as np
import pytest
from decoding_oracles import HistoryModel, as_lists, check_equal, check_found, search_program
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from naive_search import BOS, EOS, Rules, exhaustive_search, naive_beam, naive_greedy

from keras_transformer.decoding import Beam, Greedy, Sampling

SENTENCES, VOCABULARY, ROOM, PREFIX = 5, 7, 11, 7
ANY_ID = np.arange(1, VOCABULARY)
# Always the same seeds: of thousands of sums, some pair may be equal up to float32's rounding.
many_seeds = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # a smaller seed is no simpler
    suppress_health_check=[HealthCheck.too_slow],
)
seeds = given(seed=st.integers(0, 2**32 - 1))


def random_case(seed, longest, ngram_size):
    """A model, limits and rules that often leave a sentence with nothing to go on with."""
    rng = np.random.default_rng(seed)
    model = HistoryModel.random(
        rng, SENTENCES, VOCABULARY, scale=rng.choice([0.5, 2.0]), end=rng.choice([0.0, 2.0])
    )
    limits = rng.integers(0, longest + 1, size=SENTENCES).tolist()
    bias = 0.7 * rng.normal(size=VOCABULARY)
    bias[rng.random(VOCABULARY) < rng.choice([0.1, 0.8])] = -np.inf
    # Words, mostly; now and then the beginning or the end of a sentence.
    shares = np.where(ANY_ID > EOS, 0.22, 0.06)
    prefixes = [
        tuple(rng.choice(ANY_ID, size=rng.integers(1, longest + 1), p=shares).tolist())[:PREFIX]
        if rng.random() < 0.6
        else ()
        for _ in limits
    ]
    min_lengths = rng.integers(0, longest + 3, size=SENTENCES).tolist()
    return model, limits, Rules(min_lengths, prefixes, tuple(bias.tolist()), ngram_size)


def program(compiled, strategy, room, ngram_size):
    model = random_case(0, 1, 0)[0]
    return search_program(compiled, model, strategy, room, ngram_size, columns=PREFIX)


def dead_ends(hypotheses, limits):
    """How many are shorter than their limit, and have not ended."""
    return sum(
        len(each.ids) < limit and EOS not in each.ids
        for found, limit in zip(hypotheses, limits, strict=True)
        for each in found[:1]
    )


@pytest.mark.parametrize("ngram_size", [0, 2])
def test_beam_as_wide_as_the_tree_finds_the_best_that_satisfy_them(compiled, ngram_size):
    # The last of four steps has at most 4^3 hypotheses of 5 extensions each.
    run = program(compiled, lambda: Beam(5 * 4**3, n_best=13), 5, ngram_size)
    met = []

    @many_seeds
    @seeds
    def check(seed):
        model, limits, rules = random_case(seed, 4, ngram_size)
        expected = exhaustive_search(model, limits, 0.6, 13, rules)
        check_found(run(model, limits, rules)[0], expected, model)
        met.append(dead_ends(expected, limits))

    check()
    assert sum(met) > 7


@pytest.mark.parametrize("beam_size, num_groups, ngram_size", [(3, 1, 1), (6, 3, 2)])
def test_a_narrow_beam_equals_one_that_never_stops_early(
    compiled, beam_size, num_groups, ngram_size
):
    def strategy():
        return Beam(beam_size, n_best=3, num_groups=num_groups, diversity_penalty=0.7)

    run, met = program(compiled, strategy, ROOM, ngram_size), []

    @many_seeds
    @seeds
    def check(seed):
        model, limits, rules = random_case(seed, ROOM, ngram_size)
        expected = naive_beam(
            model, limits, beam_size, 0.6, 3, rules, num_groups=num_groups, diversity=0.7
        )
        check_found(run(model, limits, rules)[0], expected, model)
        met.append(dead_ends(expected, limits))

    check()
    assert sum(met) > 7


@pytest.mark.parametrize("ngram_size", [1, 3])
def test_greedy_search_takes_the_most_probable_token_that_satisfies_them(compiled, ngram_size):
    run, met = program(compiled, Greedy, ROOM, ngram_size), []

    @many_seeds
    @seeds
    def check(seed):
        model, limits, rules = random_case(seed, ROOM, ngram_size)
        expected = naive_greedy(model, limits, rules)
        check_found(run(model, limits, rules)[0], expected, model)
        met.append(dead_ends(expected, limits))

    check()
    assert sum(met) > 7


def test_every_sample_satisfies_them_and_stops_only_where_it_must(compiled):
    run = program(compiled, lambda seeds: Sampling(seeds, 3), ROOM, ngram_size=2)

    @many_seeds
    @seeds
    def check(seed):
        model, limits, rules = random_case(seed, ROOM, ngram_size=2)
        found, _ = run(model, limits, rules, seeds=np.arange(SENTENCES, dtype="int32") + seed % 97)
        for row, samples in enumerate(as_lists(found)):
            for ids, *_ in samples:
                assert rules.allow(row, ids), (row, ids)
                longer = [(*ids, token) for token in range(VOCABULARY)]
                ended = len(ids) == limits[row] or EOS in ids
                assert ended or not any(rules.allow(row, each) for each in longer), (row, ids)

    check()


STRATEGIES = {"greedy": Greedy, "beam": lambda: Beam(3, n_best=3)}


@pytest.mark.parametrize("name", STRATEGIES)
def test_where_nothing_is_allowed_a_hypothesis_stays_as_it_is(rng, compiled, name):
    # All four words are used up, and the end is not yet allowed. Its batch-mate goes on.
    model = HistoryModel.random(rng, 2, VOCABULARY, end=-20.0)
    rules = Rules((ROOM, 0), ((3, 6, 4, 5), (4,)), ngram_size=1)
    run = search_program(compiled, model, STRATEGIES[name], ROOM, ngram_size=1)
    found, _ = run(model, [ROOM, ROOM], rules)
    stuck, free = as_lists(found)
    assert stuck[0].ids == (3, 6, 4, 5)
    assert {each.ids for each in stuck[1:]} <= {()}
    assert {len(each.ids) for each in free} == {5} and all(each.ids[4] == EOS for each in free)


def test_a_group_at_a_dead_end_is_out_of_the_way_of_the_others(compiled):
    # Three words, no bigram twice, and no end: each group of one gets stuck at its own time.
    def strategy():
        return Beam(3, n_best=3, num_groups=3, diversity_penalty=1.5)

    run = program(compiled, strategy, ROOM, ngram_size=2)
    limits = [ROOM] * SENTENCES
    rules = Rules(limits, bias=(0.0,) * 6 + (-np.inf,), ngram_size=2)
    for seed in range(13):
        rng = np.random.default_rng(seed)
        model = HistoryModel.random(rng, SENTENCES, VOCABULARY, scale=0.5)
        expected = naive_beam(model, limits, 3, 0.6, 3, rules, num_groups=3, diversity=1.5)
        assert len({len(each.ids) for found in expected for each in found}) >= 3
        check_found(run(model, limits, rules)[0], expected, model)


def test_after_a_forced_beginning_a_beam_holds_as_many_hypotheses_as_ever(rng, compiled):
    model = HistoryModel.random(rng, 3, VOCABULARY)
    model.logits[:2, :, EOS] = -np.inf
    model = HistoryModel(model.logits)
    prefixes = ((5, 5, 4), (), (6, BOS, 3, 3, EOS))
    run = search_program(compiled, model, lambda: Beam(5, n_best=5), ROOM)
    found = as_lists(run(model, [5, 5, 5], Rules((0, 0, 0), prefixes))[0])
    for prefix, hypotheses in zip(prefixes[:2], found, strict=False):
        assert len({each.ids for each in hypotheses}) == 5
        assert {each.ids[: len(prefix)] for each in hypotheses} == {prefix}
    # Where its end is forced, there is one.
    assert [each.ids for each in found[2]] == [prefixes[2], (), (), (), ()]


def test_a_beginning_longer_than_the_limit_is_cut(rng, compiled):
    model = HistoryModel.random(rng, 2, VOCABULARY)
    prefixes = ((5, 5, 4, 6, 3), (5,))
    run = search_program(compiled, model, STRATEGIES["beam"], 3)
    with_it = as_lists(run(model, [3, 3], Rules((0, 0), prefixes))[0])
    assert with_it[0][0].ids == (5, 5, 4)
    shorter = as_lists(run(model, [3, 3], Rules((0, 0), ((5, 5), (5,))))[0])
    check_equal(with_it[1:], shorter[1:], 1e-6)
