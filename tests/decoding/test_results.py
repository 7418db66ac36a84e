"""Penalties by hand; from ids and scores to translations."""

import numpy as np

from keras_transformer.decoding import Hypotheses
from keras_transformer.decoding.results import NEG_INF
from keras_transformer.engine.model_engine import best_translation


class Letters:
    """Id 5 is `a`, 6 is `b`, …; 2 ends a sentence."""

    def __init__(self, first):
        self.first = first

    def pieces_of(self, ids):
        return ["</s>" if i == 2 else chr(ord(self.first) + i - 5) for i in ids]

    def detokenize(self, rows):
        return ["".join(self.pieces_of([i for i in row if i != 2])) for row in rows]


TOKENIZERS = Letters("A"), Letters("a")


def hypotheses(ids, scores):
    ids = np.array(ids, "int32")
    by_token = np.where(ids > 0, -0.5, 0.0).astype("float32")
    total, count = by_token.sum(axis=1), np.count_nonzero(ids, axis=1)
    return Hypotheses(ids, total, np.array(scores, "float32"), by_token, total, count)


def test_the_best_comes_with_its_alternatives_and_without_padding():
    found = hypotheses([[5, 6, 2, 0], [7, 0, 2, 0]], [-0.75, -1.0])
    best = best_translation(found, [8, 5, 2], TOKENIZERS)
    assert (best.text, best.score, best.log_probability) == ("ab", -0.75, -1.5)
    assert best.tokens == ("a", "b", "</s>") and best.ids == (5, 6, 2)
    assert best.token_log_probabilities == (-0.5, -0.5, -0.5)
    assert best.source_tokens == ("D", "A", "</s>")
    (other,) = best.alternatives
    assert (other.score, other.ids) == (-1.0, (7, 0, 2))  # padding inside is part of it


def test_a_forced_beginning_is_told_apart_from_what_follows():
    found = hypotheses([[5, 6, 2, 0], [7, 2, 0, 0]], [-0.5, -0.5])
    lengths = np.array([2, 2], "int32")
    found = found._replace(
        continuation_log_probabilities=-0.5 * lengths, continuation_lengths=lengths
    )
    best = best_translation(found, [8, 5, 2], TOKENIZERS)
    assert (best.log_probability, best.continuation_log_probability) == (-1.5, -1.0)
    assert best.continuation_length == 2
    (other,) = best.alternatives
    assert other.continuation_length is other.continuation_log_probability is None


def test_places_that_no_hypothesis_took_are_left_out():
    found = hypotheses([[5, 2], [0, 0], [0, 0]], [-0.5, NEG_INF, NEG_INF])
    assert best_translation(found, [5, 2], TOKENIZERS).alternatives == ()


def test_an_empty_translation_has_no_tokens():
    best = best_translation(hypotheses([[0, 0]], [0.0]), [], TOKENIZERS)
    assert (best.text, best.tokens, best.log_probability) == ("", (), 0.0)
