"""The model in LiteRT's operations, against plain NumPy."""

import types

import numpy as np
import pytest
import reference
from keras import ops

from keras_transformer import layers
from keras_transformer.export.litert_model import (
    HIDDEN,
    Attention,
    FeedForward,
    Linear,
    Norm,
    Residual,
    array,
)

pytestmark = pytest.mark.tensorflow

BATCH, QUERIES, KEYS, HEADS, KEY_DIM, WIDTH, MEMORY_WIDTH = 2, 3, 5, 7, 11, 13, 17


def test_projections_of_the_same_input_lie_side_by_side():
    # Into two heads of one unit each, and into one unit.
    heads = types.SimpleNamespace(
        kernel=np.array([[[1], [2]], [[3], [4]]]), bias=np.array([[5], [6]])
    )
    dense = types.SimpleNamespace(kernel=np.array([[7], [8]]), bias=np.array([9]))
    found = Linear.of(heads, dense, scale=0.5)
    np.testing.assert_array_equal(found.matrix, [[0.5, 1.5], [1, 2], [3.5, 4]])
    np.testing.assert_array_equal(found.bias, [2.5, 3, 4.5])
    rows = np.array([[1, 0], [10, 100]], "float32")
    np.testing.assert_array_equal(found(rows), [[3, 4, 8], [157.5, 213, 439.5]])


def test_a_projection_out_of_heads_takes_them_one_after_the_other():
    kernel = np.arange(6).reshape(2, 1, 3)  # Two heads of one unit, three outputs.
    out = Linear.of(types.SimpleNamespace(kernel=kernel, bias=np.zeros(3)))
    np.testing.assert_array_equal(out.matrix, [[0, 3], [1, 4], [2, 5]])


def test_weights_are_float32_whatever_they_were():
    half = ops.convert_to_tensor([0.5, 0.25], "bfloat16")
    assert array(half).dtype == "float32"
    np.testing.assert_array_equal(array(half), [0.5, 0.25])


class Case:
    """A layer of random weights, its inputs, and which keys are seen."""

    def __init__(self, randomize, rng):
        self.layer = layers.MultiHeadAttention(HEADS, KEY_DIM)
        self.layer.build((None, None, WIDTH), (None, None, MEMORY_WIDTH))
        randomize(self.layer)
        self.query = rng.normal(size=(BATCH, QUERIES, WIDTH)).astype("float32")
        self.memory = rng.normal(size=(BATCH, KEYS, MEMORY_WIDTH)).astype("float32")
        self.mask = rng.random((BATCH, 1, QUERIES, KEYS)) < 0.6
        self.mask[..., 1] = True

    def expected(self, mask):
        weights = reference.weights_of(self.layer)
        return reference.attention(weights, self.query, self.memory, mask=mask)[0]

    def attend(self, cuts, bias):
        """With the keys and their bias cut into parts."""
        attention = Attention.of(self.layer)
        parts = [
            attention.keys_and_values(part.reshape(-1, MEMORY_WIDTH), part.shape[1])
            for part in np.split(self.memory, cuts, axis=1)
        ]
        bias = [each.astype("float32") for each in np.split(bias, cuts, axis=3)]
        found = attention.attend(self.query.reshape(-1, WIDTH), QUERIES, parts, bias)
        return np.reshape(found, self.query.shape)


@pytest.fixture
def case(randomize, rng):
    return Case(randomize, rng)


# In parts, the first place of the second is not seen by all; a part of one place may be hidden.
@pytest.mark.parametrize("cuts", [[], [2], [2, 3]])
def test_attention_equals_the_numpy_oracle(case, cuts):
    assert not case.mask[:, :, :, 2].all()
    found = case.attend(cuts, np.where(case.mask, 0.0, HIDDEN))
    np.testing.assert_allclose(found, case.expected(case.mask), atol=1e-5)


@pytest.mark.parametrize("cuts", [[], [2], [2, 3]])
def test_what_is_hidden_weighs_exactly_nothing(case, cuts):
    bias = np.where(np.arange(KEYS) == 2, HIDDEN, np.zeros((BATCH, 1, QUERIES, KEYS)))
    before = case.attend(cuts, bias)
    case.memory[:, 2] = 1e4
    np.testing.assert_array_equal(case.attend(cuts, bias), before)


@pytest.mark.parametrize("cuts", [[], [2], [2, 3]])
def test_large_scores_overflow_nothing(case, cuts):
    # exp(500) is no float32. What all scores have in common changes nothing, and a part whose
    # scores are so much larger has all the weight.
    for seen in (np.ones(KEYS, bool), np.arange(KEYS) < 2, np.arange(KEYS) >= 3):
        bias = np.where(seen, 500.0, np.zeros((BATCH, 1, QUERIES, KEYS)))
        np.testing.assert_allclose(case.attend(cuts, bias), case.expected(seen), atol=1e-4)


def test_weights_are_multiplied_with_rows_and_no_size_is_read_from_a_tensor(case):
    import tensorflow as tf

    attention = Attention.of(case.layer)

    def attend(rows, memory, bias):
        parts = [attention.keys_and_values(each, KEYS) for each in (memory, memory)]
        return attention.attend(rows, QUERIES, parts, [bias, bias])

    specs = [
        tf.TensorSpec(shape) for shape in ((None, WIDTH), (None, MEMORY_WIDTH), (None, 1, 1, KEYS))
    ]
    graph = tf.function(attend, specs, autograph=False).get_concrete_function().graph
    types = [operation.type for operation in graph.get_operations()]
    # Queries, keys and values twice, and the output; scores and sums of values of two parts.
    assert (types.count("MatMul"), types.count("BatchMatMulV2")) == (4, 4)
    assert not {"Shape", "Select", "SelectV2", "Where", "Einsum"} & set(types)


def test_a_norm_equals_the_numpy_oracle(rng):
    rows = rng.normal(3.0, 0.1, (QUERIES, WIDTH)).astype("float32")
    gamma, beta = rng.normal(size=(2, WIDTH))
    layer = types.SimpleNamespace(gamma=gamma, beta=beta, epsilon=0.01)
    expected = reference.layer_norm({"gamma": gamma, "beta": beta}, rows, epsilon=0.01)
    np.testing.assert_allclose(Norm.of(layer)(rows), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("activation", "by_hand"),
    [("relu", lambda x: np.maximum(x, 0.0)), ("sigmoid", lambda x: 1 / (1 + np.exp(-x)))],
)
def test_the_feed_forward_sublayer_has_its_layers_weights(rng, randomize, activation, by_hand):
    layer = layers.FeedForward(KEY_DIM, activation)
    layer.build((None, None, WIDTH))
    randomize(layer)
    rows = rng.normal(size=(QUERIES, WIDTH)).astype("float32")
    weights = reference.weights_of(layer)
    inner = by_hand(rows @ weights["inner/kernel"] + weights["inner/bias"])
    expected = inner @ weights["outer/kernel"] + weights["outer/bias"]
    np.testing.assert_allclose(FeedForward.of(layer)(rows), expected, atol=1e-5)


def test_a_sublayer_is_normalized_before_it_or_after_the_sum():
    def double(x):
        return 2 * x

    def add_one(x):
        return x + 1

    assert Residual(double, first=True)(3, add_one) == 3 + (2 * 3 + 1)
    assert Residual(double, first=False)(3, add_one) == 2 * (3 + (3 + 1))
