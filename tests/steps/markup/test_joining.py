"""A translation that copies its source has the tags, the items and the spaces of the source."""

import random
import re

import pytest
from markup_engines import EIGHT, copied

from keras_transformer.steps.markup import protect, restore


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


@pytest.mark.parametrize("tag", ["<br>", "<BR>", "<img>", "<wbr/>"])
def test_a_copy_of_a_source_is_the_source(tag):
    rng, count = random.Random(0), 0
    while count < 500:
        source = random_source(rng, tag)
        expected = spaces_outside(source)
        # Between a border of an element and a tag without content, either may have the space.
        if re.search(rf"</?[bi]>\s*{tag}|{tag}\s*</?[bi]>|<[bi]>\s*</", source + expected):
            continue
        count += 1
        blocks = protect(source, "html", EIGHT)
        copy = "".join(restore(copied(block.text), block).text for block in blocks)
        assert copy == expected, source
