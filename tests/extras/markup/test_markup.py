"""Markup comes back whole and well-formed, whatever a model does to the text between."""

import dataclasses
import html
import re
import time

import numpy as np
import pytest
from markup_engines import (
    EIGHT,
    SayingEngine,
    backwards,
    in_order,
    says,
    translated,
    unchanged,
    without_signs,
)

from keras_transformer import Translation, Translator
from keras_transformer.base.errors import InputError
from keras_transformer.extras.markup import aligning, protect, restore
from keras_transformer.text.elements import count_blocks
from keras_transformer.text.symbols import Placeholders


@pytest.mark.parametrize(
    ("source", "say", "expected"),
    [
        ("A <b>big</b> dog.", in_order, "A <b>BIG</b> DOG."),
        ("A <b>big</b> dog", backwards, "DOG <b>BIG</b> A"),
        ("<p>One <i>two <b>three</b></i></p>", backwards, "<p><i><b>THREE</b> TWO</i> ONE</p>"),
        ("one <br/> two &lt; &amp; c", in_order, "ONE <br/> TWO &lt; &amp; C"),
        ("A <0>big</0> dog<1/> <2>x</2>.", in_order, "A <0>BIG</0> DOG<1/> <2>X</2>."),
        ("1 <2 and 3> 2, 4 <5000> 6", in_order, "1 &lt;2 AND 3&gt; 2, 4 &lt;5000&gt; 6"),
        ("<b>lost", in_order, "<b>LOST"),
        ('<a title="1 > 0">x</a>', in_order, '<a title="1 > 0">X</a>'),
        ("<!-- <b> --><b>x</b>", in_order, "<!-- <b> --><b>X</b>"),
        ("<![if !IE]>a <b>x</b><![endif]>", in_order, "<![if !IE]>A <b>X</b><![endif]>"),
        ("<a id=it's>x</a> y's", in_order, "<a id=it's>X</a> Y'S"),
        ("<a href=x?a='b' rel = 'c>d'>x</a>", in_order, "<a href=x?a='b' rel = 'c>d'>X</a>"),
        ("<!--->a<b>x</b> -->", in_order, "<!--->A<b>X</b> --&gt;"),
        (f"a &#{'9' * 5000}; &#0000000065; &#x{'0' * 5000}42;", unchanged, "a \ufffd A B"),
    ],
)
def test_tags_enclose_the_translations_of_the_words_that_they_enclosed(source, say, expected):
    assert translated(source, say) == expected


@pytest.mark.parametrize(
    ("source", "say", "expected"),
    [
        # A copied word has its tags around the same characters.
        ("Water is H<sub>2</sub>O.", in_order, "WATER IS H<sub>2</sub>O."),
        ("an area of 9 m<sup>2</sup>", in_order, "AN AREA OF 9 M<sup>2</sup>"),
        ("<b>T</b>he dog", in_order, "<b>T</b>HE DOG"),
        ("the 10<sup>th</sup> day", backwards, "DAY 10<sup>TH</sup> THE"),
        ("is under<u>line</u>d", in_order, "IS UNDER<u>LINE</u>D"),
        ("super<wbr>cali is", backwards, "IS SUPER<wbr>CALI"),
        ("H2O or H<sub>2</sub>O", backwards, "H<sub>2</sub>O OR H2O"),
        ("<i>a<b>b</b>c</i> d", in_order, "<i>A<b>B</b>C</i> D"),
        # Any other word has them around it.
        ("Water is H<sub>2</sub>O", says(H2O="agua"), "WATER IS <sub>agua</sub>"),
        ("<b>T</b>he dog", says(The="DER"), "<b>DER</b> DOG"),
        ("the 10<sup>th</sup> day", says(**{"10th": "10."}), "THE <sup>10.</sup> DAY"),
        ("is under<u>line</u>d", says(underlined="liegt"), "IS <u>liegt</u>"),
        # The number of a footnote is copied without its word.
        (
            'See note<sup><a href="#n1">1</a></sup> below.',
            says(note1="Anmerkung1"),
            'SEE Anmerkung<sup><a href="#n1">1</a></sup> BELOW.',
        ),
        ("a note<sup>12</sup> b", says(note12="(12)"), "A (<sup>12</sup>) B"),
    ],
)
def test_a_tag_inside_a_word_stands_in_its_copy_or_around_its_translation(source, say, expected):
    assert translated(source, say) == expected


