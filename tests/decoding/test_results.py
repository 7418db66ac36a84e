"""From ids and scores to translations."""

import numpy as np
import pytest

from keras_transformer.decoding.hypotheses import IMPOSSIBLE, Hypotheses
from keras_transformer.decoding.results import Results


class Letters:
    """Id 5 is `a`, 6 is `b`, …; 2 ends a sentence."""

    def __init__(self, first):
        self.first = first

    def pieces_of(self, ids):
        return ["</s>" if i == 2 else chr(ord(self.first) + i - 5) for i in ids]

    def detokenize(self, rows):
        return ["".join(self.pieces_of([i for i in row if i != 2])) for row in rows]


def hypotheses(ids, scores):
    ids = np.array(ids, "int32")
    by_token = np.where(ids > 0, -0.5, 0.0).astype("float32")
    return Hypotheses(ids, by_token.sum(axis=1), np.array(scores, "float32"), by_token)


@pytest.fixture
def results():
    return Results(Letters("A"), Letters("a"))


def test_the_best_comes_with_its_alternatives_and_without_padding(results):
    found = hypotheses([[5, 6, 2, 0], [7, 2, 0, 0]], [-0.75, -1.0])
    best = results.best(found, [8, 5, 2])
    assert (best.text, best.score, best.log_probability) == ("ab", -0.75, -1.5)
    assert best.tokens == ("a", "b", "</s>") and best.ids == (5, 6, 2)
    assert best.token_log_probabilities == (-0.5, -0.5, -0.5)
    assert best.source_tokens == ("D", "A", "</s>")
    (other,) = best.alternatives
    assert (other.text, other.score, other.ids) == ("c", -1.0, (7, 2))


def test_places_that_no_hypothesis_took_are_left_out(results):
    found = hypotheses([[5, 2], [0, 0], [0, 0]], [-0.5, IMPOSSIBLE, IMPOSSIBLE])
    assert results.best(found, [5, 2]).alternatives == ()


def test_a_padding_id_inside_a_translation_is_part_of_it(results):
    assert results.best(hypotheses([[5, 0, 6, 0]], [-1.0]), [2]).ids == (5, 0, 6)


def test_an_empty_translation_has_no_tokens(results):
    best = results.best(hypotheses([[0, 0]], [0.0]), [])
    assert (best.text, best.tokens, best.log_probability) == ("", (), 0.0)
