"""A translation that copies its source has the tags, the items and the spaces of the source."""

import dataclasses
import itertools
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from markup_engines import EIGHT, backwards, copied, translated

from keras_transformer.extras.markup import protect, restore


def spaces_outside(source):
    """Returns a source whose elements have no space inside their borders, but outside of them."""
    changed = None
    while changed != source:
        changed, source = source, re.sub(r"(<[bi]>) +", r" \1", source)
        source = re.sub(r" +", " ", re.sub(r" +(</[bi]>)", r"\1 ", source))
    return source.strip()


SPACES = st.sampled_from([" ", "", " "])


@st.composite
def sources(draw, tag):
    """Words, items, elements, and a tag without content, with and without spaces."""
    parts, names = [], []
    for kind in draw(st.lists(st.sampled_from(["<", ">", "item", tag, *"abcde"]), max_size=9)):
        if kind == "<":
            names.append(draw(st.sampled_from("bi")))
            kind = f"<{names[-1]}>"
        elif kind == ">":
            kind = f"</{names.pop()}>" if names else "a"
        parts += [draw(st.sampled_from(["{x}", "{y}"])) if kind == "item" else kind, draw(SPACES)]
    return ("".join(parts) + "".join(f"</{name}>" for name in reversed(names))).strip()


def words_of(text):
    """Returns a text without its elements, as a reader sees it."""
    return re.sub(" +", " ", re.sub("</?[bi]>", "", text)).strip()


@pytest.mark.parametrize("tag", ["<br>", "<BR>", "<img>", "<wbr/>"])
@settings(max_examples=60)
@given(st.data())
def test_a_copy_of_a_source_is_the_source(tag, data):
    source = data.draw(sources(tag))
    expected = spaces_outside(source)
    # Two `<br>` separate blocks, whose ends are without spaces. A block needs a word.
    assume(re.search("[a-e]", re.sub("<[^>]*>", "", source)))
    assume(not re.search(r"<[bi]>\s*</|(<(?i:br)>)\s*\1", source + expected))
    blocks = protect(source, "html", EIGHT)
    copy = "".join(restore(copied(block.text), block).text for block in blocks)
    # Between a border of an element and a tag without content, either may have the space.
    if re.search(rf"</?[bi]>\s*{tag}|{tag}\s*</?[bi]>", source + expected):
        copy, expected = words_of(copy), words_of(source)
    assert copy == expected, source


def _placeholders(words):
    """Writes placeholders with a space between, and nothing else."""
    return [(name, 0) for name in re.findall(r"<ph_\d>", " ".join(words))]


@pytest.mark.parametrize("between", ["", " ", " and ", ", ", "-", ": "])
def test_placeholders_touch_only_where_they_touch_in_the_source(between):
    for before, after in itertools.product(["", "at ", "("], ["", " is", ")"]):
        source = f"{before}{{a}}{between}{{b}}{after}"
        expected = "{a} {b}" if between else "{a}{b}"
        assert translated(source, _placeholders, "placeholders") == expected, source


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<b><i>one <img> </i></b>.", "<b><i>one <img></i></b> ."),
        ("<b>one <img> </b><img>.", "<b>one <img></b> <img>."),
        ("<b><i>one <img> </i></b><img>.", "<b><i>one <img></i></b> <img>."),
    ],
)
def test_a_space_at_the_ends_of_elements_is_once_behind_them(source, expected):
    """The model writes no space before a sign, so that nothing else asks for the space."""
    (block,) = protect(source, "html", EIGHT)
    copy = copied(block.text)
    sides = {
        "text": copy.text.replace(" .", "."),
        "tokens": tuple(t.strip("▁") for t in copy.tokens),
    }
    assert restore(dataclasses.replace(copy, **sides), block).text == expected


def test_an_element_at_the_beginning_begins_without_a_space():
    """The tag without content had a space before its element, which the text begins with now."""
    assert translated("b <b><img> c</b>", backwards) == "<b><img> C</b> B"


@pytest.mark.parametrize("tag", ["<wbr>", "<!-- a -->", "</i>", "<i></i>"])
def test_a_space_between_moved_words_is_outside_the_element_of_a_tag_that_touches_them(tag):
    assert translated(f"one <b>two{tag}</b>", backwards) == f"<b>TWO{tag}</b> ONE"