TOUCHING = [("%s%s", "placeholders"), ("{first}{last}", "placeholders")]
TOUCHING += [("Page %d/%d", "placeholders")]
TOUCHING += [("({h}:{m}) v{x} #{id}, {n}px {a}, {b}.", "placeholders"), ("<b>{name}</b>", "html")]
TOUCHING += [("Hi <b>{name}</b>. Hi <i>{name}</i>", "html"), ("<img><img>", "html")]
TOUCHING += [("a <img><img> b", "html"), ("a<br>b<img> c <hr/>", "html")]
TOUCHING += [("a<br>{x}<b>%s</b><i>%d</i> c", "html"), ("<b>a</b><br><i>b</i><!-- c --> d", "html")]


@pytest.mark.parametrize("placeholders", [EIGHT, Placeholders()])
@pytest.mark.parametrize(("source", "markup"), TOUCHING)
def test_what_touched_touches_again(source, markup, placeholders):
    # This model writes a space before each placeholder and after it.
    def say(words):
        parts = [(part, i) for i, word in enumerate(words) for part in re.split(r"(<ph_\d>)", word)]
        return [(part, position) for part, position in parts if part]

    assert translated(source, say, markup, placeholders) == source


def test_a_language_may_have_a_space_between_a_placeholder_and_the_sign_at_an_end():
    def french(words):
        return [(part, i) for i, word in enumerate(words) for part in word.partition("!")[:2]]

    assert translated("Hi {name}!", french, "placeholders").split() == ["Hi", "{name}", "!"]


# https://html.spec.whatwg.org/multipage/rendering.html, "Flow content" to "Form controls"
BLOCKS = """
    address blockquote button caption center dd details dialog dir div dl dt fieldset figcaption
    figure footer form h1 h2 h3 h4 h5 h6 header hgroup legend li listing main menu nav ol option p
    pre search section summary table tbody td tfoot th thead tr ul article aside body label
""".split()


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_html_are_separate_texts_for_the_model(name):
    engine = SayingEngine(backwards)
    source = f"<{name}>One two</{name}><{name} id=1>three <b>four</b></{name}>"
    (translation,) = Translator(engine).translate([source], markup="html")
    assert engine.texts == ["One two", "three four"]
    expected = f"<{name}>TWO ONE</{name}><{name} id=1><b>FOUR</b> THREE</{name}>"
    assert translation.text == expected
    assert [len(part.tokens) for part in translation.parts] == [3, 3]


@pytest.mark.parametrize("name", ["title", "textarea"])
def test_a_block_of_text_has_no_tags(name):
    engine = SayingEngine(in_order)
    source = f"<{name}>a &amp; <b> <!-- c</{name}>"
    (translation,) = Translator(engine).translate([source], markup="html")
    assert engine.texts == ["a & <b> <!-- c"]
    assert translation.text == f"<{name}>A &amp; &lt;B&gt; &lt;!-- C</{name}>"


@pytest.mark.parametrize("name", ["b", "br/", "img", "span", "a", "my-element"])
def test_other_elements_do_not_separate_texts(name):
    engine = SayingEngine(in_order)
    Translator(engine).translate([f"one<{name}> two"], markup="html")
    assert len(engine.texts) == 1


