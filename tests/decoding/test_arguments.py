"""The options that a compiled search takes as arguments."""

import numpy as np

from keras_transformer.decoding import DecodingOptions
from keras_transformer.decoding.arguments import search_arguments
from keras_transformer.decoding.constraints import length_limits

SOURCE = np.array([[5, 2, 0], [3, 4, 2]], "int32")


def test_no_ratio_is_a_limit_that_nothing_reaches():
    arguments = search_arguments(DecodingOptions(max_length_ratio=float("inf")), SOURCE, 40)
    ratio, margin = arguments.max_length_ratio, arguments.max_length_margin
    limits = length_limits(np.array([1, 500], "int32"), ratio, margin, 10**6)
    np.testing.assert_array_equal(limits, [10**6] * 2)


def test_the_options_own_length_comes_before_the_engines():
    assert search_arguments(DecodingOptions(max_length=5), SOURCE, 40).max_length == 5
    assert search_arguments(DecodingOptions(), SOURCE, 40).max_length == 40


def test_samples_have_the_seed_of_the_options_unless_seeds_are_given():
    options = DecodingOptions(sampling=True, seed=11)
    np.testing.assert_array_equal(search_arguments(options, SOURCE, 9).seeds, [11, 11])
    np.testing.assert_array_equal(search_arguments(options, SOURCE, 9, [3, 4]).seeds, [3, 4])
    assert search_arguments(DecodingOptions(), SOURCE, 9).seeds is None


def test_rows_are_taken_of_what_each_sentence_has_alone():
    seeds, bias = np.array([7, 9], "int32"), np.zeros(13, "float32")
    arguments = search_arguments(DecodingOptions(sampling=True), SOURCE, 9, seeds, None, bias)
    chosen = arguments.of_rows([1, 1, 0])
    np.testing.assert_array_equal(chosen.source_ids, SOURCE[[1, 1, 0]])
    np.testing.assert_array_equal(chosen.seeds, [9, 9, 7])
    assert chosen.prefixes is None and chosen.logit_bias is bias
    assert chosen._replace(source_ids=0, seeds=0) == arguments._replace(source_ids=0, seeds=0)
