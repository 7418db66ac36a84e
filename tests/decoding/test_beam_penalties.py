"""When a beam search with a bias stops; on random models see `test_constrained_search.py`."""

import math

import pytest
from decoding_oracles import HistoryModel, as_lists, search_program
from naive_search import EOS, Rules

from keras_transformer.decoding import Beam

CAPACITY = 11


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
