"""Rankings against the formulas of their papers."""

import itertools
import math

import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding import DecodingOptions
from keras_transformer.decoding.ranking import RANKINGS

EXPONENTS, PRICES, LENGTHS = (0.0, 0.6, 1.0, 2.5), (0.0, 0.3, 2.0), (0, 1, 2, 7, 300)
TOTALS = (-50.0, -1.5, 0.0, 0.25, 9.0)
NUMBERS = {
    name: [*itertools.product(EXPONENTS, PRICES[: 3 if name == "marian" else 1])]
    for name in RANKINGS
}


def formula(name, exponent, price, total, length):
    length = max(length, 1)
    if name == "gnmt":
        return total / math.pow((5 + length) / 6, exponent)
    return (total - price * length) / math.pow(length, exponent)


def ranking_of(name, exponent, price):
    options = {"length_normalization": name, "length_penalty": exponent, "word_penalty": price}
    return DecodingOptions(**options).ranking


@pytest.mark.parametrize("name", RANKINGS)
def test_a_score_is_its_formula_for_numbers_arrays_and_tensors(name):
    pairs = [*itertools.product(TOTALS, LENGTHS)]
    totals, lengths = np.transpose(pairs)
    arrays = totals.astype("float32"), lengths.astype("int32")
    tensors = [*map(ops.convert_to_tensor, arrays)]
    for numbers in NUMBERS[name]:
        ranking = ranking_of(name, *numbers)
        expected = [formula(name, *numbers, *pair) for pair in pairs]
        assert [ranking.score(*pair) for pair in pairs] == pytest.approx(expected, rel=1e-6)
        for several in (ranking.score(*arrays), ranking.score(*tensors)):
            np.testing.assert_allclose(np.asarray(several), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", RANKINGS)
def test_no_score_is_above_the_best_possible_one(name):
    """Log-probabilities only fall. Without a price one of the ends is the best possible score."""
    lengths = [(0, 1), (1, 1), (2, 9), (5, 40)]
    for (exponent, price), total, (shortest, longest) in itertools.product(
        NUMBERS[name], TOTALS, lengths
    ):
        ranking = ranking_of(name, exponent, price)
        numbers = np.float32(total), np.int32(shortest), np.int32(longest)
        best = float(ranking.best_possible(*map(ops.convert_to_tensor, numbers)))
        scores = [
            formula(name, exponent, price, reached, length)
            for reached in (total, total - 0.5, total - 20)
            for length in range(shortest, longest + 1)
        ]
        assert max(scores) <= best + 1e-5 * max(1, abs(best))
        if not price:
            assert max(scores) == pytest.approx(best, rel=1e-5, abs=1e-6)
