"""Alignments of words, by hand."""

import numpy as np

from keras_transformer.analysis.attention import pharaoh, word_alignment

SOURCE = ["▁two", "▁do", "gs", "▁play", ".", "</s>"]
TARGET = ["▁Hun", "de", "▁spielen", ".", "</s>"]


def test_words_are_linked_to_the_word_that_their_tokens_attend_to():
    weights = np.zeros((5, 6), "float32")
    weights[0, 1], weights[0, 0] = 0.3, 0.7
    weights[1, 1], weights[1, 2] = 0.5, 0.5
    weights[2, 3], weights[2, 5] = 0.2, 0.8  # The end is no word, however much it gets.
    weights[3, 4] = weights[4, 5] = 1.0
    found = word_alignment(weights, SOURCE, TARGET)
    assert found.source_words == ["two", "dogs", "play."]
    assert found.target_words == ["Hunde", "spielen."]
    np.testing.assert_allclose(found.weights, [[0.35, 0.65, 0], [0, 0, 0.6]], atol=1e-6)
    assert found.links() == {(1, 0), (2, 1)}
    assert pharaoh(found.links()) == "1-0 2-1"


def test_an_empty_translation_has_no_links():
    found = word_alignment(np.ones((1, 2), "float32"), ["▁a", "</s>"], ["</s>"])
    assert found.weights.shape == (0, 1)
    assert found.links() == frozenset() and pharaoh(found.links()) == ""
