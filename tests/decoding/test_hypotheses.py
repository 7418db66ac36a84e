"""The penalties and the forbidden ids, by hand."""

import numpy as np
import pytest

from keras_transformer.decoding.hypotheses import (
    IMPOSSIBLE,
    coverage_penalty,
    forbid,
    length_penalty,
)


@pytest.mark.parametrize("alpha", [0, 0.0, 0.6, 1, 2.0])
def test_a_single_token_has_penalty_one(alpha):
    assert float(length_penalty(1, alpha)) == 1.0


@pytest.mark.parametrize(
    "length, alpha, expected", [(7, 1, 2.0), (13, 2, 9.0), (19, 0.5, 2.0), (29, 0, 1.0)]
)
def test_the_penalty_is_a_power_of_five_plus_length_over_six(length, alpha, expected):
    # (5 + 7) / 6 = 2, (5 + 13) / 6 = 3, (5 + 19) / 6 = 4
    assert float(length_penalty(length, alpha)) == pytest.approx(expected, rel=1e-6)


def test_the_penalty_of_many_lengths_has_their_shape():
    penalties = length_penalty(np.array([[1, 7, 13]], "int32"), 1.0)
    np.testing.assert_allclose(penalties, [[1.0, 2.0, 3.0]], rtol=1e-6)


def test_a_source_token_attended_to_less_than_once_costs_its_logarithm():
    coverage = np.array([[0.5, 1.0, 0.25, 3.0, 0.125]], "float32")
    everything = np.ones((1, 5), bool)
    # ln 1/2 + 0 + ln 1/4 + 0 + ln 1/8 = -6 ln 2; more than once earns nothing.
    expected = -6 * np.log(2)
    np.testing.assert_allclose(coverage_penalty(coverage, everything), [expected], rtol=1e-6)
    padded = np.array([[True, True, True, True, False]])
    np.testing.assert_allclose(coverage_penalty(coverage, padded), [expected / 2], rtol=1e-6)
    assert float(coverage_penalty(coverage, ~everything)[0]) == 0.0


def test_a_source_token_never_attended_to_costs_much_but_not_infinitely_much():
    coverage, mask = np.zeros((2, 3), "float32"), np.array([[True, False, True]])
    np.testing.assert_allclose(coverage_penalty(coverage, mask), [2 * np.log(1e-6)] * 2, rtol=1e-6)


def test_the_coverage_of_each_hypothesis_is_its_own():
    coverage = np.array([[[1.0, 1.0], [0.5, 1.0], [0.5, 0.5]], [[0.5, 0.25]] * 3], "float32")
    mask = np.array([[[True, True]], [[False, True]]])
    expected = np.array([[0, -1, -2], [-2, -2, -2]]) * np.log(2)
    np.testing.assert_allclose(coverage_penalty(coverage, mask), expected, rtol=1e-6, atol=1e-7)


def test_forbidden_ids_become_impossible_and_the_others_stay():
    logits = np.array([[[7.0, 5.0, 3.0, 2.0]]], "float32")
    expected = [[[7.0, IMPOSSIBLE, 3.0, IMPOSSIBLE]]]
    np.testing.assert_array_equal(forbid(logits, (1, 3)), np.array(expected, "float32"))
    np.testing.assert_array_equal(forbid(logits, ()), logits)
