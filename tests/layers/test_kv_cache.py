"""KeyValue: entries written in place, the rest and the shape kept."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.kv_cache import KeyValue, of_parents

BATCH, HEADS, POSITIONS, KEY_DIM, VALUE_DIM = 2, 3, 7, 11, 13


def random_pair(rng, positions):
    key = rng.normal(size=(BATCH, HEADS, KEY_DIM, positions)).astype("float32")
    value = rng.normal(size=(BATCH, HEADS, positions, VALUE_DIM)).astype("float32")
    return KeyValue(ops.convert_to_tensor(key), ops.convert_to_tensor(value))


@pytest.mark.parametrize(("position", "new"), [(0, 1), (3, 2), (5, 2), (6, 1), (0, 7)])
def test_entries_stand_at_their_position_and_nothing_else_moves(rng, position, new):
    cache, entries = random_pair(rng, POSITIONS), random_pair(rng, new)
    written = cache.write(entries, position)
    indices = slice(position, position + new)
    expected = np.array(cache.key)
    expected[..., indices] = np.asarray(entries.key)
    np.testing.assert_array_equal(np.asarray(written.key), expected)
    expected = np.array(cache.value)
    expected[:, :, indices] = np.asarray(entries.value)
    np.testing.assert_array_equal(np.asarray(written.value), expected)


@pytest.mark.parametrize("axes", [(), (5,), (5, 7)])
def test_a_state_of_any_axes_follows_its_hypothesis(rng, axes):
    state = rng.normal(size=(2, 3, *axes)).astype("float32")
    parents = np.array([[2, 0, 2], [1, 1, 0]])
    expected = np.stack([row[order] for row, order in zip(state, parents, strict=True)])
    np.testing.assert_array_equal(of_parents(ops.convert_to_tensor(state), parents), expected)
