import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import Attention
from keras_transformer.layers.masks import padding_mask

SCORES = ["dot", "scaled_dot", "general", "additive"]
RNG = np.random.default_rng(5)
QUERY, VALUE = RNG.normal(size=(3, 4, 6)), RNG.normal(size=(3, 5, 6))
KEY = RNG.normal(size=(3, 5, 6))


def scores_of(name, weights, query, key):
    """Each score as its paper writes it, one pair at a time."""
    scores = np.zeros((*query.shape[:2], key.shape[1]))
    for b, i, j in np.ndindex(scores.shape):
        q, k = query[b, i], key[b, j]
        if name == "dot":
            scores[b, i, j] = q @ k
        elif name == "scaled_dot":
            scores[b, i, j] = q @ k / np.sqrt(len(q))
        elif name == "general":
            (matrix,) = weights
            scores[b, i, j] = q @ (k @ matrix)
        else:
            of_query, of_key, vector = weights
            scores[b, i, j] = vector @ np.tanh(q @ of_query + k @ of_key)
    return scores


def oracle(name, weights, query, value, key, mask):
    scores = scores_of(name, weights, query, key)
    shares = np.where(mask, np.exp(scores - scores.max(axis=2, keepdims=True)), 0.0)
    totals = shares.sum(axis=2, keepdims=True)
    shares = np.divide(shares, totals, out=np.zeros_like(shares), where=totals > 0)
    return shares @ value, shares


def weights_of(layer):
    by_name = {weight.path.split("/", 1)[1]: np.array(weight) for weight in layer.weights}
    names = ("query/kernel", "key/kernel", "vector")
    return [by_name[name] for name in names if name in by_name]


@pytest.mark.parametrize("score", SCORES)
def test_it_equals_its_formula_under_every_mask(score):
    layer = Attention(score, units=7 if score == "additive" else None)
    mask = RNG.random((3, 4, 5)) < 0.6
    mask[1, 2] = False  # a query with nothing to attend to
    outputs, shares = layer(QUERY, VALUE, KEY, attention_mask=mask, return_attention_scores=True)
    expected = oracle(score, weights_of(layer), QUERY, VALUE, KEY, mask)
    np.testing.assert_allclose(outputs, expected[0], atol=1e-5)
    np.testing.assert_allclose(shares, expected[1], atol=1e-5)
    assert np.all(ops.convert_to_numpy(outputs)[1, 2] == 0)


@pytest.mark.parametrize("score", SCORES)
def test_padding_never_changes_a_result(score):
    layer = Attention(score)
    alone = layer(QUERY[:1], VALUE[:1, :3])
    ids = np.array([[5, 6, 7, 0, 0]])
    for garbage in (0.0, 1e3):
        padded = np.where(ids[..., None] > 0, VALUE[:1], garbage)
        outputs = layer(QUERY[:1], padded, value_mask=padding_mask(ids))
        np.testing.assert_allclose(outputs, alone, atol=1e-6)


def test_general_and_additive_scores_take_keys_of_another_width():
    wide = RNG.normal(size=(3, 5, 9))
    for score, weights in (("general", [(9, 6)]), ("additive", [(6, 6), (9, 6), (6,)])):
        layer = Attention(score)
        outputs = layer(QUERY, VALUE, wide)
        assert [weight.shape for weight in weights_of(layer)] == weights
        everything = np.ones((3, 4, 5), bool)
        expected, _ = oracle(score, weights_of(layer), QUERY, VALUE, wide, everything)
        np.testing.assert_allclose(outputs, expected, atol=1e-5)
    for score in ("dot", "scaled_dot"):
        with pytest.raises(ValueError, match=f"{score} score needs keys with as many features"):
            Attention(score)(QUERY, VALUE, wide)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_large_scores_stay_numbers_in_half_precision(dtype):
    layer = Attention("dot", dtype=dtype)
    outputs = layer(200 * QUERY, VALUE, 200 * KEY)
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    assert np.all(np.isfinite(ops.convert_to_numpy(ops.cast(outputs, "float32"))))
