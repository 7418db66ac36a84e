"""An element around signs keeps its signs, or encloses nothing; never a word."""

import re

import numpy as np
import pytest
from markup_engines import EIGHT, SayingEngine, in_order, unchanged

from keras_transformer import Translation, Translator
from keras_transformer.extras.markup import protect, restore
from keras_transformer.text.symbols import Placeholders


def without_signs(words):
    """Writes no sign, and lets the word after it attend to it."""
    said = [(re.sub(r"[^\w<>]", "", word), place) for word, place in in_order(words)]
    return [(word, max(place - 1, 0)) for word, place in said if word]


BULLET = "<span style='mso-list:Ignore'>·<span style='font:7pt'>&nbsp;&nbsp; </span></span>"
DECORATED = [
    ("<p>%s one two</p>", "<span style='font-family:Symbol'>·</span>"),
    ("<p>%sone two</p>", BULLET),
    ("<p>%sone two</p>", BULLET.replace("·", "§")),
    ("<a>%s one</a> two", "<i class=x>&#xf015;</i>"),
    ("one two %s", "<a href=x><b>→</b></a>"),
    ("one %s two", "<i>★</i><i>★</i><i>☆</i>"),
    ("one<br>%s two", "<i>👍🏽</i>"),
    ("one&nbsp;%s two", "<b>•</b>"),
]


@pytest.mark.parametrize("placeholders", [EIGHT, Placeholders()])
@pytest.mark.parametrize(("source", "icon"), DECORATED)
def test_an_icon_stays_between_its_words(source, icon, placeholders):
    say = unchanged if placeholders.size else without_signs
    engine = SayingEngine(say, placeholders)
    (translation,) = Translator(engine).translate([source % icon], markup="html")
    result = translation.text.replace("&nbsp;", " ").replace("\xa0", " ")
    assert result.count(icon.replace("&nbsp;", " ")) == 1
    assert not re.search("[·§•]", "".join(engine.texts))
    words = re.sub(r"<[^>]*>|&\S+;|[^\w ]", " ", result).split()
    assert [word.upper() for word in words] == ["ONE", "TWO"]


def test_attributes_of_an_icon_are_translated():
    source = 'one <a title="big house"><i aria-label="c">★</i></a> two'
    engine = SayingEngine(in_order, Placeholders())
    (translation,) = Translator(engine).translate([source], markup="html")
    assert engine.texts == ["big house", "c", "one two"]
    expected = 'ONE <a title="BIG HOUSE"><i aria-label="C">★</i></a> TWO'
    assert translation.text == expected


@pytest.mark.parametrize(
    ("source", "text"),
    [
        # Signs of a sentence, and signs inside of words.
        ("one<b>!</b> two<i>…</i>", "one! two…"),
        ("<b>“</b>one<b>”</b> two", "“one” two"),
        ("one<b>/</b>two 5<b>°</b>", "one/two 5°"),
        ("one <b>&amp;</b> two 5 <b>€</b>", "one & two 5 €"),
        ("one <b>–</b> two <i>★ three</i>", "one – two ★ three"),
        ("one <b>★<br></b> <i>★<p>two</p></i>", None),
    ],
)
def test_other_signs_are_read(source, text):
    blocks = protect(source, "html", Placeholders())
    assert text is None or [block.text for block in blocks] == [text]
    literals = [part.literal for block in blocks for part in block.source_parts]
    assert all(re.fullmatch("<[^<>]*>", literal) for literal in literals)


@pytest.mark.parametrize("signs", ["!", ",", "?!", "—"])
def test_an_element_around_a_sign_encloses_the_sign_or_nothing(signs):
    """The first word attends to the sign, and so does the sign, if the model writes it."""
    (block,) = protect(f"one<b>{signs}</b> two", "html", Placeholders())
    for written in ("", signs):
        tokens = ("▁eins", *written, "▁zwei")
        sources = ("▁one", *signs, "▁two")
        weights = np.zeros((len(tokens), len(sources)))
        weights[:-1, 1], weights[-1, -1] = 1, 1
        text = "".join(tokens).replace("▁", " ").strip()
        sides = {"tokens": tokens, "source_tokens": sources, "alignment": weights}
        result = restore(Translation(text, 0.0, **sides), block).text
        assert re.sub("</?b>", "", result).strip() == text
        assert f"<b>{written}</b>" in result
