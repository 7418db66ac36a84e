"""Tags of malformed HTML are found in linear time."""

import sys

import pytest
from markup_engines import EIGHT, copied

from keras_transformer.extras.markup import protect, restore
from keras_transformer.text.symbols import Placeholders

MALFORMED = [
    *("<", "<<", "<?", "<!", "<!x", "<!--", "<![CDATA[", "<![if", "<script>", "<style>", "</", "&"),
    *("&#", "&#x", '<a "', "<a '", '<a ="', "<a ='", "<a b='x", "<a =\"'", "<a b=", "{{", "<ph_1>"),
    *("<b>", "</b>", "<b>a ", "</b>a ", "<b><i></b>", "<b><i></i>", "<p>a", "<b>a<p>", "<pre>\n a"),
    *("<br>", "<b translate=no>", "<p translate=no>a", "<a <a <a >", "<!-->", "]]>", "a<b>b</b>c "),
    *("x<sup>1</sup> ", "<b>a</b> ", "%s", "<img>{x}", "<i>a </i><!-- -->"),
]


def steps_of(source):
    """Counts the calls that protect and restore a source."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for block in protect(source, "html", EIGHT):
            # As much as a model reads.
            restore(copied(" ".join(block.text.split()[:64])), block)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("malformed", MALFORMED)
def test_a_text_twice_as_long_takes_twice_the_steps(malformed):
    once, twice = (steps_of("a " + malformed * (count // len(malformed))) for count in (600, 1200))
    assert twice < 2.2 * once + 300


def test_malformed_html_has_the_text_that_a_browser_shows():
    for malformed, text in {
        **{"<?": "a x", "<!": "a x", "</3": "a x", '<a "': "a x", "<a ='": "a x"},
        **{"<!--": "a", "<![CDATA[": "a", '<a b="': "a", "<a b='": "a", "<script>": "a"},
        **{"< b>": "a < b> x", "<3": "a <3 x", "<": "a < x", "<title>": "a"},
    }.items():
        block, *others = protect(f"a {malformed} <b>x</b>", "html", Placeholders())
        assert block.text_to_read.strip() == text, malformed
        assert [other.text for other in others] == ["<b>x</b>"] * (malformed == "<title>")