@pytest.mark.parametrize(
    ("source", "texts", "expected"),
    [
        ("<ul>\n  <li>a b\n  <li> c\n</ul>", ["a b", "c"], "<ul>\n  <li>B A\n  <li> C\n</ul>"),
        ("a b<p>c<br></p>e f", ["a b", "c", "e f"], "B A<p>C<br></p>F E"),
        # Line breaks that separate lines, not words.
        ("a b<br>\n<BR/>c d<br>e f", ["a b", "c d e f"], "B A<br>\n<BR/><br>F E D C"),
        ("a<br>&nbsp;<br> <br>b", ["a", "b"], "A<br>&nbsp;<br> <br>B"),
        ("a<br><!-- --><br>b c", ["a b c"], None),
        (
            "<address>a b<br>c <i>d<br>e</i></address><br>f g<br>h <address>i<br>j",
            ["a b", "c d", "e", "f g h", "i j"],
            None,
        ),
        # Links of a menu.
        (
            "<nav><a>a b</a> | <a>c</a> d e</nav> <a>g</a> <a>h</a>",
            ["a b", "c", "d e", "g h"],
            "<nav><a>B A</a> | <a>C</a> E D</nav> <a>H</a> <a>G</a>",
        ),
        # Blocks without letters.
        ("<td>42</td><td>€ 1.299,00</td><td>👍 5</td><td>a 5</td>", ["a 5"], None),
        ("<td>&nbsp;</td><td>{x}</td><td>a</td>", ["a"], "<td>&nbsp;</td><td>{x}</td><td>A</td>"),
        # An element around blocks, or around parts of them.
        ("<a><div>a b</div></a>", ["a b"], "<a><div>B A</div></a>"),
        ("a <b>b c<p>d <i>e</i></p>f g</b> h", ["a b c", "d e", "f g h"], None),
        ("<b><p>a</p>{x}</b>", ["a"], "<b><p>A</p>{x}</b>"),
        # White space of a layout.
        ("<pre>a b\n  c  d\te\n</pre>f  g", ["a b", "c", "d", "e", "f g"], None),
        ("<pre><b>a (b)\n\n    c</b></pre>", ["a (b)", "c"], None),
        ("<textarea>a\n\tb </textarea>", ["a", "b"], "<textarea>A\n\tB </textarea>"),
    ],
)
def test_markup_and_white_space_between_blocks_stays_as_it_is(source, texts, expected):
    engine = SayingEngine(backwards, Placeholders())
    (translation,) = Translator(engine).translate([source], markup="html")
    assert engine.texts == texts and count_blocks(source) >= len(texts)
    if expected is None:  # with words in another order
        words = [re.findall(r"[a-z]+|\S", text) for text in (source, translation.text.lower())]
        assert sorted(words[0]) == sorted(words[1])
        assert re.findall(r"\s\s+|[\n\t]", source.partition("</pre>")[0]) == re.findall(
            r"\s\s+|[\n\t]", translation.text.partition("</pre>")[0]
        )
        expected = translation.text
    assert translation.text == expected


PAGE = """
<!DOCTYPE html>\r
<!-- a  comment -->
<html  lang=en><head><meta charset="utf-8"><title>  One two </title>
<style> p  > a { color: red } </style><script>if (a < b && c)  { x }</script>
<?php  echo  1 ?><![CDATA[ a  b ]]></head>

<body>
<p>three&nbsp;four <b>five</b></p>\t<td> 42\n</td><td>&euro;&nbsp;1.299,00</td><p>&#128077;</p>
<pre>six\n  seven</pre><hr/></body>  </html>

"""


def test_everything_outside_of_texts_with_letters_stays_byte_for_byte():
    engine = SayingEngine(unchanged)
    (translation,) = Translator(engine).translate([PAGE], markup="html")
    assert translation.text == PAGE.replace("three&nbsp;four", "three four")
    assert engine.texts == ["One two", "three\u00a0four five", "six", "seven"]


COPIED = ['<span translate="no">New &amp; old, {x}</span>', "<code TRANSLATE=no>a <b>b</b></code>"]
COPIED += ["<b class='x notranslate y'><b>b</b> c</b>", "<i translate = 'no'>a</i>"]
COPIED += ["<code>a b</code>", "<KBD>a</KBD>", "<svg><title>a</title></svg>", "<math>a</math>"]
COPIED += ["<code class='x' translate=no>a</code>", "<samp>a</samp>", "<var>a</var>"]
COPIED += ['<p translate="no">a<p>', "<div class=notranslate><p>a</p>\n<p>b</div>"]
TAGS = ['<b id="no">', "<b id='translate=no'>", '<b translate="yes">', "<b class=notran>"]
ELEMENTS = [
    *((f"one {copied} <i>two</i>", f"ONE {copied} <i>TWO</i>") for copied in COPIED),
    *((f"{tag}a</b>", f"{tag}A</b>") for tag in TAGS),
    ("<code translate=' YES '>a</code>", "<code translate=' YES '>A</code>"),
    # Without its end, an element ends with the element around it.
    (
        "<b>a <i translate=no>b</b> c <i translate=no>d",
        "<b>A <i translate=no>b</b> C <i translate=no>d",
    ),
]


@pytest.mark.parametrize(("source", "expected"), ELEMENTS)
def test_an_element_that_is_not_translated_is_copied_as_it_is(source, expected):
    assert translated(source, placeholders=Placeholders()) == expected
    assert translated(source, unchanged) == source


