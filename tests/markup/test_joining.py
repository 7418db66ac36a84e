"""A translation that copies its source has the tags, the items and the spaces of the source."""

import dataclasses
import itertools
import random
import re

import pytest
from markup_engines import EIGHT, backwards, copied, translated

from keras_transformer.markup import protect, restore


def spaces_outside(source):
    """Returns a source whose elements have no space inside their borders, but outside of them."""
    changed = None
    while changed != source:
        changed, source = source, re.sub(r"(<[bi]>) +", r" \1", source)
        source = re.sub(r" +", " ", re.sub(r" +(</[bi]>)", r"\1 ", source))
    return source.strip()


def random_source(rng, tag):
    """Returns words, items, elements, and a tag without content, with and without spaces."""
    parts, names = [], []
    for _ in range(rng.randint(1, 9)):
        kind = rng.random()
        if kind < 0.2:
            names.append(rng.choice("bi"))
            parts.append(f"<{names[-1]}>")
        elif kind < 0.4 and names:
            parts.append(f"</{names.pop()}>")
        elif kind < 0.55:
            parts.append(rng.choice(["{x}", "{y}"]))
        elif kind < 0.62:
            parts.append(tag)
        else:
            parts.append(rng.choice("abcde"))
        parts.append(rng.choice([" ", "", " "]))
    return "".join(parts) + "".join(f"</{name}>" for name in reversed(names))


def words_of(text):
    """Returns a text without its elements, as a reader sees it."""
    return re.sub(" +", " ", re.sub("</?[bi]>", "", text)).strip()


@pytest.mark.parametrize("tag", ["<br>", "<BR>", "<img>", "<wbr/>"])
def test_a_copy_of_a_source_is_the_source(tag):
    rng, count = random.Random(0), 0
    while count < 500:
        source = random_source(rng, tag).strip()
        expected = spaces_outside(source)
        # Two `<br>` separate blocks, whose ends are without spaces. A block needs a word.
        has_words = re.search("[a-e]", re.sub("<[^>]*>", "", source))
        if not has_words or re.search(r"<[bi]>\s*</|(<(?i:br)>)\s*\1", source + expected):
            continue
        count += 1
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
