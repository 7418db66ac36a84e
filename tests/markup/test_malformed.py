"""Tags of malformed HTML are found in linear time."""

import sys

import numpy as np
import pytest
import regex

from keras_transformer import Translation
from keras_transformer.markup import protect, restore
from keras_transformer.text import elements
from keras_transformer.text.patterns import MARKUP_TAG
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


class CountedTag:
    """The pattern of tags, which counts the characters that it reads."""

    partial = regex.compile(MARKUP_TAG)
    pattern = elements._MARKUP_TAG

    def match(self, source, start):
        match = self.pattern.match(source, start)
        # The last place at which the source may end without a decision.
        lower, upper = start, match.end() if match else len(source)
        while match is None and lower < upper:
            middle = (lower + upper + 1) // 2
            if self.partial.match(source, start, middle, partial=True):
                lower = middle
            else:
                upper = middle - 1
        Counted.steps += upper - start + 1
        return match


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


@pytest.mark.parametrize("malformed", MALFORMED)
def test_a_text_twice_as_long_takes_twice_the_steps(malformed, monkeypatch):
    monkeypatch.setattr(elements, "_MARKUP_TAG", CountedTag())
    once, twice = (steps_of("a " + malformed * (count // len(malformed))) for count in (2000, 4000))
    assert twice < 2.2 * once + 100


def test_malformed_html_stays_text():
    for malformed in ("<?", "<!--", "<![CDATA[", '<a "', "<a ='", "< b>", "<!"):
        (block,) = protect(f"a {malformed} <b>x</b>", "html", Placeholders())
        assert block.text == f"a {malformed} x", malformed
