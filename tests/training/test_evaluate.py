import json
import math

import pytest

from keras_transformer.errors import InputError
from keras_transformer.training import evaluate
from keras_transformer.training.evaluate import evaluate_labels


def test_a_perfect_translation_has_100_of_everything():
    scores = evaluate(["Ein Mann schläft heute hier."] * 2, ["Ein Mann schläft heute hier."] * 2)
    for name in ("bleu", "chrf", "bleu_lowercase", "chrf_lowercase"):
        assert scores[name] == 100.0
    assert scores["sentences"] == 2


def test_bleu_is_the_geometric_mean_of_the_four_precisions():
    # 5 of 6 words, 4 of 5 pairs, 3 of 4 triples, 2 of 3 quadruples; equal lengths: no penalty.
    scores = evaluate(["a b c d e x"], ["a b c d e f"])
    expected = 100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** (1 / 4)
    assert math.isclose(scores["bleu"], expected, abs_tol=0.005)


def test_tokenized_text_is_taken_as_it_is():
    # Brackets are words of their own to 13a, whether spaces are around them or not.
    found, wanted = "x ( a.b ) c d e f", "x (a.b) c d e f"
    assert evaluate([found], [wanted])["bleu"] == 100.0
    assert evaluate([found], [wanted], tokenize="none")["bleu"] < 60
    assert "tok:none" in evaluate([found], [wanted], "none")["signatures"]["bleu"]


def test_case_counts_only_where_it_is_said_to():
    scores = evaluate(["EIN MANN SCHLÄFT HEUTE HIER."], ["ein mann schläft heute hier."])
    assert scores["bleu_lowercase"] == scores["chrf_lowercase"] == 100.0
    assert scores["bleu"] < 50 and scores["chrf"] < 50


def test_signatures_say_how_each_was_counted():
    scores = evaluate(["a"], ["a"])
    assert "case:mixed" in scores["signatures"]["bleu"]
    assert "case:lc" in scores["signatures"]["bleu_lowercase"]
    assert set(scores["signatures"]) == {"bleu", "chrf", "bleu_lowercase", "chrf_lowercase"}
    json.dumps(scores)


@pytest.mark.parametrize(("hypotheses", "references"), [(["a"], ["a", "b"]), ([], [])])
def test_counts_that_do_not_fit_are_refused(hypotheses, references):
    with pytest.raises(InputError, match="as many translations as references"):
        evaluate(hypotheses, references)


def test_labels_are_counted_as_done_by_hand():
    found, right = list("aabbbc"), list("aabaab")
    scores = evaluate_labels(found, right)
    assert (scores["texts"], scores["accuracy"]) == (6, 0.5)
    assert scores["labels"]["a"] == {"precision": 1.0, "recall": 0.5, "f1": 0.6667, "texts": 4}
    assert scores["labels"]["b"] == {"precision": 0.3333, "recall": 0.5, "f1": 0.4, "texts": 2}
    assert scores["labels"]["c"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "texts": 0}
    assert scores["macro_f1"] == 0.3556
    with pytest.raises(InputError, match="as many labels as texts. Received: 0 found"):
        evaluate_labels([], [])


def test_a_blank_text_is_wrong_and_no_class_of_its_own():
    scores = evaluate_labels([*"aaabbc", ""], list("aabbbca"))
    assert {label: each["f1"] for label, each in scores["labels"].items()} == {
        "a": 0.6667,  # 2 right ones of 3, twice
        "b": 0.8,
        "c": 1.0,
    }
    assert (scores["macro_f1"], scores["accuracy"]) == (0.8222, 0.7143)
