"""Beam search with penalties and biases, on models whose probabilities are known."""

import math

import numpy as np
import pytest
from decoding_oracles import HistoryModel, as_lists, check_found, many_seeds, search_program
from naive_search import EOS, Rules, exhaustive_search, naive_beam

from keras_transformer.decoding import Beam

SENTENCES, VOCABULARY, CAPACITY = 5, 7, 11


def random_case(seed, longest):
    """A model, limits, a bias and the exponent of the length penalty."""
    rng = np.random.default_rng(seed)
    limits = rng.integers(0, longest + 1, size=SENTENCES).tolist()
    scale, end = rng.choice([0.5, 1.0, 2.0]), rng.choice([-1.0, 0.0, 1.0, 3.0])
    model = HistoryModel.random(rng, SENTENCES, VOCABULARY, scale=scale, end=end)
    bias = rng.choice([0.0, 0.3, 2.0]) * rng.normal(size=VOCABULARY) + rng.choice([-1.0, 0.0, 0.5])
    bias[rng.random(VOCABULARY) < 0.1] = -np.inf
    exponent = float(rng.choice([0.0, 0.6, 1.0, 2.0]))
    return model, limits, Rules(bias=tuple(bias.tolist())), exponent


def program(compiled, beam_size, capacity, n_best, early_stopping=False):
    def strategy(exponent):
        return Beam(beam_size, exponent, n_best, early_stopping)

    return search_program(compiled, random_case(0, 1)[0], strategy, capacity)


def test_beam_as_wide_as_the_tree_finds_the_best_under_every_penalty(graph):
    # The last of four steps has 4^3 hypotheses of 5 extensions each.
    run = program(graph, 5 * 4**3, capacity=5, n_best=13)

    @many_seeds
    def check(seed):
        model, limits, rules, exponent = random_case(seed, longest=4)
        found, _ = run(model, limits, rules, exponent=exponent)
        check_found(found, exhaustive_search(model, limits, exponent, 13, rules), model)

    check()


@pytest.mark.parametrize("early_stopping", [True, False])
def test_both_stop_rules_give_what_a_naive_search_gives_under_every_penalty(
    compiled, early_stopping
):
    run, early, others = program(compiled, 3, CAPACITY, 2, early_stopping), [], 0
    for seed in range(100):
        model, limits, rules, exponent = random_case(seed, CAPACITY)
        found, steps = run(model, limits, rules, exponent=exponent)
        case = model, limits, 3, exponent, 2, rules
        expected = naive_beam(*case, early_stopping)
        check_found(found, expected, model)
        early.append(steps < max(limits))
        others += expected != naive_beam(*case, not early_stopping)
    # The rules differ, and end sentences before their limits.
    assert sum(early) > 12 and others > 12


def of_probabilities(probabilities):
    return HistoryModel.of_probabilities(probabilities, vocabulary=5)


def test_it_goes_on_only_as_long_as_a_bias_may_still_turn_the_order(graph):
    model = of_probabilities(
        {(): {EOS: 0.9, 3: 0.06, 4: 0.04}} | {(3,) * n: {3: 1.0} for n in range(1, CAPACITY)}
    )
    run = search_program(
        graph, model, lambda: Beam(2, length_penalty=0.0, early_stopping=False), CAPACITY
    )
    # ln 0.06 = -2.81, and at most eleven times the bias, against ln 0.9 = -0.11.
    for bias, steps in ((-5.0, 1), (0.0, 1), (0.24, 1), (0.25, CAPACITY)):
        assert run(model, [CAPACITY], Rules(bias=(0.0, 0.0, 0.0, bias, 0.0)))[1] == steps


def test_a_score_above_zero_is_best_while_it_is_short(graph):
    # With biases of 1.59 and 1 the first scores are ln 0.5 + 1 = 0.31 of one token, and of two
    # (ln 0.5 + 1.59 + 1) / (7 / 6)^10 = 0.41. Of three nothing could have more than
    # (ln 0.5 + 3 * 1.59) / (8 / 6)^10 = 0.23.
    model = of_probabilities({(): {EOS: 0.5, 3: 0.5}, (3,): {EOS: 1.0}})
    run = search_program(graph, model, lambda: Beam(2, 10.0, early_stopping=False), 3)
    found, _ = run(model, [3], Rules(bias=(0.0, 0.0, 1.0, 1.59, 0.0)))
    (best,) = as_lists(found)[0]
    assert best.ids == (3, EOS)
    assert best.score == pytest.approx((math.log(0.5) + 2.59) * (6 / 7) ** 10, rel=1e-5)
