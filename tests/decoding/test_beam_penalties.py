"""Beam search with penalties, biases and groups, on models whose probabilities are known."""

import math

import numpy as np
import pytest
from decoding_oracles import HistoryModel, as_lists, check_found, many_seeds, search_program
from naive_search import EOS, Rules, exhaustive_search, naive_beam

from keras_transformer.decoding import Beam

SENTENCES, VOCABULARY, SOURCE, CAPACITY = 5, 7, 3, 11


def random_case(seed, longest):
    """A model, limits, a bias and the penalties; a source without tokens has the limit 0."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, SOURCE + 1, size=SENTENCES)
    source_mask = np.arange(SOURCE) < lengths[:, None]
    limits = np.where(lengths > 0, rng.integers(1, longest + 1, size=SENTENCES), 0).tolist()
    scale, end = rng.choice([0.5, 1.0, 2.0]), rng.choice([-1.0, 0.0, 1.0, 3.0])
    model = HistoryModel.random(
        rng, SENTENCES, VOCABULARY, scale=scale, end=end, source_mask=source_mask
    )
    bias = rng.choice([0.0, 0.3, 2.0]) * rng.normal(size=VOCABULARY) + rng.choice([-1.0, 0.0, 0.5])
    bias[rng.random(VOCABULARY) < 0.1] = -np.inf
    penalties = {
        "exponent": float(rng.choice([0.0, 0.6, 1.0, 2.0])),
        "weight": float(rng.choice([0.0, 0.2, 1.0])),
    }
    return model, limits, Rules(bias=tuple(bias.tolist())), penalties


def program(compiled, beam_size, capacity, n_best, num_groups=1):
    def strategy(exponent, weight, source_mask, diversity=0.0):
        return Beam(
            beam_size,
            length_penalty=exponent,
            n_best=n_best,
            coverage_penalty=weight,
            attention=lambda cache: cache.attention,
            source_mask=source_mask,
            num_groups=num_groups,
            diversity_penalty=diversity,
        )

    return search_program(compiled, random_case(0, 1)[0], strategy, capacity)


def test_beam_as_wide_as_the_tree_finds_the_best_under_every_penalty(graph):
    # The last of four steps has 4^3 hypotheses of 5 extensions each.
    run = program(graph, 5 * 4**3, capacity=5, n_best=13)

    @many_seeds
    def check(seed):
        model, limits, rules, penalties = random_case(seed, longest=4)
        found, _ = run(model, limits, rules, source_mask=model.source_mask, **penalties)
        coverage = model.coverage(penalties["weight"])
        expected = exhaustive_search(model, limits, penalties["exponent"], 13, rules, coverage)
        check_found(found, expected, model)

    check()


def test_stopping_early_is_safe_under_every_penalty(compiled):
    run, early = program(compiled, 3, CAPACITY, n_best=2), []

    @many_seeds
    def check(seed):
        model, limits, rules, penalties = random_case(seed, CAPACITY)
        found, steps = run(model, limits, rules, source_mask=model.source_mask, **penalties)
        coverage = model.coverage(penalties["weight"])
        expected = naive_beam(model, limits, 3, penalties["exponent"], 2, rules, coverage)
        check_found(found, expected, model)
        early.append(steps < max(limits))

    check()
    assert sum(early) > 3


@pytest.mark.parametrize("num_groups, width, n_best", [(3, 2, 6)])
def test_groups_equal_a_plain_diverse_beam_search(graph, num_groups, width, n_best):
    run, early = program(graph, num_groups * width, CAPACITY, n_best, num_groups), []

    @many_seeds
    def check(seed):
        model, limits, rules, penalties = random_case(seed, CAPACITY)
        diversity = float(np.random.default_rng(seed + 1).choice([0.0, 0.3, 1.0, 10.0]))
        found, steps = run(
            model,
            limits,
            rules,
            source_mask=model.source_mask,
            diversity=diversity,
            **penalties,
        )
        expected = naive_beam(
            model,
            limits,
            num_groups * width,
            penalties["exponent"],
            n_best,
            rules,
            model.coverage(penalties["weight"]),
            num_groups,
            diversity,
        )
        check_found(found, expected, model)
        early.append(steps < max(limits))

    check()
    assert sum(early) > 3


def of_probabilities(probabilities):
    return HistoryModel.of_probabilities(probabilities, vocabulary=5)


def test_it_goes_on_only_as_long_as_a_bias_may_still_turn_the_order(graph):
    model = of_probabilities(
        {(): {EOS: 0.9, 3: 0.06, 4: 0.04}} | {(3,) * n: {3: 1.0} for n in range(1, CAPACITY)}
    )
    run = search_program(graph, model, lambda: Beam(2, length_penalty=0.0), CAPACITY)
    # ln 0.06 = -2.81, and at most eleven times the bias, against ln 0.9 = -0.11.
    for bias, steps in ((-5.0, 1), (0.0, 1), (0.24, 1), (0.25, CAPACITY)):
        assert run(model, [CAPACITY], Rules(bias=(0.0, 0.0, 0.0, bias, 0.0)))[1] == steps


def test_a_score_above_zero_is_best_while_it_is_short(graph):
    # With biases of 1.59 and 1 the first scores are ln 0.5 + 1 = 0.31 of one token, and of two
    # (ln 0.5 + 1.59 + 1) / (7 / 6)^10 = 0.41. Of three nothing could have more than
    # (ln 0.5 + 3 * 1.59) / (8 / 6)^10 = 0.23.
    model = of_probabilities({(): {EOS: 0.5, 3: 0.5}, (3,): {EOS: 1.0}})
    run = search_program(graph, model, lambda: Beam(2, length_penalty=10.0), 3)
    found, _ = run(model, [3], Rules(bias=(0.0, 0.0, 1.0, 1.59, 0.0)))
    (best,) = as_lists(found)[0]
    assert best.ids == (3, EOS)
    assert best.score == pytest.approx((math.log(0.5) + 2.59) * (6 / 7) ** 10, rel=1e-5)


@pytest.mark.tensorflow
def test_a_later_group_avoids_what_an_earlier_one_chose(graph):
    # ln 0.5 = -0.69, ln 0.4 = -0.92: 0.22 between them.
    model = of_probabilities(
        {(): {3: 0.5, 4: 0.4, EOS: 0.1}, (3,): {EOS: 1.0}, (4,): {EOS: 1.0}},
    )
    run = search_program(
        graph,
        model,
        lambda diversity: Beam(2, 0.0, n_best=2, num_groups=2, diversity_penalty=diversity),
        3,
    )
    # A hypothesis of both groups is returned once.
    for diversity, second in ((0.2, ()), (0.25, (4, EOS)), (9.0, (4, EOS))):
        found = as_lists(run(model, [3], diversity=diversity)[0])[0]
        assert [each.ids for each in found] == [(3, EOS), second]
        # The group's penalty is in no score.
        expected = [math.log(0.5), math.log(0.4)][: 1 + len(second) // 2]
        scores = [each.score for each in found][: len(expected)]
        np.testing.assert_allclose(scores, expected, rtol=1e-5)


@pytest.mark.tensorflow
def test_no_hypothesis_of_any_group_comes_twice(rng, graph):
    limits = [CAPACITY, 3, 5, 2, 7]
    model = HistoryModel.random(rng, SENTENCES, VOCABULARY, end=1.0)

    def strategy(diversity):
        return Beam(6, n_best=6, num_groups=3, diversity_penalty=diversity)

    run = search_program(graph, model, strategy, CAPACITY)
    for diversity in (0.0, 0.1, 0.5, 2.0):
        for found in as_lists(run(model, limits, diversity=diversity)[0]):
            ids = [each.ids for each in found if each.ids]
            assert len(ids) == len(set(ids)) >= 2


@pytest.mark.tensorflow
def test_in_a_vocabulary_of_several_blocks_it_finds_the_same(rng, graph):
    # 257 is prime: three blocks of 128, the last one padded (see `largest_of_rows`).
    limits = [5, 1, 4]
    model = HistoryModel.random(rng, 3, 257, histories=101, scale=3.0, end=4.0)
    run = search_program(graph, model, lambda: Beam(3, n_best=3), 5)
    expected = naive_beam(model, limits, 3, 0.6, 3)
    assert {EOS in each.ids for each in sum(expected, [])} == {True, False}
    check_found(run(model, limits)[0], expected, model)
