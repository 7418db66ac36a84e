"""The text that a model reads is one that a person would write."""

import pytest
from markup_engines import EIGHT, SayingEngine, in_order

from keras_transformer import Translator
from keras_transformer.markup import protect
from keras_transformer.text.symbols import Placeholders

READ = {
    # No space before a mark, nor two spaces.
    "hello {n}, welcome": "hello, welcome",
    "Hi {n} there {m}!": "Hi there!",
    "It is {a} {b}... {c}; {d}: x": "It is...;: x",
    '("Hi {n}", «hi {n}») {n}': '("Hi", «hi»)',
    "{n}  hi": "hi",
    "{a} {b}": "",
    "你好 {n}，世界 {n}。": "你好，世界。",
    # A space of the source's language before a mark is no gap.
    "Bonjour {n}\u00a0! Ça va {n} ?": "Bonjour\u00a0! Ça va ?",
    # Spaces before words and opening brackets, and those that no item is beside.
    "a {n}b {n}(c) {n}- d {n}'e": "a b (c) - d 'e",
    "a , b  c {n} d": "a , b  c d",
    "a{n} , b": "a , b",
}


@pytest.mark.parametrize("source", READ)
@pytest.mark.parametrize("markup", ["placeholders", "html"])
def test_an_item_that_is_removed_leaves_no_space_before_a_mark(source, markup):
    engine = SayingEngine(in_order, Placeholders())
    Translator(engine).translate([source], markup=markup)
    expected = READ[source].replace("  ", " ") if markup == "html" else READ[source]
    assert engine.texts == [expected]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("Hi <b>{n}</b>, <i>you {n}<br></i>.", "Hi, you."),
        ("Hi <b>{n} </b><i>, you</i>", "Hi , you"),
        ("Two\n  <b>big\r\n</b>\tdogs\fplay", "Two big dogs play"),
        ("a&nbsp;&nbsp;b &emsp; c&#10;d", "a\u00a0\u00a0b \u2003 c d"),
    ],
)
def test_tags_beside_an_item_and_line_breaks_of_html_are_no_gaps(source, text):
    (block,) = protect(source, "html", Placeholders())
    assert block.text_to_read == text


def test_a_placeholder_of_the_model_and_a_line_break_of_plain_text_stay():
    (block,) = protect("hello {n} , you\n  there", "placeholders", EIGHT)
    assert block.text_to_read == "hello <ph_1> , you\n  there"
