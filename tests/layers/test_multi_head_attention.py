"""MultiHeadAttention against NumPy and against Keras, and what its masks promise."""

import inspect
import json
import math

import keras
import numpy as np
import pytest
import reference
from pairwise import POLICIES, pairwise
from reference import float64

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


def random_mask(rng, axes, key_length):
    """A mask in which every query sees at least one key."""
    shape = (BATCH, HEADS, QUERY, key_length)[4 - axes :]
    if axes == 3:
        shape = (BATCH, QUERY, key_length)
    mask = rng.random(shape) < 0.5
    mask[..., 1] = True
    return mask


def four_axes(mask):
    """The mask as NumPy broadcasts it to (batch, heads, query, key)."""
    return mask[:, None] if mask is not None and mask.ndim == 3 else mask


def attention(randomize, *shapes, **arguments):
    """A built layer whose weights, biases too, are all random."""
    layer = MultiHeadAttention(
        **{"num_heads": HEADS, "key_dim": KEY_DIM, "value_dim": VALUE_DIM, **arguments}
    )
    layer.build(*shapes)
    return randomize(layer)


@pairwise(kind=["self", "cross", "key_given"], mask_axes=[None, 2, 3, 4], causal=[False, True])
def test_equals_the_numpy_oracle_and_keras(rng, randomize, kind, mask_axes, causal):
    inputs = sequences(rng, kind)
    shapes = [x.shape for x in inputs]
    key_length = shapes[1][1]
    mask = None if mask_axes is None else random_mask(rng, mask_axes, key_length)
    if causal and mask is not None:
        mask[..., 0] = True  # The first query sees the first key alone.
    ours = attention(randomize, *shapes)
    theirs = keras.layers.MultiHeadAttention(HEADS, KEY_DIM, VALUE_DIM)
    theirs.build(*shapes)
    theirs.set_weights(ours.get_weights())
    call = dict(attention_mask=mask, use_causal_mask=causal, return_attention_scores=True)

    output, scores = ours(*inputs, **call)

    theirs_output, theirs_scores = theirs(*inputs, **call)
    np.testing.assert_allclose(float64(output), float64(theirs_output), atol=1e-5)
    np.testing.assert_allclose(float64(scores), float64(theirs_scores), atol=1e-6)
    visible = four_axes(mask)
    if causal:
        triangle = np.tri(QUERY, key_length, dtype=bool)
        visible = triangle if visible is None else triangle & visible
    expected, expected_scores = reference.attention(
        reference.weights_of(ours), *(float64(x) for x in inputs), mask=visible
    )
    np.testing.assert_allclose(float64(output), expected, atol=1e-5)
    np.testing.assert_allclose(float64(scores), expected_scores, atol=1e-6)


@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"value_dim": VALUE_DIM, "use_bias": False},
        {"output_shape": (5, 7), "attention_axes": 1},
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


@pytest.mark.parametrize("option", [{"use_gate": True}, {"attention_axes": (1, 2)}])
def test_a_configuration_that_asks_for_more_is_refused_in_one_line(option):
    (name,) = option
    config = keras.layers.MultiHeadAttention(HEADS, KEY_DIM).get_config() | option
    with pytest.raises(ValueError, match=f"`{name}` must be .*Keep `keras.layers.MultiH") as caught:
        MultiHeadAttention.from_config(config)
    assert "\n" not in str(caught.value)


def test_a_model_of_keras_layers_is_cloned_into_a_model_of_these():
    ids = keras.Input((QUERY,), dtype="int32")
    hidden = keras.layers.Embedding(29, QUERY_WIDTH, mask_zero=True)(ids)
    attended = keras.layers.MultiHeadAttention(HEADS, KEY_DIM)(hidden, hidden, use_causal_mask=True)
    theirs = keras.Model(ids, keras.layers.GlobalAveragePooling1D()(attended))

    def ours_of(layer):
        is_attention = isinstance(layer, keras.layers.MultiHeadAttention)
        layer_class = MultiHeadAttention if is_attention else type(layer)
        return layer_class.from_config(layer.get_config())

    ours = keras.models.clone_model(theirs, clone_function=ours_of)
    assert [type(layer) for layer in ours.layers][2] is MultiHeadAttention
    ours.set_weights(theirs.get_weights())
    rows = np.array([[3, 5, 7, 0, 0], [11, 0, 0, 0, 0]])
    np.testing.assert_allclose(float64(ours(rows)), float64(theirs(rows)), atol=1e-6)


