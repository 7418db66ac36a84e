"""Translations of the parts of a split text, put together."""

import dataclasses

import numpy as np

from keras_transformer import Translation


def hypothesis(text, score, shape=(1, 1), value=1.0):
    return Translation(text, score, score, alignment=np.full(shape, value, "float32"))


def test_the_best_of_a_split_text_are_the_best_sums_of_its_parts():
    # Sums: a+c 3, a+d 3.5, b+c 4, b+d 4.5; of other orders 3.25 and 4.25.
    first = dataclasses.replace(hypothesis("a", -1), alternatives=(hypothesis("b", -2),))
    second = dataclasses.replace(hypothesis("c", -2), alternatives=(hypothesis("d", -2.5),))
    whole = Translation.joined([first, second])
    assert [(each.text, each.score) for each in (whole, *whole.alternatives)] == [
        ("a c", -3),
        ("a d", -3.5),
    ]
    assert whole.parts == (first, second)


def test_a_printed_translation_is_one_short_line():
    alternatives = (Translation("two", -2.0), Translation("three", -3.0))
    ids, alignment = tuple(range(99)), np.zeros((99, 99))
    best = Translation("one", -1.25, ids=ids, alternatives=alternatives, alignment=alignment)
    assert str(best) == "Translation('one', score=-1.2500, alternatives: 2)"
    assert repr([alternatives[0]]) == "[Translation('two', score=-2.0000)]"


def test_samples_of_a_split_text_are_joined_one_by_one():
    first = dataclasses.replace(hypothesis("a", -9), alternatives=(hypothesis("b", -1),))
    second = dataclasses.replace(hypothesis("c", -9), alternatives=(hypothesis("d", -1),))
    whole = Translation.joined([first, second], sampling=True)
    assert [each.text for each in (whole, *whole.alternatives)] == ["a c", "b d"]


def test_each_hypothesis_of_a_split_text_keeps_the_alignments_of_its_parts():
    # One array of all tokens by all tokens would grow with the square of the parts.
    first, second = hypothesis("a", 0, (2, 3), 0.5), hypothesis("b", -1, (1, 2), 0.7)
    other = hypothesis("c", -2, (4, 2), 0.9)
    whole = Translation.joined([first, dataclasses.replace(second, alternatives=(other,))])
    (alternative,) = whole.alternatives
    assert whole.alignment is None and alternative.alignment is None
    for found, expected in ((whole, (first, second)), (alternative, (first, other))):
        for part, wanted in zip(found.parts, expected, strict=True):
            np.testing.assert_array_equal(part.alignment, wanted.alignment)


def test_what_follows_a_forced_beginning_goes_on_through_all_parts():
    forced = Translation("a b", -1, -5, ids=(7, 8), continuation_log_probability=-2.0)
    forced = dataclasses.replace(forced, continuation_length=1)
    whole = Translation.joined([forced, Translation("c", -1, -3, ids=(9, 9, 2))])
    assert (whole.log_probability, whole.continuation_log_probability) == (-8, -5)
    assert whole.continuation_length == 4
    assert Translation.joined([Translation("c", -1)] * 2).continuation_length is None
