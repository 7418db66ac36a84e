import random

from benchmarks import glossary
from keras_transformer import Translation
from keras_transformer.text.glossary import Glossary


class Writes:
    """Says one word, and the phrases behind it."""

    def translate(self, texts, beam_size, phrases=None):
        phrases = phrases or [[]] * len(texts)
        return [Translation(" ".join(["Hunde", *each]), -1.0) for each in phrases]


def test_terms_are_different_words_in_a_row():
    reference, rng = "zwei Hunde, zwei Katzen .", random.Random(0)
    assert sorted(glossary.terms_of(reference, 4, 1, rng)) == ["Hunde", "Katzen", "zwei"]
    assert glossary.terms_of(reference, 1, 3, rng)[0] in ("zwei Hunde, zwei", "Hunde, zwei Katzen")
    assert glossary.terms_of("kurz", 1, 3, rng) == []


def test_a_row_has_the_shares_without_and_with_the_constraints():
    table = glossary.rows(Writes(), ["a", "b"], ["Hunde", "Hund"], 2, terms=((1, 1),))
    plain, constrained = ([*row[:4]] for row in table)
    assert plain == ["none", "", "", ""]
    # Part of a word is no term without them; with them each has a place of its own.
    assert constrained == ["1 of 1", "50.0%", "100.0%", "100.0%"]


def test_terms_of_a_glossary_are_phrases_or_annotations():
    class Reads(Writes):
        def translate(self, texts, beam_size, phrases=None):
            shown = [text.partition("<term_as> ")[2].partition("<")[0] for text in texts]
            return super().translate(texts, beam_size, phrases or [[each] for each in shown])

    terms = Glossary([("dog", "Köter"), ("cat", "Katze")])
    texts = ["a dog", "a cat"], ["ein Hund", "zwei Katzen"]
    for by in ("constraints", "annotations"):
        table = glossary.rows(Reads(), *texts, 2, ((1, 1),), terms, by)
        assert [row[1:4] for row in table][1] == ["0.0%", "100.0%", "100.0%"]
