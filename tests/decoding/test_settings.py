"""The numbers that a compiled search takes as arguments."""

import numpy as np

from keras_transformer.decoding import DecodingOptions
from keras_transformer.decoding.settings import length_limits, settings_of


def test_a_limit_is_a_multiple_of_the_source_and_more_up_to_the_largest():
    lengths = np.array([2, 0, 5, 1], "int32")
    np.testing.assert_array_equal(length_limits(lengths, 2.0, 10, 31), [14, 0, 20, 12])
    np.testing.assert_array_equal(length_limits(lengths, 2.0, 10, 13), [13, 0, 13, 12])
    np.testing.assert_array_equal(length_limits(lengths, 1.5, [0, 0, 3, 1], 31), [3, 0, 10, 2])


def test_each_option_has_its_place():
    options = DecodingOptions(
        sampling=True,
        n_best=2,
        length_penalty=0.5,
        coverage_penalty=0.0,
        diversity_penalty=0.75,
        temperature=1.5,
        top_k=7,
        top_p=0.875,
        min_p=0.125,
        min_length=3,
        min_length_ratio=0.25,
        max_length_ratio=1.25,
        seed=11,
    )
    settings = settings_of(options, 40, batch=3)
    expected = [0.5, 0.0, 0.75, 1.5, 0.875, 0.125, 0.25, 1.25, 10]
    np.testing.assert_array_equal(settings.numbers, np.array(expected, "float32"))
    assert settings.integers.tolist() == [7, 3, 40] and settings.seeds.tolist() == [11] * 3
    assert settings.prefixes is None and settings.logit_bias is None


def test_the_options_own_length_comes_before_the_engines():
    assert settings_of(DecodingOptions(max_length=5), 40).integers[2] == 5


def test_no_ratio_is_a_limit_that_nothing_reaches():
    settings = settings_of(DecodingOptions(max_length_ratio=float("inf")), 40)
    ratio, extra = settings.numbers[7:]
    np.testing.assert_array_equal(
        length_limits(np.array([1, 500], "int32"), ratio, extra, 10**6), [10**6] * 2
    )


def test_greedy_and_beam_search_have_no_seeds():
    assert settings_of(DecodingOptions(), 40, batch=3).seeds is None
