"""Positions: the rotation, the similarity, and what is past the training."""

import numpy as np
import pytest
import reference

from keras_transformer.extras.analysis import positions
from keras_transformer.layers import LearnedPositionalEmbedding, SinusoidalPositionalEncoding


def test_the_sinusoids_are_those_of_the_layer_and_of_the_paper():
    exact = positions.sinusoids(700, 34)
    np.testing.assert_allclose(exact, reference.positional_encoding(700, 34), atol=1e-9)
    layer = positions.position_vectors(SinusoidalPositionalEncoding(), 700, 34)
    # float32 angles: what is left is their rounding, which grows with the position.
    np.testing.assert_allclose(layer[:50], exact[:50], atol=1e-5)
    np.testing.assert_allclose(layer, exact, atol=2e-4)


def test_one_rotation_moves_every_position_by_any_offset_up_to_512():
    encoding = positions.sinusoids(1024, 34)
    for offset in range(0, 513, 16):
        matrix = positions.rotation(34, offset)
        np.testing.assert_allclose(matrix @ matrix.T, np.eye(34), atol=1e-12)
        moved = encoding[: 1024 - offset] @ matrix.T
        np.testing.assert_allclose(moved, encoding[offset:], atol=1e-5)
    back = positions.rotation(34, -7) @ positions.rotation(34, 7)
    np.testing.assert_allclose(back, np.eye(34), atol=1e-12)
    with pytest.raises(ValueError, match="Received: width=7"):
        positions.rotation(7, 1)


def test_similarity_falls_with_distance():
    encoding = positions.sinusoids(101, 128)
    products, distances = positions.dot_products(encoding), positions.distances(encoding)
    np.testing.assert_allclose(np.diag(products), 64)  # sin² + cos², for each of 64 pairs
    apart = np.linalg.norm(encoding[3] - encoding[17])
    assert distances[3, 17] == distances[17, 3] == pytest.approx(apart)
    # The dot product depends on the offset alone, and falls over the first ones.
    np.testing.assert_allclose(products[50, 50:60], products[20, 20:30])
    assert (np.diff(products[50, 50:56]) < 0).all()


def test_past_the_training_fixed_positions_continue_and_learned_ones_do_not():
    trained, width = 16, 34
    layer = LearnedPositionalEmbedding(max_length=48)
    layer.build((None, None, width))
    table = np.random.default_rng(7).normal(size=(48, width)).astype("float32")
    table[:trained] = positions.sinusoids(trained, width)  # As if training had found them.
    layer.embeddings.assign(table)
    learned = positions.position_vectors(layer, 4 * trained, width)
    fixed = positions.position_vectors(SinusoidalPositionalEncoding(), 4 * trained, width)
    np.testing.assert_allclose(learned[:48], table)
    assert np.isnan(learned[48:]).all()
    steady, broken = positions.similarity_at(fixed, 1), positions.similarity_at(learned, 1)
    np.testing.assert_allclose(steady, steady[0], atol=1e-4)
    np.testing.assert_allclose(broken[: trained - 1], steady[0], atol=1e-4)
    assert np.abs(broken[trained:47]).max() < steady[0]
    assert np.isnan(broken[47:]).all()
