"""MultiHeadAttention against NumPy and against Keras, and what its masks promise."""

import inspect
import json
import math

import keras
import numpy as np
import pytest
import reference
from pairwise import POLICIES, pairwise
from reference import float64, weights_of

from keras_transformer.layers import MultiHeadAttention

BATCH, QUERY, KEY = 2, 5, 7
HEADS, KEY_DIM, VALUE_DIM = 3, 11, 13
QUERY_WIDTH, VALUE_WIDTH, KEY_WIDTH = 17, 19, 23


def sequences(rng, kind):
    """The positional arguments of a call: query, value and, if given, key."""
    query = rng.normal(size=(BATCH, QUERY, QUERY_WIDTH)).astype("float32")
    if kind == "self":
        return query, query
    value = rng.normal(size=(BATCH, KEY, VALUE_WIDTH)).astype("float32")
    if kind == "cross":
        return query, value
    return query, value, rng.normal(size=(BATCH, KEY, KEY_WIDTH)).astype("float32")


def attention(randomize, *shapes, **arguments):
    """A built layer whose weights, biases too, are all random."""
    layer = MultiHeadAttention(
        **{"num_heads": HEADS, "key_dim": KEY_DIM, "value_dim": VALUE_DIM, **arguments}
    )
    layer.build(*shapes)
    return randomize(layer)


@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"value_dim": VALUE_DIM, "use_bias": False},
        {"output_shape": (5, 7), "attention_axes": 1},
        {"output_shape": 29},
        {"sliding_window": 3, "kernel_initializer": "he_normal", "bias_regularizer": "l2"},
        {"flash_attention": False, "dtype": "mixed_bfloat16", "bias_constraint": "non_neg"},
        {"dropout": 0.5, "seed": 7},
    ],
    ids=" ".join,
)
def test_a_configuration_of_keras_layer_is_taken_whole(rng, randomize, options, is_built):
    inputs = sequences(rng, "cross")
    shapes = [x.shape for x in inputs]
    if options.keys() - {"dtype", *inspect.signature(keras.layers.MultiHeadAttention).parameters}:
        pytest.skip(f"Keras {keras.__version__} does not have these arguments")
    theirs = keras.layers.MultiHeadAttention(HEADS, KEY_DIM, name="theirs", **options)
    if is_built:  # Keras writes the axes of attention into the configuration.
        theirs.build(*shapes)
    config = json.loads(json.dumps(theirs.get_config()))
    ours = MultiHeadAttention.from_config(config)
    copy = MultiHeadAttention.from_config(ours.get_config())
    assert copy.get_config() == ours.get_config()
    values = {**theirs.get_config(), **ours.get_config()}
    assert {key: values[key] for key in config} == theirs.get_config()
    ours.build(*shapes)
    randomize(ours)
    if not is_built:
        theirs.build(*shapes)
    theirs.set_weights(ours.get_weights())
    call = {"training": "dropout" in options, "return_attention_scores": True}
    outputs, expected = (float64(layer(*inputs, **call)[0]) for layer in (ours, theirs))
    tolerance = 0.1 if "dtype" in options else 1e-5
    np.testing.assert_allclose(outputs, expected, atol=tolerance * np.abs(expected).max())
    assert ours.compute_output_shape(*shapes) == outputs.shape


