"""Limits on the length; for the other constraints see `test_constrained_search.py`."""

import numpy as np

from keras_transformer.decoding.constraints import length_limits


def test_a_limit_is_a_multiple_of_the_source_and_more_up_to_the_largest():
    lengths = np.array([2, 0, 5, 1], "int32")
    np.testing.assert_array_equal(length_limits(lengths, 2.0, 10, 31), [14, 0, 20, 12])
    np.testing.assert_array_equal(length_limits(lengths, 2.0, 10, 13), [13, 0, 13, 12])
    np.testing.assert_array_equal(length_limits(lengths, 1.5, [0, 0, 3, 1], 31), [3, 0, 10, 2])