# A part that is translated separates texts.
TRANSLATED_INSIDE = [
    ("<p translate=no>a <b translate=yes>b <i>c</i></b> d</p>e", ["b c", "e"]),
    ("a <code>b <i translate='yes'>c</i> d</code> e", ["a", "c", "e"]),
    ("<div class=notranslate>a<p translate>b <code>c</code> d</p>e</div>", ["b X1 d"]),
    ("<p translate=no>a<b translate=yes>b <i translate=no>c</i></b>", ["b X1"]),
    ("<p translate=no>a<b translate=yes>b", [""]),  # without an end
    ("a <i translate=no>b <b translate=yes>c</b> d<p>e", ["a", "c", "e"]),
    # Elements in another language than the page's.
    ("<html lang=en>a <i lang=fr>b</i> <i lang=en-GB>c</i> <i lang=''>d</i>", ["a X1 c d"]),
    ("<html lang=en><p lang=fr>a<b lang=eng>b</b></p><b lang=fr translate=yes>c</b>", ["b"]),
    ("<html lang=en><p lang=en translate=no>a<b lang=en>b</b></p><img lang=fr alt=c>", [""]),
    ("<html xml:lang=en>a <i xml:lang=fr>b</i>", ["a X1"]),
    ("<p lang=en>a</p><p lang=fr>b</p>", ["a", "b"]),  # The page does not name its language.
    ("a <img translate=no alt='b'>", ["a"]),
]


@pytest.mark.parametrize(("source", "texts"), TRANSLATED_INSIDE)
def test_an_element_says_for_the_elements_in_it_whether_they_are_translated(source, texts):
    engine = SayingEngine(in_order, Placeholders())
    (translation,) = Translator(engine).translate([source], markup="html")
    assert engine.texts == texts and count_blocks(source) >= len(texts)
    assert translation.text.lower() == source.lower()
    capitals = re.findall("[A-Z]", re.sub("<[^>]*>", "", translation.text))
    assert capitals == re.findall(r"[A-W]", "".join(texts).upper())


def test_the_caller_names_the_language_before_the_page():
    source = "<html lang=en>a<div lang=de>b<p>c</p></div><p lang=en>d</p>"
    blocks = protect(source, "html", Placeholders(), language="de")
    assert [block.text for block in blocks] == ["a", "b", "c"]
    assert count_blocks(source) == 4  # The most that any caller gets.


class OptionsEngine(SayingEngine):
    """Remembers its options, and refuses the word `bad`."""

    def translate(self, texts, alignment=False, **options):
        self.options = options
        for position, text in enumerate(texts):
            if text == "bad":
                raise InputError("A text must be good.", position)
        best, other = (super(OptionsEngine, self).translate(texts, alignment) for _ in range(2))
        others = [dataclasses.replace(row, text=row.text + "?", score=-1.0) for row in other]
        return [
            dataclasses.replace(row, alternatives=(another,) * (options.get("n_best", 1) - 1))
            for row, another in zip(best, others, strict=True)
        ]


def test_options_of_a_text_are_those_of_its_blocks():
    engine = OptionsEngine(in_order)
    translator = Translator(engine)
    sources = ["a", "<p>b</p><p>c</p>", "d"]
    options = {"seed": (1, 2, 3), "target_prefixes": ["x", "y", "z"], "phrases": [["w"], [], []]}
    translations = translator.translate(sources, markup="html", n_best=2, **options)
    assert engine.options["seed"] == (1, 2, 2, 3)
    assert engine.options["target_prefixes"] == ["x", "y", "", "z"]
    assert engine.options["phrases"] == (["w"], [], [], [])
    texts = [[t.text, *(other.text for other in t.alternatives)] for t in translations]
    assert texts == [["A", "A?"], ["<p>B</p><p>C</p>", "<p>B?</p><p>C?</p>"], ["D", "D?"]]
    with pytest.raises(InputError, match="Text 3: A text must be good"):
        translator.translate(["a", "<p>b</p><p>c</p>", "<p>d</p><p>bad</p>"], markup="html")
    with pytest.raises(
        InputError, match="Text 2: A phrase of a text that .* Received: 'w', in none of 2."
    ):
        translator.translate(sources, markup="html", phrases=[[], ["w"], []])
    with pytest.raises(InputError, match="one for each text. Received: 2 for 3 texts"):
        translator.translate(sources, markup="html", target_prefixes=["x", "y"])


COLLECTIONS = {"array": np.array, "iterator": iter, "list": list}


