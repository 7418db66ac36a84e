"""Masks, drawn by hand: True = may attend."""

import keras
import numpy as np
import pytest
import reference
from keras import ops

from keras_transformer.layers import masks


def test_a_padding_mask_marks_the_real_tokens():
    ids = ops.convert_to_tensor([[5, 7, 0], [0, 3, 2]])
    for pad_id, expected in ((0, [[1, 1, 0], [0, 1, 1]]), (7, [[1, 0, 1], [1, 1, 1]])):
        mask = masks.padding_mask(ids, pad_id)
        assert keras.backend.standardize_dtype(mask.dtype) == "bool"
        np.testing.assert_array_equal(np.asarray(mask), expected)


@pytest.mark.parametrize(
    ("lengths", "rows"), [((3,), ["100", "110", "111"]), ((2, 3), ["100", "110"])]
)
def test_a_causal_mask_is_a_lower_triangle(lengths, rows):
    mask = np.asarray(masks.causal_mask(*lengths))
    drawn = ["".join("01"[cell] for cell in row) for row in mask[0, 0].astype(int)]
    assert drawn == rows
    assert mask.shape[:2] == (1, 1)
    assert mask.dtype == bool


def test_a_key_mask_of_integers_becomes_booleans():
    mask = masks.key_mask(ops.convert_to_tensor([[1, 0, 1]]))
    np.testing.assert_array_equal(np.asarray(mask), [[[[True, False, True]]]])


def test_the_softmax_over_one_key_is_one_or_zero_without_a_warning(recwarn):
    scores = ops.convert_to_tensor([[[3.0], [-7.0]]])
    np.testing.assert_array_equal(masks.masked_softmax(scores), [[[1], [1]]])
    mask = ops.convert_to_tensor([[[True], [False]]])
    np.testing.assert_array_equal(masks.masked_softmax(scores, mask), [[[1], [0]]])
    assert not [warning for warning in recwarn if "softmax" in str(warning.message)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_softmax_of_a_long_row_in_16_bits_is_that_in_float32(rng, dtype):
    scores = ops.cast(rng.normal(size=(2, 3, 700)), dtype)
    expected = reference.softmax(reference.float64(scores))
    np.testing.assert_allclose(masks.masked_softmax(scores), expected, rtol=1e-5)
