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


def test_samples_of_a_split_text_are_joined_one_by_one():
    first = dataclasses.replace(hypothesis("a", -9), alternatives=(hypothesis("b", -1),))
    second = dataclasses.replace(hypothesis("c", -9), alternatives=(hypothesis("d", -1),))
    whole = Translation.joined([first, second], sampling=True)
    assert [each.text for each in (whole, *whole.alternatives)] == ["a c", "b d"]


def test_no_token_of_a_part_attends_to_another_part():
    whole = Translation.joined([hypothesis("a", 0, (2, 3), 0.5), hypothesis("b", 0, (1, 2), 0.7)])
    np.testing.assert_allclose(
        whole.alignment, [[0.5, 0.5, 0.5, 0, 0], [0.5, 0.5, 0.5, 0, 0], [0, 0, 0, 0.7, 0.7]]
    )
    assert Translation.joined([Translation("a", 0), hypothesis("b", 0)]).alignment is None
