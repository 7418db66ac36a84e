"""Masks, drawn by hand: True = may attend."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import masks


def test_a_padding_mask_marks_the_real_tokens():
    ids = ops.convert_to_tensor([[5, 7, 0], [0, 3, 2]])
    expected = [[True, True, False], [False, True, True]]
    mask = masks.padding_mask(ids)
    assert keras.backend.standardize_dtype(mask.dtype) == "bool"
    np.testing.assert_array_equal(np.asarray(mask), expected)


def test_a_padding_mask_goes_by_the_given_id():
    mask = masks.padding_mask(ops.convert_to_tensor([[5, 7, 0]]), pad_id=7)
    np.testing.assert_array_equal(np.asarray(mask), [[True, False, True]])


def test_a_window_mask_hides_what_is_farther_away():
    mask = masks.window_mask(ops.convert_to_tensor([5, 2]), ops.arange(7), 3)
    drawn = ["".join("01"[cell] for cell in row) for row in np.asarray(mask)[0, 0].astype(int)]
    assert drawn == ["0001111", "1111100"]


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [
        ((3,), ["100", "110", "111"]),
        ((2, 3), ["100", "110"]),
        ((3, 2), ["10", "11", "11"]),
        ((1, 5), ["10000"]),
    ],
)
def test_a_causal_mask_is_a_lower_triangle(lengths, rows):
    mask = np.asarray(masks.causal_mask(*lengths))
    drawn = ["".join("01"[cell] for cell in row) for row in mask[0, 0].astype(int)]
    assert drawn == rows
    assert mask.shape[:2] == (1, 1)
    assert mask.dtype == bool


def test_a_key_mask_holds_for_every_head_and_query():
    mask = np.array([[True, False, True]])
    np.testing.assert_array_equal(np.asarray(masks.key_mask(mask)), [[[[True, False, True]]]])
    assert masks.key_mask(None) is None


def test_a_key_mask_of_integers_becomes_booleans():
    mask = masks.key_mask(ops.convert_to_tensor([[1, 0, 1]]))
    np.testing.assert_array_equal(np.asarray(mask), [[[[True, False, True]]]])


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((5, 7), (1, 1, 5, 7)), ((2, 5, 7), (2, 1, 5, 7)), ((2, 3, 5, 7), (2, 3, 5, 7))],
)
def test_an_attention_mask_gets_the_axes_it_lacks(rng, shape, expected):
    mask = rng.random(shape) < 0.5
    result = np.asarray(masks.with_heads_axis(mask))
    np.testing.assert_array_equal(result, mask.reshape(expected))


def test_no_attention_mask_stays_none():
    assert masks.with_heads_axis(None) is None


@pytest.mark.parametrize("shape", [(7,), (2, 3, 5, 7, 11)])
def test_other_axes_are_refused_with_the_shape(shape):
    with pytest.raises(ValueError) as caught:
        masks.with_heads_axis(np.ones(shape, bool))
    assert str(shape) in str(caught.value)


def test_both_is_what_every_mask_allows():
    first = ops.convert_to_tensor([True, True, False, False])
    second = ops.convert_to_tensor([True, False, True, False])
    expected = [True, False, False, False]
    np.testing.assert_array_equal(np.asarray(masks.combine(first, None, second)), expected)
    np.testing.assert_array_equal(np.asarray(masks.combine(None, second)), np.asarray(second))
    assert masks.combine(None, None) is None
