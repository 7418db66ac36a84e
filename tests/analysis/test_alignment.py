"""Alignments of words, by hand."""

import numpy as np
import pytest

from keras_transformer.analysis.alignment import (
    Gold,
    alignment_error_rate,
    pharaoh,
    read_gold,
    word_alignment,
)
from keras_transformer.errors import InputError

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


def test_the_error_rate_forgives_possible_links_and_counts_missing_sure_ones():
    gold = Gold(sure=frozenset({(0, 0), (2, 1)}), possible=frozenset({(0, 0), (2, 1), (1, 1)}))
    assert alignment_error_rate([gold.sure], [gold]) == 0
    assert alignment_error_rate([gold.possible], [gold]) == 0
    # A = {0-0, 5-5}: |A ∩ S| = |A ∩ P| = 1, |A| = |S| = 2.
    assert alignment_error_rate([frozenset({(0, 0), (5, 5)})], [gold]) == 0.5
    assert alignment_error_rate([frozenset()], [gold]) == 1
    with pytest.raises(ValueError, match="needs links"):
        alignment_error_rate([frozenset()], [Gold(frozenset(), frozenset())])


def test_gold_files_are_read_and_a_wrong_link_is_named(tmp_path):
    file = tmp_path / "gold"
    file.write_text("0-0 1p2 3?1\n\n", encoding="utf-8")
    one, none = read_gold(file)
    assert one == Gold(frozenset({(0, 0)}), frozenset({(0, 0), (1, 2), (3, 1)}))
    assert none == Gold(frozenset(), frozenset())
    file.write_text("0-0\n0:1\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"gold, line 2: expected links .* Received: '0:1'"):
        read_gold(file)
