"""Sentences inside a block: tags that run over several sentences stay whole, and spaces stay."""

import dataclasses
import html
import random

import pytest
from fakes import FakeEngine, FakeTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from markup_engines import (
    EIGHT,
    RANDOM,
    SETS_OF_PLACEHOLDERS,
    check_same_tags,
    copied,
    disorder,
    random_markup,
)

from keras_transformer import Translation, Translator
from keras_transformer.text.sentences import TextRules
from keras_transformer.text.symbols import Placeholders


class SplittingEngine(FakeEngine):
    """Says of each sentence what `say` does, and aligns the sentences that it is asked for."""

    capabilities = frozenset({"translate", "align"})
    text_rules = TextRules(split_sentences=True, copy_symbols=True)

    def __init__(self, say, placeholders=EIGHT, aligns_all=False):
        self.aligns_all = aligns_all
        tokens = {"placeholders": placeholders, "annotates_terms": False, "tokenize": list}
        super().__init__(say=say, source_tokenizer=FakeTokenizer(**tokens))

    def translate(self, texts, alignment=(), **options):
        self.texts, self.is_aligned = texts, alignment or (False,) * len(texts)
        translations = [self.say(text) if text else Translation("", 0.0) for text in texts]
        return [
            dataclasses.replace(row, alignment=row.alignment if kept or self.aligns_all else None)
            for row, kept in zip(translations, self.is_aligned, strict=True)
        ]


def has_alignment(translation):
    return translation.alignment is not None or any(map(has_alignment, translation.parts))


def translated(source, say=copied, markup="html", placeholders=EIGHT):
    engine = SplittingEngine(say, placeholders)
    (translation,) = Translator(engine).translate([source], markup=markup)
    assert not any(map(has_alignment, (translation, *translation.parts)))
    return translation.text, engine.texts


@pytest.mark.parametrize(
    ("source", "is_aligned"),
    [
        ("One two. Three <b>four</b> five. Six.", [0, 1, 0]),
        ("<p>One two.</p><p>One <i>two</i>.</p>", [0, 1]),
        ("<a>One two.</a>", [0]),
        ("<a>One. Two three. Four.</a>", [0, 0, 0]),
        ("One. <b>Two</b> three. Four.", [0, 1, 0]),
        ("One. Two <b>three.</b> Four.", [0, 1, 0]),
        ("One <b>two. Three. Four</b> five.", [1, 0, 1]),
        ("One two.<br>Three four. <!-- c -->", [0, 0]),
        ("One two <br> three.", [1]),
        ("http://a.b is here. One two. Go to http://a.b now.", [1, 0, 1]),
        ("One <a><b>two</b></a>, http://a.b and three.", [1]),
        ("<b>One</b> two.", [1]),
        ("One two.", [0]),
    ],
)
def test_only_a_sentence_with_a_tag_or_an_item_inside_is_aligned(source, is_aligned):
    engine = SplittingEngine(copied)
    Translator(engine).translate([source], markup="html")
    assert list(engine.is_aligned) == list(map(bool, is_aligned))


@pytest.mark.parametrize("markup", ["html", "placeholders"])
@pytest.mark.parametrize("placeholders", [EIGHT, Placeholders()])
@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("One dog. Two {x} cats!", 2),
        (" One dog.\u00a0Two cats!\u00a0", 2),
        ("See {a}. 12:30. And go to {b}!", 3),
        ("One {a} dog. Two {b}. Three {c}", 3),
    ],
)
def test_a_copy_of_a_text_with_items_is_the_text(source, count, markup, placeholders):
    copy, texts = translated(source, copied, markup, placeholders)
    assert copy == source
    assert len(texts) == count


@pytest.mark.parametrize("markup", ["html", "placeholders"])
def test_the_placeholders_of_each_sentence_are_the_first_ones_as_in_training(markup):
    source = "See {a}. Take {b} and {c}! Now {d}."
    copy, texts = translated(source, markup=markup)
    assert copy == source
    assert texts == ["See <ph_1>.", "Take <ph_1> and <ph_2>!", "Now <ph_1>."]
    # A model without placeholders reads a text as it is.
    assert translated("<ph_3> is. <ph_2> is.", markup=None, placeholders=Placeholders()) == (
        "<ph_3> is. <ph_2> is.",
        ["<ph_3> is.", "<ph_2> is."],
    )


