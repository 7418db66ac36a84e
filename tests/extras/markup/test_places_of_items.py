"""An item that the model has not written stands between words, never inside of a word."""

import itertools
import re

import numpy as np
import pytest
from markup_engines import copied

from keras_transformer import Translation
from keras_transformer.extras.markup import protect, restore
from keras_transformer.text.symbols import Placeholders

NONE = Placeholders()
TRANSLATIONS = [
    *("bem-vindo a casa", "encontrá-lo-ei", "Don't stop it!", "l'homme d'État est là."),
    *("3.14 is pi, 1,000.50 not", "at 10:30 and/or 5/6", "a_b@c #x $5 100%", "(ola) mundo"),
    *("olá (bom mundo), ok?", "¿Qué «bom» dia, eh?!", '"Oi", ele (disse...) "x y".', "e.g. this"),
    *("Здравствуй, мир-то!", "안녕하세요 여러분.", "نعم، شكرا.", "word"),
]
SOURCE = "one two, three (four) five."


def sources(item):
    """Sources with an item between two words, or at an end."""
    words = SOURCE.split()
    return [" ".join([*words[:i], item, *words[i:]]) for i in range(len(words) + 1)]


def allowed_results(text, item):
    """Results in which an item stands at a space of a translation, or at a mark beside a space."""
    results = {f"{item} {text}"}
    for i in range(len(text) + 1):
        if re.match(r"""[.,:;!?…)»"،]*(\s|$)""", text[i:]) and not text[:i].endswith(" "):
            results.add(f"{text[:i]} {item}{text[i:]}")
        if re.search(r"""(^|\s)[(«"¿¡]+$""", text[:i]) and text[i : i + 1] != " ":
            results |= {f"{text[:i]}{item} {text[i:]}", f"{text[:i]}{item}{text[i:]}"}
    # After an opening mark and before a closing mark.
    return results | {result.replace(f"( {item}", f"({item}") for result in results}


def translation(text, source_text, seed):
    """A translation with sampled attention, or without an alignment."""
    if not seed:
        return Translation(text, 0.0)
    tokens, source_tokens = (
        tuple(re.findall(r"\w+|[^\w\s]", side)) for side in (text, source_text)
    )
    weights = np.random.default_rng(seed).dirichlet([0.1] * len(source_tokens), len(tokens))
    return Translation(text, 0.0, tokens=tokens, source_tokens=source_tokens, alignment=weights)


@pytest.mark.parametrize("text", TRANSLATIONS)
@pytest.mark.parametrize("item", ["{n}", "http://a.b"])
def test_an_item_stands_where_the_translation_has_a_space(text, item):
    for source, seed in itertools.product(sources(item), range(6)):
        (block,) = protect(source, "placeholders", NONE)
        result = restore(translation(text, block.text_to_read, seed), block).text
        assert result in allowed_results(text, item), (source, seed)


@pytest.mark.parametrize("text", ["今日は東京で雨です。", "ฉันรักคุณ", "你好，世界！"])
def test_an_item_stands_anywhere_in_a_script_without_spaces_and_has_none_before_a_mark(
    text,
):
    places = set()
    for source, seed in itertools.product(sources("{n}"), range(6)):
        (block,) = protect(source, "placeholders", NONE)
        result = restore(translation(text, block.text_to_read, seed), block).text
        assert re.sub(r" ?\{n\} ?", "", result) == text
        assert not re.search(r"\} [。，！]", result)
        places.add(result.index("{n}"))
    assert len(places) > 2


@pytest.mark.parametrize(
    "source",
    ["at 10{n}:30 now", "e{n}-mail", "a{n}b c", "1{a}.{b}5, x{c}'y", "犬{n}です", "<i>a</i>-{n}+b"],
)
def test_an_item_inside_of_a_word_stands_there_in_a_copy_of_the_word(source):
    (block,) = protect(source, "html", NONE)
    assert restore(copied(block.text_to_read), block).text == source


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        # A mark has the space that the model has written before it.
        ("Hi {n}!", "Salut\u00a0!", "Salut {n} !"),
        ("Hi {n} !", "Salut!", "Salut {n}!"),
        ("We go {n} on.", "Weiter.", "Weiter {n}."),
        ("We go <b>{n}</b> on.", "Weiter.", "Weiter <b>{n}</b>."),
        # The mark beside the item is missing in the translation.
        ("Click <b>{n}</b>, wait", "Clique e espere", "Clique <b>{n}</b> e espere"),
        ("wait,<b>{n}</b> click", "espere clique", "espere <b>{n}</b> clique"),
    ],
)
def test_spaces_beside_an_item_are_those_of_its_new_place(source, text, expected):
    (block,) = protect(source, "html", NONE)
    result = restore(translation(text, block.text_to_read, 0), block).text
    assert result == expected