def test_keras_also_masks_padded_queries(rng, randomize):
    query, value = sequences(rng, "cross")
    real = np.arange(QUERY) < np.array([[3], [1]])
    ours = attention(randomize, query.shape, value.shape, value_dim=None)
    theirs = keras.layers.MultiHeadAttention(HEADS, KEY_DIM)
    theirs.build(query.shape, value.shape)
    theirs.set_weights(ours.get_weights())
    query = query * real[:, :, None]
    masked = keras.layers.Masking()(query)
    plain, outputs, expected = (
        float64(x) for x in (ours(query, value), ours(masked, value), theirs(masked, value))
    )
    np.testing.assert_allclose(outputs, plain, atol=1e-6)
    np.testing.assert_allclose(outputs[real], expected[real], atol=1e-5)
    assert np.abs(outputs[~real] - expected[~real]).max() > 1e-3


@pytest.mark.parametrize("output_shape", [29, (5, 7)])
def test_outputs_of_another_shape_equal_those_of_keras_own_layer(rng, randomize, output_shape):
    inputs = sequences(rng, "cross")
    shapes = [x.shape for x in inputs]
    ours = attention(randomize, *shapes, value_dim=None, output_shape=output_shape)
    theirs = keras.layers.MultiHeadAttention(HEADS, KEY_DIM, output_shape=output_shape)
    theirs.build(*shapes)
    theirs.set_weights(ours.get_weights())
    mask = random_mask(rng, 3, KEY)
    output = float64(ours(*inputs, attention_mask=mask))
    np.testing.assert_allclose(output, float64(theirs(*inputs, attention_mask=mask)), atol=1e-5)
    assert ours.compute_output_shape(*shapes) == output.shape


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


@pairwise(
    length=[9, 17],
    axes=[None, (1, 1, 1), (2, 1, 1), (1, 3, 9), (2, 1, 9)],
    causal=[False, True],
    args=[
        {},
        {"num_kv_heads": 1, "positions": "rotary", "key_dim": 10},
        {"positions": "relative"},
        {"positions": "alibi"},
    ],
)
def test_a_long_sequence_is_the_same_block_by_block(rng, randomize, length, axes, causal, args):
    """Without the weights it is computed in blocks, with them it is not."""
    inputs = rng.normal(size=(BATCH, length, QUERY_WIDTH)).astype("float32")
    layer = attention(randomize, inputs.shape, inputs.shape, **{"sliding_window": 3, **args})
    mask = None
    if axes is not None:
        batch, heads, rows = axes
        mask = rng.random((batch, heads, 1 if rows == 1 else length, length)) < 0.7
    call = dict(attention_mask=mask, use_causal_mask=causal)
    expected, _ = layer(inputs, inputs, return_attention_scores=True, **call)
    np.testing.assert_allclose(float64(layer(inputs, inputs, **call)), float64(expected), atol=2e-6)


@pytest.mark.parametrize("training", [False, True])
def test_dropout_acts_block_by_block_too(rng, randomize, training):
    """Each query sees only itself: its value is dropped, or counts four times."""
    inputs = rng.normal(size=(BATCH, 17, QUERY_WIDTH)).astype("float32")
    options = {"num_heads": 1, "sliding_window": 1, "dropout": 0.75, "seed": 7}
    layer = attention(randomize, inputs.shape, inputs.shape, **options)
    weights = reference.weights_of(layer)
    value = inputs @ weights["value/kernel"][:, 0] + weights["value/bias"][0]
    value = value @ weights["attention_output/kernel"][0]
    output = float64(layer(inputs, inputs, training=training)) - weights["attention_output/bias"]
    if not training:
        np.testing.assert_allclose(output, value, atol=1e-5)
        return
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
    kernels = {k: v for k, v in reference.weights_of(layer).items() if k.endswith("kernel")}
    assert len(kernels) == 4
    for kernel in kernels.values():
        # 22,321 draws: the largest lies within a tenth of a percent of the bound or so.
        assert 0.995 * limit < np.abs(kernel).max() <= limit * (1 + 1e-6)
        assert abs(kernel.std() / (limit / math.sqrt(3)) - 1) < 0.02
        assert abs(kernel.mean()) < 0.03 * limit


