import itertools
import math

import keras
import numpy as np
import pytest
import reference
from keras import ops

from keras_transformer.layers import (
    ConcatenatedPositions,
    LearnedPositionalEmbedding,
    SinusoidalPositionalEncoding,
)
from keras_transformer.layers.positions import apply_rotary, relative_scores, relative_values


def formula(position, feature, width, wavelength, layout, frequencies):
    """One number: a pair of features has one wavelength."""
    pairs = (width + 1) // 2
    pair, is_cosine = divmod(feature, 2) if layout == "interleaved" else (feature % pairs, feature // pairs)
    span = width / 2 if frequencies == "paper" else max(width / 2 - 1, 1)
    angle = position / wavelength ** (pair / span)
    return math.cos(angle) if is_cosine else math.sin(angle)


SINUSOIDS = [*itertools.product(("interleaved", "halves"), ("paper", "marian"), (0, 2), (10000, 50.0))]


@pytest.mark.parametrize(("layout", "frequencies", "offset", "wavelength"), SINUSOIDS)
def test_sinusoids_of_all_options_are_their_formula_also_after_saving(layout, frequencies, offset, wavelength):
    layer = SinusoidalPositionalEncoding(wavelength, layout, frequencies, offset)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    for width, start in itertools.product((1, 2, 3, 7, 8), (0, 5)):
        expected = [[formula(start + offset + p, f, width, wavelength, layout, frequencies) for f in range(width)] for p in range(4)]
        inputs = np.full((2, 4, width), 0.5, "float32")
        for one in (layer, copy):
            output = np.asarray(one(inputs, start))
            np.testing.assert_allclose(output, inputs + expected, atol=2e-5)


@pytest.mark.parametrize("start", range(5))
def test_positions_past_a_learned_table_are_nan_and_no_earlier_ones(start):
    layer = LearnedPositionalEmbedding(4)
    layer.build((None, None, 3))
    output = np.asarray(layer(np.zeros((1, 3, 3), "float32"), ops.convert_to_tensor(start)))
    for row in range(3):
        inside = start + row < 4
        expected = np.asarray(layer.embeddings)[start + row] if inside else np.full(3, np.nan)
        np.testing.assert_array_equal(output[0, row], expected)


INNER = {
    "learned": lambda: LearnedPositionalEmbedding(9),
    "sinusoidal": lambda: SinusoidalPositionalEncoding(offset=2, layout="halves"),
}


@pytest.mark.parametrize("inner", INNER)
def test_a_sequence_in_parts_has_the_positions_of_the_whole(inner):
    for layer in (INNER[inner](), ConcatenatedPositions(INNER[inner]())):
        inputs = np.random.default_rng(0).normal(size=(2, 7, 4)).astype("float32")
        whole = np.asarray(layer(inputs))
        for start, end in ((0, 1), (1, 2), (3, 7), (6, 7)):
            part = inputs[:, start:end]
            for index in (start, ops.convert_to_tensor(start)):
                np.testing.assert_allclose(layer(part, index), whole[:, start:end], atol=1e-6)


@pytest.mark.parametrize("inner", INNER)
def test_positions_that_two_layers_share_are_shared_after_loading(inner, tmp_path):
    positions = INNER[inner]()
    ids = keras.Input((None, 4)), keras.Input((None, 4))
    outputs = [ConcatenatedPositions(positions)(one) for one in ids]
    model = keras.Model(ids, outputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    first, second = (layer for layer in loaded.layers if isinstance(layer, ConcatenatedPositions))
    assert first.positions is second.positions
    assert len(loaded.weights) == len(model.weights)
    inputs = [np.random.default_rng(i).normal(size=(1, 5, 4)).astype("float32") for i in (0, 1)]
    for ours, theirs in zip(loaded(inputs), model(inputs), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("wavelength", [10000, 30])
@pytest.mark.parametrize("features", [2, 4, 6, 10])
def test_rotation_turns_each_pair_of_each_head_by_its_position(features, wavelength):
    rng = np.random.default_rng(0)
    heads = rng.normal(size=(2, 9, 3, features)).astype("float32")
    expected = np.zeros(heads.shape)
    for b, head in itertools.product(range(2), range(3)):
        expected[b, :, head] = reference.turned(heads[b, :, head].astype("float64"), wavelength)
    positions = np.arange(9, dtype="int32")
    np.testing.assert_allclose(apply_rotary(heads, positions, wavelength), expected, atol=1e-5)
    order = rng.permutation(9)
    shuffled = apply_rotary(heads[:, order], positions[order], wavelength)
    np.testing.assert_allclose(shuffled, expected[:, order], atol=1e-5)


@pytest.mark.parametrize("farthest", [1, 2, 5])
@pytest.mark.parametrize(("queries", "keys"), [((0, 8), (0, 8)), ((6, 8), (0, 8)), ((0, 3), (5, 9))])
def test_each_distance_up_to_the_farthest_has_its_vector_on_both_sides(farthest, queries, keys):
    rng = np.random.default_rng(0)
    queries, keys = np.arange(*queries, dtype="int32"), np.arange(*keys, dtype="int32")
    query = rng.normal(size=(2, 3, len(queries), 4)).astype("float32")
    weights = rng.random((2, 3, len(queries), len(keys))).astype("float32")
    table = rng.normal(size=(2 * farthest + 1, 4)).astype("float32")
    scores, values = np.zeros(weights.shape), np.zeros(query.shape)
    for (i, p), (j, q) in itertools.product(enumerate(queries), enumerate(keys)):
        vector = table[max(-farthest, min(farthest, q - p)) + farthest]
        scores[:, :, i, j] = query[:, :, i] @ vector
        values[:, :, i] += weights[:, :, i, j, None] * vector
    np.testing.assert_allclose(relative_scores(query, table, queries, keys), scores, atol=1e-5)
    np.testing.assert_allclose(relative_values(weights, table, queries, keys), values, atol=1e-5)