@pytest.mark.parametrize("option", [{"use_gate": True}, {"attention_axes": (1, 2)}])
def test_a_configuration_that_asks_for_more_is_refused_in_one_line(option):
    (name,) = option
    config = keras.layers.MultiHeadAttention(HEADS, KEY_DIM).get_config() | option
    with pytest.raises(ValueError, match=f"`{name}` must be .*Keep `keras.layers.MultiH") as caught:
        MultiHeadAttention.from_config(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_query_that_sees_nothing_gives_zeros_and_no_gradient(rng, randomize, pull_back, policy):
    query, value = sequences(rng, "cross")
    layer = attention(randomize, query.shape, value.shape, dtype=policy, use_bias=False)
    mask = np.ones((BATCH, QUERY, KEY), bool)
    mask[0] = False
    mask[1, 3] = False
    blind = ~mask.any(-1)

    output, scores = layer(query, value, attention_mask=mask, return_attention_scores=True)

    output = float64(output)
    np.testing.assert_array_equal(output[blind], 0.0)
    assert (np.abs(output[~blind]).max(axis=-1) > 0).all()
    row_sums = float64(scores).sum(-1)
    np.testing.assert_array_equal(row_sums[0], 0.0)
    np.testing.assert_array_equal(row_sums[1, :, 3], 0.0)
    np.testing.assert_allclose(row_sums[1][:, [0, 1, 2, 4]], 1.0, atol=0.02)
    of_query = query, lambda x: layer(x, value, attention_mask=mask)
    for moved, function in (of_query, (value, lambda x: layer(query, x, attention_mask=mask))):
        outputs, pull = pull_back(function, moved)
        gradient = pull(rng.normal(size=outputs.shape))
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(gradient[0], 0.0)
        assert np.abs(gradient[1]).max() > 0


@pytest.mark.parametrize(
    ("policy", "use_causal_mask"), list(zip(POLICIES, (False, False, True), strict=True))
)
def test_large_activations_stay_finite(rng, randomize, pull_back, policy, use_causal_mask):
    query = 1e3 * rng.normal(size=(BATCH, QUERY, QUERY_WIDTH))
    layer = attention(randomize, query.shape, query.shape, dtype=policy)
    mask = rng.random((QUERY, QUERY)) < 0.5
    outputs, pull = pull_back(
        lambda x: layer(x, x, attention_mask=mask, use_causal_mask=use_causal_mask), query
    )
    assert np.isfinite(float64(outputs)).all()
    assert np.isfinite(pull(rng.normal(size=outputs.shape))).all()


def test_dropout_acts_block_by_block_too(rng, randomize):
    """Each query sees only itself: its value is dropped, or counts four times."""
    inputs = rng.normal(size=(BATCH, 17, QUERY_WIDTH)).astype("float32")
    options = {"num_heads": 1, "sliding_window": 1, "dropout": 0.75, "seed": 7}
    layer = attention(randomize, inputs.shape, inputs.shape, **options)
    weights = weights_of(layer)
    value = inputs @ weights["value/kernel"][:, 0] + weights["value/bias"][0]
    value = value @ weights["attention_output/kernel"][0]
    output = float64(layer(inputs, inputs, training=True)) - weights["attention_output/bias"]
    is_dropped = np.abs(output).max(axis=2) < 1e-5  # --> [batch, length]
    assert is_dropped.any() and not is_dropped.all()
    np.testing.assert_allclose(output[~is_dropped], 4 * value[~is_dropped], rtol=1e-4, atol=1e-4)


@pytest.mark.tensorflow
@pytest.mark.parametrize("axes", [(2, 1, 1), (1, 1, 2), (2, 3, 2)])
def test_a_length_that_is_unknown_until_it_runs_is_seen_block_by_block_too(rng, randomize, axes):
    import tensorflow as tf

    shape = (None, None, QUERY_WIDTH)
    layer = attention(randomize, shape, shape, sliding_window=3)
    batch, heads, rows = axes
    specs = (
        tf.TensorSpec(shape),
        tf.TensorSpec((batch, heads, 1 if rows == 1 else None, None), bool),
    )

    @tf.function(input_signature=specs, autograph=False)
    def run(inputs, mask):
        return layer(inputs, inputs, attention_mask=mask, use_causal_mask=True)

    for length in (1, 7, 8, 9, 17):
        inputs = rng.normal(size=(BATCH, length, QUERY_WIDTH)).astype("float32")
        mask = rng.random((batch, heads, 1 if rows == 1 else length, length)) < 0.7
        call = dict(attention_mask=mask, use_causal_mask=True, return_attention_scores=True)
        expected, _ = layer(inputs, inputs, **call)
        np.testing.assert_allclose(float64(run(inputs, mask)), float64(expected), atol=2e-6)


def test_initial_kernels_are_glorot_uniform_over_the_flattened_matrix():
    heads, key_dim, width = 13, 17, 101
    layer = MultiHeadAttention(heads, key_dim)
    layer.build((None, None, width), (None, None, width))
    limit = math.sqrt(6 / (width + heads * key_dim))
    kernels = {k: v for k, v in weights_of(layer).items() if k.endswith("kernel")}
    assert len(kernels) == 4
    for kernel in kernels.values():
        # 22,321 draws: the largest lies within a tenth of a percent of the bound or so.
        assert 0.995 * limit < np.abs(kernel).max() <= limit * (1 + 1e-6)
        assert abs(kernel.std() / (limit / math.sqrt(3)) - 1) < 0.02
        assert abs(kernel.mean()) < 0.03 * limit


NUM_HEADS, FEATURES = 4, 6


def drawn(rng, layer, batch=2, query=5, keys=7):
    inputs = [rng.normal(size=(batch, n, FEATURES)).astype("float32") for n in (query, keys, keys)]
    layer.build(*(tensor.shape for tensor in inputs))
    layer.set_weights([rng.normal(size=w.shape) * 0.7 for w in layer.weights])
    return inputs


MASKS = {
    "none": lambda rng, *shape: {},
    "of heads": lambda rng, b, h, q, k: {"attention_mask": rng.random((b, h, q, k)) < 0.6},
    "of a head": lambda rng, b, h, q, k: {"attention_mask": rng.random((1, h, q, k)) < 0.6},
    "of pairs": lambda rng, b, h, q, k: {"attention_mask": rng.random((b, 1, q, k)) < 0.6},
    "of keys": lambda rng, b, h, q, k: {"attention_mask": rng.random((b, 1, 1, k)) < 0.6},
    "key": lambda rng, b, h, q, k: {"key_mask": rng.random((b, k)) < 0.7},
    "both": lambda rng, b, h, q, k: {
        name: rng.random((b, k)) < 0.7 for name in ("key_mask", "value_mask")
    },
}


@pairwise(
    kv_heads=(1, 2, 4),
    value_dim=(None, 3),
    positions=(None, "rotary", "relative", "relative with values", "alibi"),
    window=(None, 1, 3),
    causal=(False, True),
    masks=tuple(MASKS),
    keys=(5, 7, 24),
    bias=(False, True),
)
def test_any_options_together_are_attention_one_query_at_a_time(
    kv_heads, value_dim, positions, window, causal, masks, keys, bias
):
    """Also where a window is so narrow that the layer attends in blocks."""
    rng = np.random.default_rng(0)
    layer = MultiHeadAttention(
        NUM_HEADS,
        4,
        value_dim,
        use_bias=bias,
        num_kv_heads=kv_heads,
        sliding_window=window,
        positions=positions and positions.split()[0],
        max_distance=2,
        relative_values=positions == "relative with values",
    )
    query, value, key = drawn(rng, layer, query=keys, keys=keys)
    shape = len(query), NUM_HEADS, keys, keys
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


def drawn_apart(rng, layer):
    """Draws queries, values and keys whose scores are beyond float16 and choose one key each.

    The best two scores of a query differ by more than the rounding of bfloat16 on any processor.
    """
    query, value, key = drawn(rng, layer)
    query, key = 300 * query, 300 * key
    weights = weights_of(layer)
    keys = np.einsum("bkf,fnd->bnkd", key, weights["key/kernel"]) + weights["key/bias"][:, None]
    keys = keys.repeat(NUM_HEADS // keys.shape[1], axis=1)
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


@pytest.mark.parametrize(
    ("policy", "kv_heads"),
    [("float16", 1), ("mixed_float16", 4), ("bfloat16", 4), ("mixed_bfloat16", 1)],
)
def test_scores_beyond_float16_choose_one_key(policy, kv_heads):
    rng = np.random.default_rng(0)
    layer = MultiHeadAttention(NUM_HEADS, 4, num_kv_heads=kv_heads, dtype=policy)
    query, value, key = drawn_apart(rng, layer)
    expected, _ = reference.attention(weights_of(layer), query, value, key)
    output = float64(layer(query, value, key))
    assert np.isfinite(output).all()
    np.testing.assert_allclose(output, expected, rtol=0.1, atol=0.1)
