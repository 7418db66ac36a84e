"""KeyValue: entries written in place, the rest and the shape kept."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.kv_cache import KeyValue

BATCH, HEADS, POSITIONS, KEY_DIM, VALUE_DIM = 2, 3, 7, 11, 13


def random_pair(rng, positions):
    key = rng.normal(size=(BATCH, HEADS, KEY_DIM, positions)).astype("float32")
    value = rng.normal(size=(BATCH, HEADS, positions, VALUE_DIM)).astype("float32")
    return KeyValue(ops.convert_to_tensor(key), ops.convert_to_tensor(value))


@pytest.mark.parametrize(("position", "new"), [(0, 1), (3, 2), (5, 2), (6, 1), (0, 7)])
def test_entries_stand_at_their_position_and_nothing_else_moves(rng, position, new):
    cache, entries = random_pair(rng, POSITIONS), random_pair(rng, new)
    written = cache.write(entries, position)
    places = slice(position, position + new)
    expected = np.array(cache.key)
    expected[..., places] = np.asarray(entries.key)
    np.testing.assert_array_equal(np.asarray(written.key), expected)
    expected = np.array(cache.value)
    expected[:, :, places] = np.asarray(entries.value)
    np.testing.assert_array_equal(np.asarray(written.value), expected)


def test_extending_keeps_what_was_written_and_adds_zeros(rng):
    cache = random_pair(rng, POSITIONS)
    key, value = (np.asarray(each) for each in cache.extended(POSITIONS + 2))
    np.testing.assert_array_equal(key[..., :POSITIONS], np.asarray(cache.key))
    np.testing.assert_array_equal(value[:, :, :POSITIONS], np.asarray(cache.value))
    assert key.shape[3] == value.shape[2] == POSITIONS + 2
    assert not key[..., POSITIONS:].any() and not value[:, :, POSITIONS:].any()


def test_an_empty_cache_has_the_sizes_of_a_written_one(rng):
    sizes = (BATCH, HEADS, POSITIONS, KEY_DIM, VALUE_DIM)
    pairs = zip(KeyValue.empty(*sizes, "float16"), random_pair(rng, POSITIONS), strict=True)
    for empty, random in pairs:
        assert tuple(empty.shape) == tuple(random.shape)
        assert "float16" in str(empty.dtype) and not np.asarray(empty).any()
