"""Attributes that people read are texts of their own; their translations are valid HTML."""

import dataclasses
import html.parser

import pytest
from markup_engines import SayingEngine, backwards, in_order

from keras_transformer import Translator
from keras_transformer.text.elements import count_blocks
from keras_transformer.text.symbols import Placeholders


def translated(source, say=backwards):
    """The translation, and the texts that the model has read."""
    engine = SayingEngine(say, Placeholders())
    (translation,) = Translator(engine).translate([source], markup="html")
    assert len(source) // 2 + 1 >= count_blocks(source) >= len(engine.texts)
    return translation.text, engine.texts


@pytest.mark.parametrize(
    ("source", "expected", "texts"),
    [
        # In a sentence, whose words move.
        (
            'see <a href="a b" title="our big house">the house</a> now',
            'NOW <a href="a b" title="HOUSE BIG OUR">HOUSE THE</a> SEE',
            ["our big house", "see the house now"],
        ),
        ("a <img src=x alt='red dog'> b", "<img src=x alt='DOG RED'> B A", ["red dog", "a b"]),
        # Between texts, in a block without letters, before and after all texts.
        (
            '<p title="x y"><img alt="a b"> 5</p><td>c d</td><input placeholder=" e f ">\n',
            '<p title="Y X"><img alt="B A"> 5</p><td>D C</td><input placeholder=" F E ">\n',
            ["x y", "a b", "c d", "e f"],
        ),
        ('<img ALT="a b"/>', '<img ALT="B A"/>', ["a b"]),
        (
            '<i aria-label="a b" title="c d">e f</i> <i title="g h">i</i>',
            '<i title="H G">I</i> <i aria-label="B A" title="D C">F E</i>',
            ["a b", "c d", "g h", "e f i"],
        ),
        # A description of a page.
        (
            '<meta name="Description" content="a b"><meta content="c d" name=description>',
            '<meta name="Description" content="B A"><meta content="D C" name=description>',
            ["a b", "c d"],
        ),
        # Labels of buttons and choices.
        (
            '<input type="Submit" value="a b"><input type=reset value=c><input type=button value=d>'
            "<option label='e f'><track label=g><optgroup label=h></optgroup>",
            '<input type="Submit" value="B A"><input type=reset value="C"><input type=button '
            'value="D"><option label=\'F E\'><track label="G"><optgroup label="H"></optgroup>',
            ["a b", "c", "d", "e f", "g", "h"],
        ),
        (
            '<i aria-description="a b" aria-valuetext=c>5</i>',
            '<i aria-description="B A" aria-valuetext="C">5</i>',
            ["a b", "c"],
        ),
        # Character references, quotation marks, items and values without quotation marks.
        ('<i title="a &amp; &lt;b&gt;">c</i>', '<i title="&lt;B&gt; &amp; A">C</i>', None),
        ("<i title='it&#39;s \"a\"'>c</i>", "<i title='\"A\" IT&#39;S'>C</i>", None),
        ('<i title="it\'s &quot;a&quot;">c</i>', '<i title="&quot;A&quot; IT\'S">C</i>', None),
        ("<i title=house>c</i> <img alt=a>", '<i title="HOUSE">C</i> <img alt="A">', None),
        ('<i title="hi {n}, you">c</i>', '<i title="YOU {n}, HI">C</i>', ["hi X1, you", "c"]),
    ],
)
def test_the_values_of_attributes_are_texts_of_their_own(source, expected, texts):
    result, texts_read = translated(source)
    assert result == expected
    assert texts is None or texts_read == texts


@pytest.mark.parametrize(
    ("source", "prefixes"),
    [
        ('<img alt="a b"> c. <p>d</p>', ["", "So", ""]),
        ('<p title="x y"><i aria-label="a">12</i></p><p>c d</p>', ["", "", "So"]),
        ('<i title="a">b</i> <i title="c">d</i>', ["", "", "So"]),
        # Nothing else is read.
        ('<img alt="a b"> 42 <img title=c>', ["So", ""]),
    ],
)
def test_a_target_prefix_begins_the_text_and_no_attribute(source, prefixes):
    class Engine(SayingEngine):
        def translate(self, texts, target_prefixes=(), **options):
            self.prefixes = target_prefixes
            return super().translate(texts, **options)

    engine = Engine(in_order, Placeholders())
    Translator(engine).translate([source], markup="html", target_prefixes=["So"])
    assert [*engine.prefixes] == prefixes


@pytest.mark.parametrize(
    "source",
    [
        '<i id="a b" data-title="c d" class="e f">5</i>',
        '<img alt=""><img alt="5 %"><img alt><img alt = ""><i title="{n}">4</i>',
        '<i translate="no" title="a b">c <b title="d">e</b></i>',
        '<script title="a b">c</script><style title="d e">f</style><!-- title="a b" -->',
        '<meta name="author" content="a b"><meta content="c d"><meta property="description" a="b">',
        """<a data-x="title='a b'" href='x?title="c d"'></a>""",
        "</p title='a b'>",
        "<input value='a b'><input type=text value='a b'><button value=a></button><li value=a>",
        "<i label='a b'>5</i><input title='5 %' title='a b'><i x=' title=a '>5</i>",
    ],
)
def test_other_attributes_stay_as_they_are(source):
    assert translated(source) == (source, [""])


def test_a_value_of_several_sentences_has_its_quotation_marks():
    source = "<i title='it is &quot;a&quot;. It&#39;s b.'>c</i>"
    result, texts = translated(source, in_order)
    assert result == "<i title='IT IS \"A\". IT&#39;S B.'>C</i>"
    assert len(texts) >= 2


class Titles(html.parser.HTMLParser):
    """Collects titles."""

    def __init__(self, text):
        super().__init__()
        self.titles = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.titles += [value for name, value in attributes if name == "title"]


@pytest.mark.parametrize("quote", ['"', "'", ""])
@pytest.mark.parametrize("said", ["it's", '"it"', "<i>", "a&b", "&amp;", "a=b", "x/>"])
def test_whatever_the_model_writes_is_the_value(quote, said):
    result, _ = translated(f"<i title={quote}a{quote}>c</i>", lambda words: [(said, 0)])
    assert Titles(result).titles == [said]


class TwoTranslations(SayingEngine):
    """Writes an alternative of each text."""

    def translate(self, texts, **options):
        return [
            dataclasses.replace(
                row, alternatives=(row, dataclasses.replace(row, text=row.text + "?", score=-1.0))
            )
            for row in super().translate(texts, alignment=True)
        ]


def test_alternatives_of_a_sentence_have_the_first_translation_of_its_attributes():
    engine = TwoTranslations(in_order, Placeholders())
    (translation,) = Translator(engine).translate(['<i title="a">b</i> c'], markup="html", n_best=2)
    assert translation.text == '<i title="A">B</i> C'
    assert {other.text for other in translation.alternatives} <= {
        '<i title="A">B</i> C',
        '<i title="A">B</i> C?',
    }
