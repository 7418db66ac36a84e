"""Borders of words, and lines of a width."""

import textwrap

from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.documents.dividing import borders, columns, wrapped

WORDS = st.lists(st.text("abc", min_size=1, max_size=9), min_size=1, max_size=30)


@given(WORDS, st.integers(1, 20))
def test_words_are_wrapped_as_textwrap_does(words, width):
    text = " ".join(words)
    # textwrap counts each Latin letter as a column, too.
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    assert wrapped(text, width) == lines


def test_the_first_line_may_have_another_width():
    assert wrapped("a b c d e", 5, first_width=1) == ["a", "b c d", "e"]


def test_a_space_that_does_not_break_is_no_border():
    assert borders("10\u00a0km away") == [(5, 6)]


def test_ideographs_have_two_columns_and_break_without_a_space_but_not_before_a_mark():
    assert columns("犬 a\u0301") == 4
    assert wrapped("我的狗，你的猫。", 6) == ["我的", "狗，你", "的猫。"]