@pytest.mark.parametrize("collection", COLLECTIONS.values(), ids=COLLECTIONS)
def test_values_of_texts_are_any_collection(collection):
    engine = OptionsEngine(in_order)
    values = {
        "target_prefixes": ["x", "y", "z"],
        "source_language": ["en", "de", "fr"],
        "target_language": ["de", "fr", "en"],
    }
    options = {name: collection(value) for name, value in values.items()}
    seed = np.array([1, 2, 3]) if collection is np.array else range(1, 4)
    phrases = collection([["w"], ["w"], ["w"]])
    texts = ["a", "<p>b</p><p>c</p>", "d"]
    Translator(engine).translate(texts, markup="html", seed=seed, **options)
    assert engine.options["seed"] == (1, 2, 2, 3)
    assert engine.options["target_prefixes"] == ["x", "y", "", "z"]
    assert engine.options["source_language"] == ("en", "de", "de", "fr")
    assert engine.options["target_language"] == ("de", "fr", "fr", "en")
    Translator(engine).translate(["a", "b", "d"], markup="html", seed=seed, phrases=phrases)
    assert [list(row) for row in engine.options["phrases"]] == [["w"]] * 3


@pytest.mark.parametrize("tag", [">>epo<< ", ">>epo<< <bt> "])
def test_tags_that_a_text_begins_with_are_the_tags_of_its_blocks(tag):
    engine = SayingEngine(lambda words: in_order(words)[len(tag.split()) :])
    engine.source_tokenizer.split_tags = lambda text: (tag.strip(), text.removeprefix(tag))
    source = f"{tag}<p>a <b>b</b></p><p>c</p>"
    (translation,) = Translator(engine).translate([source], markup="html")
    assert engine.texts == [f"{tag}a b", f"{tag}c"]
    assert translation.text == "<p>A <b>B</b></p><p>C</p>"


def test_tags_are_no_source_tokens_that_a_word_can_come_from():
    tokens = ["▁>>epo<<", "▁", "<bt>", "▁a", "▁b", "</s>"]
    assert aligning._token_indices(tokens, "a b", is_first=True) == [3, 4]
    assert aligning._token_indices(tokens[1:], "a b", is_first=True) == [2, 3]
    assert aligning._token_indices(tokens[1:], "<bt> a b", is_first=True) == [0, 1, 2, 3]


def test_an_item_that_the_model_has_not_written_uses_the_alignment_that_an_engine_has():
    class Refusing(SayingEngine):
        """Aligns no texts in greedy search, as a SavedModel."""

        def request(self, alignment=False, beam_size=2, **options):
            if alignment and beam_size == 1:
                raise InputError("`alignment` needs beam search in an export.")

        def translate(self, texts, alignment=False, **options):
            self.aligned = alignment
            return super().translate(texts, alignment)

    def say(words):
        pairs = says(a="EXTRAORDINARILY")(words)
        return [pair for pair in pairs if pair[0] != "X1"]

    engine = Refusing(say, Placeholders())
    translator = Translator(engine)
    for options, expected in [
        ({}, "EXTRAORDINARILY TWO {name} THREE"),
        ({"beam_size": 1}, "EXTRAORDINARILY {name} TWO THREE"),
    ]:
        options["markup"] = "placeholders"
        (translation,) = translator.translate(["a two {name} three"], **options)
        assert translation.text == expected and translation.alignment is None
    # The parts of a text have the alignment only if the caller wants it.
    for wanted in (False, True):
        options = {"markup": "placeholders", "split_sentences": True, "alignment": wanted}
        (translation,) = translator.translate(["A {name} three. So four."], **options)
        assert engine.aligned
        assert [part.alignment is not None for part in translation.parts] == [wanted] * 2
    translator.translate(["plain text"], markup="placeholders")
    assert not engine.aligned  # Nobody needs it.


def test_an_item_is_a_placeholder_that_the_model_writes_where_it_wants():
    source = "Mail {name} at a@b.org now"
    translation = translated(source, lambda words: unchanged(words)[::-1], "placeholders")
    assert translation == "now a@b.org at {name} Mail"
    # Without placeholders in the vocabulary, it is a word.
    for source, expected in [
        ("Mail {name} at home", "MAIL {name} AT HOME"),
        # It does not join a word where the model has removed the signs between.
        ("Read ({url}) at home, {name}.", "READ {url} AT HOME {name}"),
        ("{name}: read it ({url}).", "{name} READ IT {url}"),
        ("({name}) 读", "{name} 读"),  # a script without spaces
        ("a ({b}),({c})", "A {b}),({c}"),
        ("({a}), ({b})", "({a}), ({b})"),  # Without letters, nothing is translated.
    ]:
        assert translated(source, without_signs, "html", Placeholders()) == expected


