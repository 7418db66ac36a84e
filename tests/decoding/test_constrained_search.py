"""Each strategy under constraints: against searches of only those sequences that satisfy them."""

import functools

import numpy as np
import pytest
from decoding_oracles import HistoryModel, as_lists, check_hypotheses, many_seeds, search_program
from naive_search import EOS, PAD, Rules, exhaustive_search, naive_beam, naive_greedy

from keras_transformer.decoding import Beam, GNMTRanking, Greedy, Sampling

SENTENCES, VOCABULARY, CAPACITY, PREFIX = 5, 7, 11, 7
ANY_ID = np.arange(1, VOCABULARY)


def random_case(seed, longest, ngram_size):
    """A model, limits, rules that often leave a sentence with nothing to choose, an exponent."""
    rng = np.random.default_rng(seed)
    model = HistoryModel.random(
        rng, SENTENCES, VOCABULARY, scale=rng.choice([0.5, 2.0]), end=rng.choice([0.0, 1.0, 3.0])
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
    min_lengths = rng.integers(0, rng.choice([1, longest + 3]), size=SENTENCES).tolist()
    rules = Rules(min_lengths, prefixes, tuple(bias.tolist()), ngram_size)
    return model, limits, rules, float(rng.choice([0.0, 0.6, 1.0, 2.0]))


def program(graph, strategy, capacity, ngram_size):
    model = random_case(0, 1, 0)[0]
    return search_program(graph, model, strategy, capacity, ngram_size, columns=PREFIX)


def dead_ends(hypotheses, limits):
    """Number of hypotheses below their limit that have not ended."""
    return sum(
        len(h.ids) < limit and EOS not in h.ids
        for ranked, limit in zip(hypotheses, limits, strict=True)
        for h in ranked[:1]
    )


@pytest.mark.slow
def test_both_stop_rules_give_what_a_naive_search_gives(compiled):

    def beam(exponent, early_stopping):
        return Beam(3, GNMTRanking(exponent), 2, early_stopping)

    beams = [functools.partial(beam, early_stopping=early) for early in (True, False)]
    runs = [program(compiled, strategy, CAPACITY, 2) for strategy in beams]
    met, early, differ = [], [], []
    for seed in range(100):
        model, limits, rules, exponent = random_case(seed, CAPACITY, ngram_size=2)
        case = model, limits, 3, exponent, 2, rules
        expected = [naive_beam(*case, early_stopping) for early_stopping in (True, False)]
        results = [run(model, limits, rules, exponent=exponent) for run in runs]
        for (received, _), hypotheses in zip(results, expected, strict=True):
            check_hypotheses(received, hypotheses, model)
        met.append(dead_ends(expected[0], limits))
        early.append([steps < max(limits) for _, steps in results])
        differ.append(expected[0] != expected[1])
    # Sentences come to dead ends, or end before their limits; the rules differ.
    assert sum(met) > 15 and min(np.sum(early, axis=0)) > 12 and sum(differ) > 6


def test_greedy_search_equals_one_that_scores_every_prefix_again(graph):
    run, met = program(graph, Greedy, CAPACITY, ngram_size=2), []

    @many_seeds
    def check(seed):
        model, limits, rules, _ = random_case(seed, CAPACITY, ngram_size=2)
        expected = naive_greedy(model, limits, rules)
        check_hypotheses(run(model, limits, rules)[0], expected, model)
        met.append(dead_ends(expected, limits))

    check()
    assert sum(met) > 7


def check_following(hypotheses, limits, rules):
    """Log-probability and length after a prefix are reported, as for the whole."""
    ids, by_token = np.asarray(hypotheses.ids), np.asarray(hypotheses.token_log_probabilities)
    following = np.asarray(hypotheses.continuation_log_probabilities)
    lengths = np.asarray(hypotheses.continuation_lengths)
    for row in range(len(limits)):
        first = len(rules.prefix(row))
        np.testing.assert_allclose(following[row], by_token[row, :, first:].sum(axis=1), atol=1e-4)
        np.testing.assert_array_equal(lengths[row], (ids[row, :, first:] != PAD).sum(axis=1))


def test_a_beam_as_wide_as_the_tree_finds_the_best_under_every_penalty(graph):
    # At most four tokens: the last of four steps has 4^3 hypotheses of 5 extensions each.
    run = program(graph, lambda exponent: Beam(5 * 4**3, GNMTRanking(exponent), 13), 5, 0)

    @many_seeds
    def check(seed):
        model, limits, rules, exponent = random_case(seed, 4, 0)
        prefixes = tuple(p[: max(n - 1, 0)] for p, n in zip(rules.prefixes, limits, strict=True))
        rules = rules._replace(prefixes=prefixes)
        hypotheses, _ = run(model, limits, rules, exponent=exponent)
        check_hypotheses(hypotheses, exhaustive_search(model, limits, exponent, 13, rules), model)
        check_following(hypotheses, limits, rules)

    check()


@pytest.mark.parametrize("ngram_size", [1, 3])
def test_every_sample_satisfies_them_and_stops_only_where_it_must(graph, ngram_size):
    run = program(graph, lambda seeds: Sampling(seeds, 3), CAPACITY, ngram_size)

    @many_seeds
    def check(seed):
        model, limits, rules, _ = random_case(seed, CAPACITY, ngram_size)
        drawn, _ = run(model, limits, rules, seeds=np.arange(SENTENCES, dtype="int32") + seed % 97)
        for row, samples in enumerate(as_lists(drawn)):
            for ids, *_ in samples:
                assert rules.allow(row, ids), (row, ids)
                longer = [(*ids, token) for token in range(VOCABULARY)]
                ended = len(ids) == limits[row] or EOS in ids
                assert ended or not any(rules.allow(row, seq) for seq in longer), (row, ids)

    check()
