"""Masks, drawn by hand: True = may attend."""

import keras
import numpy as np
import pytest
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


ADDED = np.array([[0.0, -1e4], [-np.inf, 0.0]], "float32")
TAKES_A_MASK = {
    "key_mask": masks.key_mask,
    "with_heads_axis": masks.with_heads_axis,
    "combine": masks.combine,
    "combine of two": lambda mask: masks.combine(ops.equal(ADDED, 0), mask),
    "masked_softmax": lambda mask: masks.masked_softmax(ops.zeros((2, 2)), mask),
}


@pytest.mark.parametrize("name", TAKES_A_MASK)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_mask_that_is_added_to_scores_is_refused(name, dtype):
    with pytest.raises(ValueError, match="must be bool, True = may attend. Received: .* of dtype "):
        TAKES_A_MASK[name](ops.cast(ADDED, dtype))
    TAKES_A_MASK[name](ops.equal(ADDED, 0))