def test_markup_needs_an_engine_that_can_do_it():
    class Plain(SayingEngine):
        capabilities = frozenset({"translate"})

    with pytest.raises(InputError, match="`markup=html` needs alignments: .*Received: this export"):
        Translator(Plain(in_order)).translate(["<b>a</b>"], markup="html")
    assert Translator(Plain(in_order)).translate(["a"], markup="placeholders")[0].text == "A"
    with pytest.raises(InputError, match="`markup` must be one of placeholders, html"):
        translated("a", markup="xml")


def test_thousands_of_nested_tags_are_nested_as_before():
    source = "<b>" * 1500 + "word" + "</b>" * 1500
    assert translated(source) == source.replace("word", "WORD")


@pytest.mark.parametrize("text", ["%" + "0" * 8191, "a." * 4096, "http://" * 1170, "{" * 8192])
def test_a_text_is_read_once_for_its_items(text):
    begin = time.process_time()
    protect(text, "placeholders", Placeholders(8, True))
    # Read again from each of its characters, it would take from half a second to five.
    assert time.process_time() - begin < 0.2


FIELDS = [("100 %d, 20\u00a0%s", []), ("20 % der Leute, 5%", [])]
FIELDS += [("%d of %1$s, %-5.2f: %(name)s", ["%d", "%1$s", "%-5.2f", "%(name)s"])]
FIELDS += [("共%d个，%s的", ["%d", "%s"]), ("请写信给a@b.org。", ["a@b.org"]), ("%dort", [])]
FIELDS += [("他买了3本书，a4 4b 12:30, 1999", ["3", "12:30", "1999"])]


@pytest.mark.parametrize(("text", "items"), FIELDS)
def test_a_field_is_no_percentage_and_may_stand_beside_words_without_spaces(text, items):
    placeholders = Placeholders(8, numbers="3" in text)
    (protected,) = protect(text, "placeholders", placeholders)
    assert protected.literals == items


@pytest.mark.parametrize(
    "source", ["a <ph_1> b", "a &lt;ph_1&gt; b", "&lt;ph_<b>1</b>&gt; b", "<b>&lt;ph_1</b>> b"]
)
@pytest.mark.parametrize("item", ["", "{x} "])
def test_what_looks_like_a_placeholder_in_a_source_is_none(source, item):
    (protected,) = protect(item + source, "html", EIGHT)
    symbols = re.findall(r"<ph_\d+>", protected.text)
    assert symbols == [f"<ph_{number + 1}>" for number in range(len(protected.literals))]
    translation = translated(item + source, unchanged)
    assert translation.startswith(item)
    assert sorted(re.findall("</?[bi]>", translation)) == sorted(re.findall("</?[bi]>", source))
    text = [html.unescape(re.sub("</?[bi]>", "", side)) for side in (translation, item + source)]
    # A name that tags interrupt is written with another sign.
    assert re.sub("[-_ ]", "", text[0]) == re.sub("[-_ ]", "", text[1])


def test_a_tag_encloses_a_word_where_words_have_no_spaces():
    source = "我有一只<b>狗</b>。"
    (protected,) = protect(source, "html", EIGHT)
    same = dict(tokens=tuple(protected.text), source_tokens=tuple(protected.text))
    translation = Translation(protected.text, 0.0, alignment=np.eye(len(protected.text)), **same)
    assert restore(translation, protected).text == source


def test_a_tag_cuts_no_word_between_a_letter_and_its_marks():
    (protected,) = protect("<i>a</i> b", "html", EIGHT)
    sides = {"tokens": ("▁घर", "ों", "▁है"), "source_tokens": ("▁a", "▁b")}
    weights = np.array([[1, 0], [0.4, 0.6], [0, 1]])
    translation = Translation("घरों है", 0.0, **sides, alignment=weights)
    assert restore(translation, protected).text == "<i>घरों</i> है"


def test_an_address_comes_back_where_it_touches_a_word_without_spaces():
    source = "详情请访问https://example.org。谢谢大家的支持！"
    (protected,) = protect(source, "placeholders", EIGHT)
    translation = Translation("Siehe <ph_1>. Danke für alles!", 0.0)
    assert restore(translation, protected).text == "Siehe https://example.org. Danke für alles!"
