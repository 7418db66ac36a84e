"""The text that a model reads is one that a person would write."""

import pytest
from fakes import FakeTokenizer
from markup_engines import EIGHT, SayingEngine, in_order

from keras_transformer import Translation, Translator
from keras_transformer.base.ids import UNK_ID
from keras_transformer.extras.markup import protect, restore
from keras_transformer.text.symbols import Placeholders

NONE = Placeholders()
READ = {
    # The elements of a list, with their commas, and items next to marks.
    "Set {a}, {b} and {c}.": "Set X1, X2 and X3.",
    "http://a.b is (me@x.org) «%s»: {{ n }}!": "X1 is (X2) «X3»: X4!",
    "你好 {n}，世界 {m}。": "你好 X1，世界 X2。",
    # Items that touch are one, and a name of the text stands for no item.
    "as {a}{b} {c}": "as X1 X2",
    "X1, X12 and {a} {b}": "X1, X12 and X2 X3",
    # Without letters, nothing is translated.
    "{a}, {b}": None,
    # An item in a word is removed.
    "a{n} b {n}c 1{n}.{n}5 é{n}": "a b c 1.5 é",
}


@pytest.mark.parametrize("source", READ)
@pytest.mark.parametrize("markup", ["placeholders", "html"])
def test_a_word_stands_for_an_item(source, markup):
    engine = SayingEngine(in_order, NONE)
    (translation,) = Translator(engine).translate([source], markup=markup)
    if READ[source] is None:
        assert translation.text == source
        assert "X1" not in str(vars(engine).get("texts"))
    else:
        assert engine.texts == [READ[source]]


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        ("Set {a}, {b} and {c}.", "X3, X1 und X2 setzen.", "{c}, {a} und {b} setzen."),
        ("Set {a}, {b}.", "X2s X1-Datei X2“X1", "{b}s {a}-Datei“"),  # Each is written once.
        ("X4 is {a}", "X4 e X1, X3", "X4 e {a},"),  # A name that the source lacks is invented.
        ("as {a}{b} {c}", "wie X1 X2", "wie {a}{b} {c}"),
        ("one <b> {a} </b> three", "eins X1 drei", "eins <b>{a}</b> drei"),
        # Without its name, an item is where its words are.
        ("one two {a} three", "eins zwei drei", "eins zwei {a} drei"),
        ("one <b>{a}</b>, three", "eins drei", "eins <b>{a}</b> drei"),
        ("one <b>{a}</b> {b}, three", "eins X2 drei", "eins <b>{a}</b> {b} drei"),
    ],
)
def test_items_are_where_the_model_writes_their_names(source, translation, expected):
    (block,) = protect(source, "html", NONE)
    assert restore(Translation(translation, 0.0), block).text == expected


def test_items_are_removed_where_the_vocabulary_lacks_their_names():
    for side in ("source_tokenizer", "target_tokenizer"):
        unknown = FakeTokenizer(tokenize=lambda text: [7, UNK_ID])
        engine = SayingEngine(in_order, NONE)
        setattr(engine, side, unknown)
        (translation,) = Translator(engine).translate(["a {n}, b"], markup="placeholders")
        assert (engine.texts, translation.text) == (["a, b"], "A {n}, B")


def test_only_elements_that_a_person_reads_have_a_name():
    source = (
        'a <i translate="no"></i> <svg><path/></svg> <code>x</code> <kbd translate="no">y</kbd>'
    )
    (block,) = protect(source, "html", NONE)
    assert block.text_to_read == "a X1 X2"
    assert restore(Translation("X2 b X1", 0.0), block).text.endswith(
        '<kbd translate="no">y</kbd> b <code>x</code>'
    )


GAPS = {
    # No space before a mark, nor two spaces.
    "hello {n}, welcome": "hello, welcome",
    "Hi {n} there {n}!": "Hi there!",
    "It is {n} {n}... {n}; {n}: x": "It is...;: x",
    '("Hi {n}", «hi {n}») {n}': '("Hi", «hi»)',
    "{n}  hi": "hi",
    "{n} {n}": "",
    "你好 {n}，世界 {n}。": "你好，世界。",
    # A space of the source's language before a mark is no gap.
    "Bonjour {n}\u00a0! Ça va {n} ?": "Bonjour\u00a0! Ça va ?",
    # Spaces before words and opening brackets, and those that no item is beside.
    "a {n}b {n}(c) {n}- d {n}'e": "a b (c) - d 'e",
    "a , b  c {n} d": "a , b c d",
    "a{n} , b": "a , b",
    "Hi <b>{n}</b>, <i>you {n}<br></i>.": "Hi, you.",
    "Hi <b>{n} </b><i>, you</i>": "Hi , you",
}


@pytest.mark.parametrize("source", GAPS)
def test_an_item_that_is_removed_leaves_no_space_before_a_mark(source):
    (block,) = protect(source.replace("{n}", '<i translate="no"></i>'), "html", NONE)
    assert block.text_to_read == GAPS[source]


@pytest.mark.parametrize(
    ("source", "markup", "text"),
    [
        # Line breaks and spaces of HTML are one space, and those of plain text stay.
        ("Two\n  <b>big\r\n</b>\tdogs\fplay", "html", "Two big dogs play"),
        ("a&nbsp;&nbsp;b &emsp; c&#10;d", "html", "a\u00a0\u00a0b \u2003 c d"),
        ("hello {n} , you\n  there", "placeholders", "hello <ph_1> , you\n  there"),
    ],
)
def test_spaces_are_those_that_are_seen(source, markup, text):
    (block,) = protect(source, markup, NONE if markup == "html" else EIGHT)
    assert block.text_to_read == text
