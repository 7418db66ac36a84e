"""The attention in LiteRT's operations, against plain NumPy.

Blocks, norms and the rest are compared with the model's own search in `test_search.py`.
"""

import numpy as np
import pytest
import reference

from keras_transformer import layers
from keras_transformer.base.impossible import HIDDEN
from keras_transformer.export.litert.model import attend, keys_and_values

pytestmark = pytest.mark.tensorflow

BATCH, QUERIES, KEYS, HEADS, KEY_DIM, WIDTH, MEMORY_WIDTH = 2, 3, 5, 7, 11, 13, 17


class Case:
    """A layer of random weights, its inputs, and which keys are seen."""

    def __init__(self, randomize, rng, heads=HEADS, **options):
        self.layer = layers.MultiHeadAttention(heads, KEY_DIM, **options)
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
        bias = [part.astype("float32") for part in np.split(bias, cuts, axis=3)]
        output = attend(self.layer, self.query.reshape(-1, WIDTH), QUERIES, parts, bias)
        return np.reshape(output, self.query.shape)


@pytest.fixture
def case(randomize, rng):
    return Case(randomize, rng)


# In parts, the first place of the second is not seen by all; a part of one place may be hidden.
@pytest.mark.parametrize("cuts", [[], [2], [2, 3]])
def test_attention_equals_the_numpy_oracle(case, cuts):
    assert not case.mask[:, :, :, 2].all()
    output = case.attend(cuts, np.where(case.mask, 0.0, HIDDEN))
    np.testing.assert_allclose(output, case.expected(case.mask), atol=1e-5)


@pytest.mark.parametrize("cuts", [[], [2]])
def test_keys_and_values_are_shared_by_neighbouring_heads(randomize, rng, cuts):
    case = Case(randomize, rng, heads=6, num_kv_heads=2)
    output = case.attend(cuts, np.where(case.mask, 0.0, HIDDEN))
    np.testing.assert_allclose(output, case.expected(case.mask), atol=1e-5)


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
