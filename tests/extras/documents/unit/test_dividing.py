"""Borders of words, and lines of a width."""

import itertools
import textwrap

from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.extras.documents.dividing import (
    borders,
    columns,
    divided,
    nearest_borders,
    wrapped,
)

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
    assert columns("犬，Ａ") == 6  # A comma and a letter of full width have two columns, too.
    assert wrapped("我的狗，你的猫。", 6) == ["我的", "狗，你", "的猫。"]


@given(WORDS, st.data())
def test_a_copy_is_divided_as_its_source(words, data):
    cuts = sorted(data.draw(st.sets(st.integers(1, len(words)), max_size=5)) - {len(words)})
    bounds = [0, *cuts, len(words)]
    sources = [" ".join(words[i:j]) for i, j in itertools.pairwise(bounds)]
    assert divided(" ".join(words), sources) == sources


def test_a_border_after_a_mark_is_better_than_one_a_few_characters_nearer():
    assert divided("aa bb, cc dd ee", ["xx xx xx", "xx xx"]) == ["aa bb,", "cc dd ee"]


def test_each_part_has_a_word_as_long_as_there_are_words():
    assert divided("a b c", ["x" * 90, "x", "x"]) == ["a", "b", "c"]
    assert divided("a b", ["x", "x", "x"]) == ["a", "b", ""]
    assert divided("", ["x", "x"]) == ["", ""]


def test_borders_may_be_given():
    assert divided("aa bb cc", ["x", "x"], places=[(5, 6)]) == ["aa bb", "cc"]


@given(
    st.sets(st.integers(0, 99), max_size=20).map(sorted),
    st.lists(st.integers(0, 99), max_size=9).map(sorted),
)
def test_nearest_borders_ascend_and_are_as_many_as_possible(positions, targets):
    chosen = nearest_borders(positions, targets)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(len(positions), len(targets))
    if len(targets) == 1 and positions:
        distances = [abs(position - targets[0]) for position in positions]
        assert distances[chosen[0]] == min(distances)
