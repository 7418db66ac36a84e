"""A training tells what its model reads: sentences or paragraphs, digits, capitals."""

import pytest

from keras_transformer.text.sentences import TextRules
from keras_transformer.training import kinds_of_sources
from keras_transformer.training.kinds_of_sources import KindsOfSources

ONE, TWO = ("A dog.", "Ein Hund."), ("A dog. A cat.", "Ein Hund. Eine Katze.")
CAPITALS = ("A RABBIT RUNS.", "EIN HASE RENNT.")


def kinds(*pairs):
    counts = KindsOfSources()
    counts.add(pairs)
    return counts


@pytest.mark.parametrize(
    ("pairs", "rules"),
    [
        ([ONE] * 10 + [TWO], TextRules(True, True, True)),  # 9.1 %
        ([ONE] * 9 + [TWO], TextRules(False, True, True)),  # 10 %
        ([ONE] * 98 + [("12", "12")] * 2, TextRules(True, True, True)),
        ([ONE] * 98 + [("1/2", "2.1.")], TextRules(True, False, True)),
        ([ONE] * 96 + [("1/2", "2.1."), (" 12", "12 ")], TextRules(True, True, True)),
        ([ONE] * 99 + [CAPITALS], TextRules(True, True, True)),
        ([ONE] * 98 + [CAPITALS] * 2, TextRules(True, True, False)),
        ([], TextRules(False, True, True)),
        # Tags do not count.
        ([(">>deu<< 1/2", "2.1.")] * 2, TextRules(True, False, True)),
        ([(">>deu<< <bt> 1/2", "1/2")] * 2, TextRules(True, True, True)),
        ([("<2de> THE RABBIT.", "EIN HASE.")] * 2, TextRules(True, True, False)),
    ],
)
def test_the_rules_are_those_of_the_sources(pairs, rules):
    assert kinds(*pairs).text_rules == rules


def test_the_share_is_told_with_what_follows():
    text = "25.0% of the sources have several sentences: `translate` reads a text as one segment"
    assert str(kinds(ONE, ONE, ONE, TWO)) == text
    assert str(kinds(ONE)) == text.replace("25.0", "0.0").replace(
        "as one segment", "sentence by sentence"
    )


def test_after_many_pairs_one_in_a_hundred_is_looked_at(monkeypatch):
    monkeypatch.setattr(kinds_of_sources, "_PAIRS_LOOKED_AT", 1000)
    counts = KindsOfSources()
    for pair in ONE, TWO, TWO:
        counts.add([pair] * 1000)
    assert (counts.counted, counts.with_sentences) == (1020, 20)