def test_rows_of_spaces_stay_in_a_text_and_are_one_space_in_html():
    text = "One {x}.  Two.\n\nThree."
    assert translated(text, markup="placeholders") == (text, ["One <ph_1>.", "Two.", "Three."])
    assert translated(text) == ("One {x}. Two. Three.", ["One <ph_1>.", "Two.", "Three."])


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("One <b>dog</b>. Two <i>cats</i>!", 2),
        ("One <b>dog. Two</b> cats!", 2),
        ("<b>One dog. Two cats! Three.</b>", 3),
        ("<b>One dog.</b> <i>Two cats!</i>", 2),
        ("<a href='x'>One. <b>Two. Three</b> four.</a> Five.", 4),
        ("<p>One. Two.</p>\n<p> Three. 4. </p>", 4),
        ("<p>One.</p><p>5</p><p>Two</p>", 2),
    ],
)
def test_a_copy_of_html_is_the_html(source, count):
    copy, texts = translated(source)
    assert copy == source
    assert len(texts) == count


def as_written(text):
    """A translation that copies a text with its no-break spaces."""
    return dataclasses.replace(copied(text), text=text)


@pytest.mark.parametrize("source", ["One.", "One. Two.", "One <b>two</b>. Three."])
def test_rows_of_spaces_that_the_model_writes_are_one_space(source):
    def say(text):
        return dataclasses.replace(copied(text), text="a  b\t\u00a0c")

    restored, texts = translated(source, say)
    assert restored.replace("<b>", "").replace("</b>", "") == " ".join(["a b c"] * len(texts))


def test_a_sentence_that_the_model_does_not_read_takes_no_tags_of_others():
    source = "<i>One.</i> Zz. <b>Two</b> three. Four <u>five</u>."

    def say(text):
        return Translation("", 0.0) if text == "Zz." else copied(text)

    restored, texts = translated(source, say)
    assert len(texts) == 4
    assert restored.split() == source.replace("Zz. ", "").split()


@pytest.mark.parametrize(
    ("source", "with_spaces"),
    [
        ("<p>One.&nbsp;Two.</p>", "<p>One.&nbsp;Two.</p>"),
        (
            "<p>&nbsp;One. \u00a0</p>&#160;<p>\u202fTwo &#xA0;</p>",
            "<p>&nbsp;One. \u00a0</p>&#160;<p>\u202fTwo &#xA0;</p>",
        ),
        (
            "<td>&nbsp;</td><td>One&nbsp;<b>dog</b>.&nbsp;</td>",
            "<td>&nbsp;</td><td>One <b>dog</b>.&nbsp;</td>",
        ),
        (
            "One&nbsp;dog: 3\u202f€.&nbsp;<i>Two&nbsp;cost <b>4</b>&nbsp;€!</i>",
            "One dog: 3 €.&nbsp;<i>Two cost <b>4</b> €!</i>",
        ),
        ('<i title="&nbsp;Yes.&nbsp;No&nbsp;! ">x</i>', '<i title="&nbsp;Yes.&nbsp;No ! ">x</i>'),
    ],
)
def test_no_break_spaces_stay_around_sentences_and_where_the_model_writes_them(source, with_spaces):
    copy, _ = translated(source, as_written)
    assert html.unescape(copy) == html.unescape(source)
    copy, _ = translated(source, copied)
    assert html.unescape(copy) == html.unescape(with_spaces)


@settings(max_examples=100)
@given(rng=RANDOM, seed=st.integers(0, 2**32))
def test_alignments_of_other_sentences_would_change_nothing(rng, seed):
    source = " ".join(random_markup(rng) for _ in range(rng.randrange(1, 4)))
    source = source.replace("&lt;b&gt;", "&amp;")  # A sentence begins with no tag of a corpus.
    texts = []
    for aligns_all in (False, True):
        chance = random.Random(seed)
        engine = SplittingEngine(lambda text, r=chance: disorder(text, r), EIGHT, aligns_all)
        texts.append(Translator(engine).translate([source], markup="html")[0].text)
    assert texts[0] == texts[1], source


@settings(max_examples=200)
@given(rng=RANDOM, placeholders=SETS_OF_PLACEHOLDERS)
def test_tags_that_run_over_sentences_are_whole_and_nested_as_before(rng, placeholders):
    source = " ".join(random_markup(rng) for _ in range(rng.randrange(1, 4)))
    restored, _ = translated(source, lambda text: disorder(text, rng), placeholders=placeholders)
    check_same_tags(source, restored)