def test_the_projections_are_made_as_keras_makes_its_own():
    """Initializers, regularizers and constraints reach all four, in the same way."""
    normal, max_norm = keras.initializers.RandomNormal(stddev=0.5), keras.constraints.MaxNorm(3)
    regularizers = keras.regularizers.L1(0.25), keras.regularizers.L2(0.125)
    kernels = ("kernel_initializer", "he_normal"), ("kernel_regularizer", "l2")
    biases = ("bias_initializer", normal), ("bias_constraint", max_norm)
    arguments = dict([*kernels, *biases, ("kernel_constraint", "non_neg")])
    arguments |= zip(("bias_regularizer", "activity_regularizer"), regularizers, strict=True)
    ours = MultiHeadAttention(HEADS, KEY_DIM, **arguments)
    ours = MultiHeadAttention.from_config(ours.get_config())
    theirs = keras.layers.MultiHeadAttention(HEADS, KEY_DIM, **arguments)
    for layer in (ours, theirs):
        layer.build((None, None, QUERY_WIDTH), (None, None, VALUE_WIDTH))
    others = theirs.query_dense, theirs.key_dense, theirs.value_dense, theirs.output_dense
    for mine, other in zip(ours.projections, others, strict=True):
        mine, other = mine.get_config(), other.get_config()
        for name in arguments:
            assert mine[name] == other[name], name
    kernels = [float64(projection.kernel) for projection in ours.projections]
    assert np.abs(kernels[1] - kernels[2]).max() > 0.1  # Each draws for itself.


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 17), (2, 7, 19)), r"`query` must have the axes .*query of shape \(2, 17\)"),
        (((2, 5, 18), (2, 7, 19)), r"`query` must have the 17 features .*shape \(2, 5, 18\)"),
        (((2, 5, 17), (2, 7, 19), (2, 7, 20)), r"`key` must have the 19 features"),
        (((2, 5, 17), (2, 7, 19), (2, 8, 19)), r"`value` and `key` must have the same length"),
    ],
)
def test_inputs_of_other_shapes_are_refused_in_words(randomize, shapes, message):
    layer = attention(randomize, (2, 5, 17), (2, 7, 19))
    with pytest.raises(ValueError, match=message):
        layer(*(np.ones(shape, "float32") for shape in shapes))
    with pytest.raises(ValueError, match="must have the axes"):
        MultiHeadAttention(HEADS, KEY_DIM).build((2, 5, 17), (2, 19))


@pytest.mark.parametrize("masked", ["query and value", "key"])
def test_the_mask_of_an_embedding_hides_padded_keys_and_travels_on(rng, masked):
    ids = keras.Input((QUERY,), dtype="int32")
    rows = np.array([[3, 5, 7, 0, 0], [11, 0, 0, 0, 0]])
    embedding = keras.layers.Embedding(29, QUERY_WIDTH, mask_zero=True)
    layer, other = MultiHeadAttention(HEADS, KEY_DIM), keras.Input((QUERY, QUERY_WIDTH))
    hidden = embedding(ids)
    attended = layer(hidden, hidden) if masked != "key" else layer(other, other, hidden)
    outputs = [attended, keras.layers.GlobalAveragePooling1D()(attended)]
    model = keras.Model([ids, other] if masked == "key" else ids, outputs)
    vectors, unmasked = embedding(rows), rng.normal(size=(BATCH, QUERY, QUERY_WIDTH))
    inputs = (vectors, vectors) if masked != "key" else (unmasked, unmasked, vectors)
    given = [rows, unmasked] if masked == "key" else rows
    output, pooled = (float64(x) for x in model(given))
    explicit = float64(layer(*map(np.asarray, inputs), attention_mask=(rows != 0)[:, None]))
    np.testing.assert_allclose(output, explicit, atol=1e-6)
    assert np.abs(output - float64(layer(*map(np.asarray, inputs)))).max() > 1e-3
    real = [(0, 3), (1, 1)] if masked != "key" else [(0, QUERY), (1, QUERY)]
    expected = np.stack([output[row, :length].mean(0) for row, length in real])
    np.testing.assert_allclose(pooled, expected, atol=1e-6)
