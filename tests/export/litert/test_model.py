"""The products and the attention in LiteRT's operations, against plain NumPy.

Blocks, norms and the rest are compared with the model's own search in `test_search.py`.
"""

import types

import numpy as np
import pytest
import reference

from keras_transformer import layers
from keras_transformer.export.litert.model import (
    HIDDEN,
    attend,
    keys_and_values,
    project,
)

pytestmark = pytest.mark.tensorflow

BATCH, QUERIES, KEYS, HEADS, KEY_DIM, WIDTH, MEMORY_WIDTH = 2, 3, 5, 7, 11, 13, 17


def test_projections_of_the_same_input_lie_side_by_side():
    # Into two heads of one unit each, and into one unit.
    heads = types.SimpleNamespace(
        kernel=np.array([[[1], [2]], [[3], [4]]]), bias=np.array([[5], [6]])
    )
    dense = types.SimpleNamespace(kernel=np.array([[7], [8]]), bias=np.array([9]))
    rows = np.array([[1, 0], [10, 100]], "float32")
    found = project(rows, heads, dense, scale=0.5)
    # By hand: matrix [[1, 3], [2, 4], [7, 8]] and bias [5, 6, 9], both halved.
    np.testing.assert_array_equal(found, [[3, 4, 8], [157.5, 213, 439.5]])


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
        parts = [
            keys_and_values(self.layer, part.reshape(-1, MEMORY_WIDTH), part.shape[1])
            for part in np.split(self.memory, cuts, axis=1)
        ]
        bias = [each.astype("float32") for each in np.split(bias, cuts, axis=3)]
        found = attend(self.layer, self.query.reshape(-1, WIDTH), QUERIES, parts, bias)
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

    def attend_twice(rows, memory, bias):
        parts = [keys_and_values(case.layer, each, KEYS) for each in (memory, memory)]
        return attend(case.layer, rows, QUERIES, parts, [bias, bias])

    specs = [
        tf.TensorSpec(shape) for shape in ((None, WIDTH), (None, MEMORY_WIDTH), (None, 1, 1, KEYS))
    ]
    graph = tf.function(attend_twice, specs, autograph=False).get_concrete_function().graph
    types = [operation.type for operation in graph.get_operations()]
    # Queries, keys and values twice, and the output; scores and sums of values of two parts.
    assert (types.count("MatMul"), types.count("BatchMatMulV2")) == (4, 4)
    assert not {"Shape", "Select", "SelectV2", "Where", "Einsum"} & set(types)
