"""Options of multi-head attention together, against attention in NumPy."""

import keras
import numpy as np
import pytest
import reference
from pairwise import pairwise
from reference import weights_of

from keras_transformer.layers import MultiHeadAttention

HEADS, FEATURES = 4, 6


def drawn(rng, layer, batch=2, query=5, keys=7):
    inputs = [rng.normal(size=(batch, n, FEATURES)).astype("float32") for n in (query, keys, keys)]
    layer.build(*(tensor.shape for tensor in inputs))
    layer.set_weights([rng.normal(size=w.shape) * 0.7 for w in layer.weights])
    return inputs


MASKS = {
    "none": lambda rng, *shape: {},
    "attention": lambda rng, b, h, q, k: {"attention_mask": rng.random((b, h, q, k)) < 0.6},
    "key": lambda rng, b, h, q, k: {"key_mask": rng.random((b, k)) < 0.7},
    "both": lambda rng, b, h, q, k: {
        name: rng.random((b, k)) < 0.7 for name in ("key_mask", "value_mask")
    },
}


@pairwise(
    kv_heads=(1, 2, 4),
    value_dim=(None, 3),
    positions=(None, "rotary", "relative", "alibi"),
    with_values=(False, True),
    window=(None, 1, 3),
    causal=(False, True),
    masks=tuple(MASKS),
    keys=(5, 7, 24),
    bias=(False, True),
)
def test_any_options_together_are_attention_one_query_at_a_time(
    kv_heads, value_dim, positions, with_values, window, causal, masks, keys, bias
):
    """Also where a window is so narrow that the layer attends in blocks."""
    rng = np.random.default_rng(0)
    layer = MultiHeadAttention(
        HEADS,
        4,
        value_dim,
        use_bias=bias,
        num_kv_heads=kv_heads,
        sliding_window=window,
        positions=positions,
        max_distance=2,
        relative_values=with_values and positions == "relative",
    )
    query, value, key = drawn(rng, layer, query=keys, keys=keys)
    shape = len(query), HEADS, keys, keys
    given = MASKS[masks](rng, *shape)
    mask = np.tril(np.ones(shape[2:], bool)) if causal else np.ones(shape, bool)
    mask = mask & given.get("attention_mask", True)
    for name in ("key_mask", "value_mask"):
        if name in given:
            mask = mask & given[name][:, None, None, :]
    options = dict(mask=mask, window=window)
    options |= {name: positions == name for name in ("rotary", "alibi")}
    expected, weights = reference.attention(weights_of(layer), query, value, key, **options)
    output = layer(query, value, key, use_causal_mask=causal, **given)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)
    output, scores = layer(
        query, value, key, use_causal_mask=causal, return_attention_scores=True, **given
    )
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(scores, weights, rtol=1e-4, atol=1e-4)


@pairwise(
    kv_heads=(2, 4),
    positions=(None, "rotary", "relative", "alibi"),
    with_values=(False, True),
    scores=(False, True),
    rate=(0.3, 0.9),
)
def test_dropout_hides_weights_from_all_values_by_its_seed(
    kv_heads, positions, with_values, scores, rate
):
    rng = np.random.default_rng(1)
    layer = MultiHeadAttention(
        HEADS,
        4,
        3,
        rate,
        num_kv_heads=kv_heads,
        positions=positions,
        max_distance=2,
        relative_values=with_values and positions == "relative",
        seed=7,
    )
    query, value, key = drawn(rng, layer)
    weights = weights_of(layer)
    inside = {name: positions == name for name in ("rotary", "alibi")}
    _, expected_scores = reference.attention(weights, query, value, key, **inside)
    mask = keras.layers.Dropout(rate, seed=7)(
        np.ones(expected_scores.shape, "float32"), training=True
    )
    dropped = expected_scores * np.asarray(mask)
    values = np.einsum("bkf,fnd->bnkd", value, weights["value/kernel"])
    values += weights["value/bias"][:, None]
    heads = dropped @ values.repeat(HEADS // kv_heads, axis=1)
    if "distance_values" in weights:
        distances = np.arange(value.shape[1]) - np.arange(query.shape[1])[:, None]
        vectors = weights["distance_values"][np.clip(distances, -2, 2) + 2]
        heads += np.einsum("bnqk,qkd->bnqd", dropped, vectors)
    expected = np.einsum("bnqd,nde->bqe", heads, weights["attention_output/kernel"])
    expected += weights["attention_output/bias"]
    output = layer(query, value, key, return_attention_scores=scores, training=True)
    if scores:
        output, returned = output
        np.testing.assert_allclose(returned, expected_scores, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)


def drawn_apart(rng, layer):
    """Draws queries, values and keys whose scores are beyond float16 and choose one key each.

    The best two scores of a query differ by more than the rounding of bfloat16 on any processor.
    """
    query, value, key = drawn(rng, layer)
    query, key = 300 * query, 300 * key
    weights = weights_of(layer)
    keys = np.einsum("bkf,fnd->bnkd", key, weights["key/kernel"]) + weights["key/bias"][:, None]
    keys = keys.repeat(HEADS // keys.shape[1], axis=1)
    largest = 0.0
    for batch, position in np.ndindex(query.shape[:2]):
        while True:
            vector = query[batch, position]
            heads = np.einsum("f,fnd->nd", vector, weights["query/kernel"]) + weights["query/bias"]
            products = heads[:, None] * keys[batch]  # --> [heads, key, key_dim]
            scores = np.sort(products.sum(axis=2)) / 2  # √key_dim
            sizes = np.abs(products).sum(axis=2).max(axis=1)
            if np.all(scores[:, -1] - scores[:, -2] > 0.02 * sizes):
                break
            query[batch, position] = 300 * rng.normal(size=FEATURES)
        largest = max(largest, np.abs(scores).max())
    assert largest > np.finfo("float16").max
    return query, value, key


@pytest.mark.parametrize("policy", ["float16", "mixed_float16", "bfloat16", "mixed_bfloat16"])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_scores_beyond_float16_choose_one_key(policy, kv_heads):
    rng = np.random.default_rng(0)
    layer = MultiHeadAttention(HEADS, 4, num_kv_heads=kv_heads, dtype=policy)
    query, value, key = drawn_apart(rng, layer)
    expected, _ = reference.attention(weights_of(layer), query, value, key)
    output = reference.float64(layer(query, value, key))
    assert np.isfinite(output).all()
    np.testing.assert_allclose(output, expected, rtol=0.1, atol=0.1)
