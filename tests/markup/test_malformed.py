"""Tags of malformed HTML are found in linear time."""

import sys
import time

import numpy as np
import pytest

from keras_transformer import Translation
from keras_transformer.markup import protect, restore
from keras_transformer.text.elements import find_tags
from keras_transformer.text.symbols import Placeholders

MALFORMED = [
    *("<", "<<", "<?", "<!", "<!x", "<!--", "<![CDATA[", "<![if", "<script>", "<style>", "</", "&"),
    *("&#", "&#x", '<a "', "<a '", '<a ="', "<a ='", "<a b='x", "<a =\"'", "<a b=", "{{", "<ph_1>"),
    *("<b>", "</b>", "<b>a ", "</b>a ", "<b><i></b>", "<b><i></i>", "<p>a", "<b>a<p>", "<pre>\n a"),
    *("<br>", "<b translate=no>", "<p translate=no>a", "<a <a <a >", "<!-->", "]]>", "a<b>b</b>c "),
    *("x<sup>1</sup> ", "<b>a</b> ", "%s", "<img>{x}", "<i>a </i><!-- -->"),
]


class Counted(str):
    """A text that counts the characters that are searched."""

    steps = 0

    def find(self, part, start=0, end=None):
        position = super().find(part, start)
        Counted.steps += (len(self) if position < 0 else position) - start + 1
        return position

    def strip(self):
        return self


def steps_of(source):
    """Counts calls, and characters read, to protect and to restore a source."""
    Counted.steps = calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        blocks = protect(Counted(source), "html", Placeholders(8))
    finally:
        sys.setprofile(None)
    steps = Counted.steps + calls
    for block in blocks:
        # As much as a model reads.
        tokens = tuple("▁" + word for word in block.text.split()[:64])
        text = "".join(tokens).replace("▁", " ").strip()
        alignment = np.eye(len(tokens))
        sides = {"tokens": tokens, "source_tokens": tokens}
        translation = Translation(text, 0.0, alignment=alignment, **sides)
        calls = 0
        sys.setprofile(count)
        try:
            restore(translation, block)
        finally:
            sys.setprofile(None)
        steps += calls
    return steps


# Whatever a tag begins and does not end, in quotation marks and elsewhere.
BEGINNINGS = ["<a ", "=", '"', "'", "x", " ", "<!--", "--", "<?=", "</a", "<script>", "<title>"]
BEGINNINGS += ["<![CDATA[", "</script", "&#", "/", "<p translate=no>", "<i translate=yes>"]


def seconds(text):
    start = time.thread_time()
    find_tags(text)
    return time.thread_time() - start


@pytest.mark.parametrize("first", BEGINNINGS)
def test_pairs_of_malformed_parts_are_read_once(first):
    for second in BEGINNINGS:
        for begin, part in ((first, second), ("", first + second)):
            once, eight_times = (begin + part * (size // len(part)) for size in (2_000, 16_000))
            # A cost that grows with the square takes 64 times as long.
            assert any(seconds(eight_times) < 24 * max(seconds(once), 1e-4) for _ in range(3)), (
                begin,
                part,
            )


@pytest.mark.parametrize("malformed", MALFORMED)
def test_a_text_twice_as_long_takes_twice_the_steps(malformed):
    once, twice = (steps_of("a " + malformed * (count // len(malformed))) for count in (2000, 4000))
    assert twice < 2.2 * once + 100


def test_malformed_html_has_the_text_that_a_browser_shows():
    for malformed, text in {
        **{"<?": "a x", "<!": "a x", "</3": "a x", '<a "': "a x", "<a ='": "a x"},
        **{"<!--": "a", "<![CDATA[": "a", '<a b="': "a", "<a b='": "a", "<script>": "a"},
        **{"< b>": "a < b> x", "<3": "a <3 x", "<": "a < x", "<title>": "a"},
    }.items():
        block, *others = protect(f"a {malformed} <b>x</b>", "html", Placeholders())
        assert block.text_to_read.strip() == text, malformed
        assert [other.text for other in others] == ["<b>x</b>"] * (malformed == "<title>")
