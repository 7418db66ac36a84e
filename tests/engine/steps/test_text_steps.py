"""Texts pass several steps, and their translations come back through them."""

import dataclasses

import pytest
from fakes import FakeEngine

from keras_transformer import Translation
from keras_transformer.engine.steps.step import TextStep
from keras_transformer.engine.steps.text_steps import TextsInSteps


class Dividing(TextStep):
    """Divides a text at a sign; each part's translation has the sign and what was read."""

    def __init__(self, sign):
        self.sign = sign

    def before(self, text, language=None, target_language=None):
        return [(part, part) for part in text.split(self.sign)]

    def after(self, translation, state, texts_read):
        text = f"{self.sign}{state}={translation.text}({''.join(texts_read)})"
        return dataclasses.replace(translation, text=text)

    def read(self, state, text_read):
        return f"{text_read}{self.sign}"


class UpperCase(FakeEngine):
    """Writes upper case, and nothing for `b`."""

    def translate(self, texts, **options):
        return [Translation(text.upper().replace("B", ""), 0.0) for text in texts]

    def stream(self, text, **options):
        (translation,) = self.translate([text])
        return (translation.text[: size + 1] for size in range(len(translation.text)))


@pytest.fixture
def in_steps():
    return TextsInSteps([Dividing(";"), Dividing(",")], UpperCase(), ["ax,b;c"], {})


def test_the_last_step_before_translating_is_the_first_after_it(in_steps):
    assert in_steps.texts == ["ax", "b", "c"]
    (translation,) = in_steps.after(in_steps._engine.translate(in_steps.texts))
    assert translation.text == ";ax,b=,ax=AX(ax),b=(b)(ax,b,);c=,c=C(c)(c,)"


def test_each_part_of_a_stream_comes_back_through_all_steps(in_steps):
    """As a whole text would, but a step around others changes each of their parts."""
    first, second, third = ";ax,b=,ax=AX(ax)(ax,)", ";ax,b=,b=(b)(b,)", ";c=,c=C(c)(c,)"
    expected = [first.replace("AX", "A"), first, first + second + third]
    assert list(in_steps.stream()) == expected


class Halving(TextStep):
    def before(self, text, language=None, target_language=None):
        half = len(text) // 2
        return [(text[:half], None), (text[half:], None)]


class Aligned(TextStep):
    needs_alignment = True

    def aligned_places(self, state):
        return [1, 6, 10]


def test_a_part_is_aligned_if_a_place_is_inside_of_it_after_any_number_of_divisions():
    texts = TextsInSteps([Aligned(), Halving(), Halving()], UpperCase(), ["abcdefghijkl"], {})
    assert texts.texts == ["abc", "def", "ghi", "jkl"]
    assert texts.options["alignment"] == (True, False, False, True)
