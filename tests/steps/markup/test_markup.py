"""Markup comes back whole and well-formed, whatever a model does to the text between."""

import collections
import dataclasses
import html
import itertools
import random
import re
import time

import numpy as np
import pytest
from fakes import FakeEngine, FakeTokenizer
from hypothesis import given
from hypothesis import strategies as st
from translations import sentencepiece_pieces

from keras_transformer import Translation, Translator
from keras_transformer.errors import InputError
from keras_transformer.steps.glossary import Glossary, annotate
from keras_transformer.steps.markup import aligning, count_blocks, protect, restore
from keras_transformer.steps.placeholders import with_placeholders
from keras_transformer.steps.splitting import split_text
from keras_transformer.text.symbols import Placeholders

EIGHT = Placeholders(8)


def tokens_of(text):
    words = [part for part in re.split(r"(<ph_\d+>|\s+)", text) if part and not part.isspace()]
    spaced = [text.find(word) == 0 or " " + word in text for word in words]
    return tuple("▁" * space + word for word, space in zip(words, spaced, strict=True))


class SayingEngine(FakeEngine):
    """`say` gives the words of a translation, and for each the place of one of the source."""

    capabilities = frozenset({"translate", "align"})

    def __init__(self, say, placeholders=EIGHT, annotates=False):
        tokens = {"placeholders": placeholders, "annotates_terms": annotates, "tokenize": list}
        super().__init__(say=say, source_tokenizer=FakeTokenizer(**tokens))

    def translate(self, texts, alignment=False, **options):
        self.texts, translations = texts, []
        for text in texts:
            source = text.split()
            said = self.say(source)
            tokens = tuple("▁" + word for word, _ in said)
            weights = np.zeros((len(said) + 1, len(source) + 1), "float32")
            for row, (_, position) in enumerate(said):
                weights[row, position] = 1
            sides = {"source_tokens": (*("▁" + word for word in source), "</s>")}
            sides |= {"tokens": (*tokens, "</s>"), "alignment": weights if alignment else None}
            translations.append(Translation(" ".join(word for word, _ in said), 0.0, **sides))
        return translations


def unchanged(words):
    return [(word, position) for position, word in enumerate(words)]


def in_order(words):
    return [(word.upper(), position) for word, position in unchanged(words)]


def without_signs(words):
    pairs = [(word.strip("(),.:"), position) for word, position in in_order(words)]
    return [(word, position) for word, position in pairs if word]


def backwards(words):
    return in_order(words)[::-1]


def translated(source, say=in_order, markup="html", placeholders=EIGHT, **options):
    translator = Translator(SayingEngine(say, placeholders))
    return translator.translate([source], markup=markup, **options)[0].text


@pytest.mark.parametrize(
    ("source", "say", "expected"),
    [
        ("A <b>big</b> dog.", in_order, "A <b>BIG</b> DOG."),
        ("A <b>big</b> dog", backwards, "DOG <b>BIG</b> A"),
        ("<p>One <i>two <b>three</b></i></p>", backwards, "<p><i><b>THREE</b> TWO</i> ONE</p>"),
        ("one <br/> two &lt; &amp; c", in_order, "ONE <br/> TWO &lt; &amp; C"),
        ("<b>lost", in_order, "<b>LOST"),
        ('<a title="1 > 0">x</a>', in_order, '<a title="1 > 0">X</a>'),
        ("<!-- <b> --><b>x</b>", in_order, "<!-- <b> --><b>X</b>"),
        ("<![if !IE]>a <b>x</b><![endif]>", in_order, "<![if !IE]>A <b>X</b><![endif]>"),
        ("<a title=it's>x</a> y's", in_order, "<a title=it's>X</a> Y'S"),
        ("<a href=x?a='b' rel = 'c>d'>x</a>", in_order, "<a href=x?a='b' rel = 'c>d'>X</a>"),
        ("<!--->a<b>x</b> -->", in_order, "<!--->A<b>X</b> --&gt;"),
        (f"a &#{'9' * 5000}; &#0000000065; &#x{'0' * 5000}42;", unchanged, "a \ufffd A B"),
    ],
)
def test_tags_enclose_the_translations_of_the_words_that_they_enclosed(source, say, expected):
    assert translated(source, say) == expected


def says(**translations):
    """Translates some words, in order, and others in upper case."""
    return lambda words: [(translations.get(word, word.upper()), i) for i, word in enumerate(words)]


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
    pre search section summary table tbody td textarea tfoot th thead title tr ul article aside body
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


@pytest.mark.parametrize("name", ["b", "br/", "img", "span", "a", "my-element"])
def test_other_elements_do_not_separate_texts(name):
    engine = SayingEngine(in_order)
    Translator(engine).translate([f"one<{name}> two"], markup="html")
    assert len(engine.texts) == 1


@pytest.mark.parametrize(
    ("source", "texts", "expected"),
    [
        ("<ul>\n  <li>a b\n  <li> c\n</ul>", ["a b", "c"], "<ul>\n  <li>B A\n  <li> C\n</ul>"),
        ("a b<p>c<br></p>e f", ["a b", "c ", "e f"], "B A<p>C<br></p>F E"),
        ("<td>&nbsp;</td><td>{x}</td><td>a</td>", ["a"], "<td>&nbsp;</td><td>{x}</td><td>A</td>"),
        # An element around blocks, or around parts of them.
        ("<a><div>a b</div></a>", ["a b"], "<a><div>B A</div></a>"),
        ("a <b>b c<p>d <i>e</i></p>f g</b> h", ["a b c", "d e", "f g h"], None),
        ("<b><p>a</p>{x}</b>", ["a"], "<b><p>A</p>{x}</b>"),
        # White space of a layout.
        ("<pre>a b\n  c  d\te\n</pre>f  g", ["a b", "c", "d", "e", "f  g"], None),
        ("<pre><code>a (b)\n\n    c</code></pre>", ["a (b)", "c"], None),
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


COPIED = ['<span translate="no">New &amp; old, {x}</span>', "<code TRANSLATE=no>a <b>b</b></code>"]
COPIED += ["<b class='x notranslate y'><b>b</b> c</b>", "<i translate = 'no'>a</i>"]
COPIED += ['<p translate="no">a<p>', "<div class=notranslate><p>a</p>\n<p>b</div>"]


@pytest.mark.parametrize("element", COPIED)
def test_an_element_that_is_not_translated_is_copied_as_it_is(element):
    source = f"one {element} <i>two</i>"
    assert translated(source, placeholders=Placeholders()) == f"ONE {element} <i>TWO</i>"
    assert translated(source, unchanged) == source


@pytest.mark.parametrize(
    "tag", ['<b title="no">', "<b title='translate=no'>", '<b translate="yes">', "<b class=notran>"]
)
def test_other_elements_are_translated(tag):
    assert translated(f"{tag}a</b>") == f"{tag}A</b>"


def test_an_element_without_its_end_ends_with_the_element_around_it():
    source = "<b>a <i translate=no>b</b> c <i translate=no>d"
    expected = "<b>A <i translate=no>b</b> C <i translate=no>d"
    assert translated(source, placeholders=Placeholders()) == expected


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
    # The alternative with the highest score has one block that is not the best one.
    assert texts[1][0] == "<p>B</p><p>C</p>" and texts[1][1].count("?") == 1
    assert texts[::2] == [["A", "A?"], ["D", "D?"]]
    with pytest.raises(InputError, match="Text 3: A text must be good"):
        translator.translate(["a", "<p>b</p><p>c</p>", "<p>d</p><p>bad</p>"], markup="html")
    with pytest.raises(InputError, match="Text 2: `phrases` are for .* Received: a text of 2 bl"):
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


def test_an_item_without_a_placeholder_uses_the_alignment_that_an_engine_has():
    class Refusing(SayingEngine):
        """Aligns no texts in greedy search, as a SavedModel."""

        def request(self, alignment=False, beam_size=2, **options):
            if alignment and beam_size == 1:
                raise InputError("`alignment` needs beam search in an export.")

        def translate(self, texts, alignment=False, **options):
            self.aligned = alignment
            return super().translate(texts, alignment)

    engine = Refusing(says(a="EXTRAORDINARILY"), Placeholders())
    translator = Translator(engine)
    for options, expected in [
        ({}, "EXTRAORDINARILY TWO {name} THREE"),
        ({"beam_size": 1}, "EXTRAORDINARILY {name} TWO THREE"),
    ]:
        options["markup"] = "placeholders"
        (translation,) = translator.translate(["a two {name} three"], **options)
        assert translation.text == expected and translation.alignment is None
    translator.translate(["plain text"], markup="placeholders")
    assert not engine.aligned  # Nobody needs it.


def test_an_item_is_a_placeholder_that_the_model_writes_where_it_wants():
    source = "Mail {name} at a@b.org now"
    translation = translated(source, lambda words: unchanged(words)[::-1], "placeholders")
    assert translation == "now a@b.org at {name} Mail"
    # Without placeholders in the vocabulary an item stands between the words around it.
    for source, expected in [
        ("Mail {name} at home", "MAIL {name} AT HOME"),
        # It does not join a word where the model has removed the signs between.
        ("Read ({url}) at home, {name}.", "READ {url} AT HOME {name}"),
        ("{name}: read it ({url}).", "{name} READ IT {url}"),
        ("({name})读", "{name}读"),  # a script without spaces
        ("({a}),({b})", "{a}{b}"),  # An item is no word, which another item would join.
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


WORDS = ["a", "dog", "plays,", "&amp;", "in", "the", "snow.", "&lt;b&gt;", "Straße", "犬", "don't"]
ITEMS = ["http://a.b/c?d=1", "me@x.org", "{name}", "%s", "%1$d", "www.x.de", "<!-- c -->", "<br>"]


def random_markup(rng):
    """A source of tags with numbers of their own, some left open, words and items."""
    parts, stack = [], []
    for number in range(rng.randrange(12)):
        kind = rng.random()
        if kind < 0.25:
            name = rng.choice("biup")
            parts.append(f"<{name} id={number}>")
            stack.append(name)
        elif kind < 0.45 and stack:
            # Now and then one of another name than the last.
            name = stack.pop() if rng.random() < 0.9 else rng.choice("biup")
            parts.append(f"</{name}>")
        elif kind < 0.6:
            parts.append(f" {rng.choice(ITEMS)} ")  # A word next to it would be a part of it.
        else:
            parts.append(rng.choice(WORDS))
        parts.append(rng.choice(["", " ", " "]))
    return "".join(parts) + "".join(f"</{name}>" for name in reversed(stack) if rng.random() < 0.9)


def disorder(text, rng):
    """A made-up translation: words dropped, doubled and moved, attention at random."""
    source = tokens_of(text)
    target = [token for token in source for _ in range(rng.choice([0, 1, 1, 1, 2]))]
    target += ["▁<ph_7>"] * (rng.random() < 0.1)
    if rng.random() < 0.7:
        rng.shuffle(target)
    weights = np.random.default_rng(rng.randrange(10**6)).random((len(target) + 1, len(source) + 1))
    text = "".join(target).replace("▁", " ").strip()
    sides = {"tokens": (*target, "</s>"), "source_tokens": (*source, "</s>")}
    return Translation(text, 0.0, **sides, alignment=weights if rng.random() < 0.9 else None)


TAG = re.compile(r"<!--.*?-->|</?[A-Za-z][^<>]*>")
ITEM = re.compile(r"http://a\.b/c\?d=1|me@x\.org|\{name\}|%s|%1\$d|www\.x\.de")


def tree(text):
    """The parents of all tags that have an end, by their text; tags without one are left out."""
    tags, stack, pairs = TAG.findall(text), [], {}
    for position, tag in enumerate(tags):
        name = re.match(r"</?(\w*)", tag)
        if tag.startswith("</") and name[1] in [element for _, element in stack]:
            while True:
                opened, open_name = stack.pop()
                if open_name == name[1]:
                    pairs[opened] = position
                    break
        elif not tag.startswith(("</", "<!", "<br")):
            stack.append((position, name[1]))
    return {
        tags[start]: [
            tags[outer] for outer, stop in sorted(pairs.items()) if outer < start and stop > end
        ]
        for start, end in pairs.items()
    }


def contents(text):
    """The text of each element without its tags and items, by its tag."""
    parents, inside = tree(text), {}
    for begin in parents:
        name = re.match(r"<(\w+)", begin)[1]
        rest = text.partition(begin)[2]
        depth, end = 1, 0
        for match in re.finditer(rf"<(/?){name}\b[^>]*>", rest):
            depth += -1 if match[1] else 1
            if not depth:
                end = match.start()
                break
        inside[begin] = re.sub(r"\s", "", ITEM.sub("", TAG.sub("", rest[:end])))
    return inside


def test_every_tag_and_item_of_ten_thousand_sources_is_there_once_and_nested_as_before():
    rng = random.Random(0)
    for _ in range(10_000):
        source = random_markup(rng)
        placeholders = rng.choice([Placeholders(), Placeholders(2), EIGHT])
        assert count_blocks(source) >= len(protect(source, "html", placeholders))
        restored, is_rich = "", True
        for protected in protect(source, "html", placeholders):
            assert protected.text.count("<ph_") <= placeholders.size
            assert not TAG.search(re.sub(r"<ph_\d+>", "", protected.text.replace("<b>", "")))
            translation = disorder(protected.text, rng)
            restored += restore(translation, protected).text
            is_rich &= len(re.findall(r"\w", re.sub(r"<ph_\d>", "", translation.text))) > 9
        for pattern in (TAG, ITEM):
            counts = collections.Counter(pattern.findall(source))
            assert collections.Counter(pattern.findall(restored)) == counts, (source, restored)
        if is_rich:  # An element that had text has some again.
            texts = contents(restored)
            for begin, text in contents(source).items():
                assert not text or texts[begin], (source, restored)
        whole = tree(source)
        if len(whole) == len(re.findall(r"<\w id", source)) == source.count("</"):
            assert tree(restored) == whole, (source, restored)
        # What is left is text, with its signs escaped.
        assert not re.search("[<>]", TAG.sub("", restored)), (source, restored)


NEIGHBOURS = "&nbsp; &quot; &lt; &gt; &amp; &#40; &rdquo; &#x2003; ( ) .".split()
LITERALS = ["http://a.b/c?d=1&amp;e=2", "me@x.org", "{name}", "%s", "&lt;ph_1&gt;"]


def test_items_beside_character_references_are_no_more_and_no_less_than_they_are():
    for before, item, after in itertools.product(NEIGHBOURS, LITERALS, NEIGHBOURS):
        # These may be a part of an address or a URL.
        before += "&nbsp;" * (before == ".")
        after = "&nbsp;" * (after in ("&amp;", "&#40;", "&rdquo;", "(", ")", ".")) + after
        source = f"x{before}{item}{after}y and {item}"
        (protected,) = protect(source, "html", EIGHT)
        assert protected.literals == [item] * 2, source
        assert re.findall("[xy]", protected.text) == ["x", "y"], source
        tokens = tokens_of(protected.text)
        translation = Translation(protected.text, 0.0, tokens=tokens, source_tokens=tokens)
        translation = html.unescape(restore(translation, protected).text)
        assert translation.split() == html.unescape(source).split(), source


class TokenEngine(SayingEngine):
    """Reads tokens of a real tokenizer, up to a limit; writes each word in upper case.

    A word attends to its tokens, whose places come from SentencePiece itself.
    """

    def __init__(self, tokenizer, limit=512):
        super().__init__(None, Placeholders())
        self.tokenizer, self.limit = tokenizer, limit

    def translate(self, texts, alignment=False, **options):
        return list(map(self.translation, texts))

    def translation(self, text):
        pieces = sentencepiece_pieces(self.tokenizer, text)[: self.limit]
        data, owners = text.encode(), []
        words = [match.span() for match in re.finditer(r"\S+", text)]
        for piece in pieces:
            offset = len(data[: piece.end].decode("utf-8", "ignore")) - 0.5
            owners.append(next((n for n, (a, b) in enumerate(words) if a <= offset < b), None))
        count = max(owner for owner in owners if owner is not None) + 1
        weights = np.zeros((count, len(pieces)))
        for column, owner in enumerate(owners):
            if owner is not None:
                weights[owner, column] = 1
        target = [text[start:stop].upper() for start, stop in words[:count]]
        sides = {"source_tokens": tuple(self.tokenizer.pieces_of(piece.id for piece in pieces))}
        sides["tokens"] = tuple("▁" + word for word in target)
        return Translation(" ".join(target), 0.0, **sides, alignment=weights)


@pytest.mark.parametrize("name", ["tokenizer", "byte_tokenizer"])
def test_tags_enclose_the_right_words_of_any_text(name, request):
    tokenizer = request.getfixturevalue(name)
    words = [f"w{number:02}" for number in range(40)]
    for number in range(20):
        tagged = [*words[:number], f"<b>{words[number]}</b>", *words[number + 1 :]]
        engine = TokenEngine(tokenizer, limit=100)  # The text has more.
        (translation,) = Translator(engine).translate([" ".join(tagged)], markup="html")
        assert f"<b>W{number:02}</b>" in translation.text
        assert "W39" not in translation.text
    for odd in "😀😀😀😀 a\u00adb\u00adc\u00add ﬁﬁﬁ 我有一只狗 ｆｕｌｌ \u200b\u200ba".split(" "):
        source = f"{odd} one <b>two</b> {odd} <i>three</i>"
        (translation,) = Translator(TokenEngine(tokenizer)).translate([source], markup="html")
        assert re.findall(r"<\w>.*?</\w>", translation.text) == ["<b>TWO</b>", "<i>THREE</i>"]


def test_thousands_of_nested_tags_are_nested_as_before():
    source = "<b>" * 3000 + "word" + "</b>" * 3000
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


class SplittingEngine(SayingEngine):
    """Translates sentence by sentence, each with the tag in front of the text."""

    def translate(self, texts, **options):
        translations = []
        for text in texts:
            tag, *sentences = re.split(r" (?=S)", text)
            parts = super().translate([f"{tag} {sentence}" for sentence in sentences], **options)
            translations.append(Translation.joined(parts, False))
        return translations


@pytest.mark.parametrize("end", [" c.", ""])
@pytest.mark.parametrize("token", ["<2de>", ">>2de<<"])
def test_tags_of_a_split_text_with_a_tag_of_the_corpus_do_not_drift(token, end):
    # Without an end, each part has fewer tokens of the target than of the source.
    engine = SplittingEngine(lambda words: in_order(words)[1 : None if end else -1])
    engine.source_tokenizer.tag_tokens = {"2de": token}
    sentences = [f"S{number} a <b>b</b> c." for number in range(9)]
    (translation,) = Translator(engine).translate([" ".join(sentences)], markup="html", tag="2de")
    expected = " ".join(f"S{number} a <b>b</b>{end}" for number in range(9))
    assert translation.text == expected.upper().replace("B>", "b>")


FRAGMENTS = st.sampled_from(
    ["a", "dog", "runs {x}", "<b>big</b>", "<b>two words</b>", "<br>", "end.", "http://a.org/b"]
    + ["<i>cat <u>sat down</u></i>", "<!-- c --> e", "<i>f <p></i>g", "</u>h"]
)


def copied(text, is_aligned=True):
    """A translation that copies a text, without the annotations of its terms."""
    sources, places, is_translation = [], [], False
    for space, piece in re.findall(r"(\s?)(<term_\w+>|(?:(?!<term_)\S)+)", text):
        is_translation = piece == "<term_as>" or (is_translation and piece != "<term_end>")
        if not is_translation and not piece.startswith("<term_"):
            places.append(len(sources))
        sources.append(("▁" if space or not sources else "") + piece)
    tokens = tuple(sources[place] for place in places)
    weights = np.zeros((len(tokens), len(sources)))
    weights[range(len(tokens)), places] = 1
    sides = {"tokens": tokens, "source_tokens": tuple(sources), "alignment": weights}
    written = "".join(tokens).replace("▁", " ").strip()
    return Translation(written, 0.0, **sides if is_aligned else {})


@pytest.mark.parametrize("is_aligned", [True, False])
@given(words=st.lists(FRAGMENTS, min_size=1, max_size=30), size=st.integers(2, 9))
def test_the_parts_of_a_split_text_have_the_tags_of_the_whole_text(is_aligned, words, size):
    def fits(part):
        return len(part.split()) <= size

    for block in protect(" ".join(words), "html", Placeholders(3)):
        parts = [copied(part, is_aligned) for part in split_text(block.text, fits)]
        whole = restore(copied(block.text, is_aligned), block)
        assert restore(Translation.joined(parts), block).text == whole.text


def test_the_parts_of_a_split_text_with_annotated_terms_have_their_tags():
    words = [f"w{number} <b>a{number}</b> <i>c b{number}</i>, {{x}}." for number in range(20)]
    (block,) = protect(" ".join(words), "html", EIGHT)
    terms = Glossary([(f"{letter}{number}", "x y") for number in range(20) for letter in "ab"])
    text_read = annotate(block.text, terms.matches(block.text))
    parts = list(map(copied, split_text(text_read, lambda part: len(part.split()) <= 25)))
    assert len(parts) > 5
    assert restore(Translation.joined(parts), block, text_read).text == " ".join(words)


def test_each_alternative_of_a_split_text_has_its_tags():
    (block,) = protect("<b>One.</b> Two <i>words.</i>", "html", EIGHT)
    parts = [
        dataclasses.replace(
            copied(text), alternatives=(dataclasses.replace(copied(other), score=-1),)
        )
        for text, other in (("One.", "1."), ("Two words.", "2 words."))
    ]
    best = restore(Translation.joined(parts), block)
    assert best.text == "<b>One.</b> Two <i>words.</i>"
    assert [t.text for t in best.alternatives] == ["<b>One.</b> 2 <i>words.</i>"]


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


def test_placeholders_of_a_pair_are_what_both_sides_have_equally_often():
    source = "Ask a@b.org or {x}: <b>5</b> of {x} is %s, 50% more"
    target = "<b>5</b> von {x}: fragen Sie a@b.org oder {x}, %s 50 % c@d.org"
    one, other = with_placeholders(source, target, Placeholders(9))
    symbols = re.findall(r"<ph_\d>", one)
    assert len(set(symbols)) == 6 and sorted(symbols) == sorted(re.findall(r"<ph_\d>", other))
    assert "5" in one and "50% more" in one and "c@d.org" in other
    back = dict(zip(symbols, ["a@b.org", "{x}", "<b>", "</b>", "{x}", "%s"], strict=True))
    assert re.sub(r"<ph_\d>", lambda match: back[match[0]], other) == target
    # An item that one side has more often stays.
    assert with_placeholders("{x} {x}", "{x}", EIGHT) == ("{x} {x}", "{x}")
    # `ß` and an `ä` of two characters, a word with a soft hyphen, and other apostrophes.
    pair = "{größe} {a\u0308} {it's}", "{it’s} {ä} {grö\u00adße}"
    one, other = with_placeholders(*pair, EIGHT)
    assert one.split() == other.split()[::-1] and "{" not in one
    with_numbers = with_placeholders("12 of 13", "13 von 12", Placeholders(9, True))
    assert not re.search(r"1\d", "".join(with_numbers))


TERMS = {"dog": "Köter", "big dog": "Riesenköter", "the snow.": "R&D"}


def obedient(words):
    """Writes annotated translations, the other words as they are."""
    translation, is_in_term = [], False
    for position, word in enumerate(words):
        if word == "<term_begin>" or is_in_term:
            is_in_term = not word.endswith("<term_as>")
        else:
            translation.append((word.replace("<term_end>", ""), position))
    return translation


def test_a_model_of_annotations_reads_terms_with_their_translations(tmp_path):
    engine = SayingEngine(obedient, annotates=True)
    translator = Translator(engine)
    translation = translator.translate(["Dog dogs a big dog"], glossary=TERMS)[0].text
    assert engine.texts == [
        "<term_begin> Dog<term_as> Köter<term_end> dogs a "
        "<term_begin> big dog<term_as> Riesenköter<term_end>"
    ]
    assert translation == "Köter dogs a Riesenköter"
    file = tmp_path / "terms.tsv"
    file.write_text("".join(f"{a}\t{b}\n" for a, b in TERMS.items()), encoding="utf-8")
    source = "The driver&rsquo;s&nbsp; <b>seat</b> is {x}"
    translator.translate([source], markup="html", glossary={"driver's seat": "Sitz"})
    term = "<term_begin> driver’s\u00a0 seat<term_as> Sitz<term_end>"
    assert engine.texts == [f"The {term} is <ph_1>"]
    # Terms are looked for in what the model reads: not in a tag, nor up to a tag alone.
    source = '<a href="dog">See</a> {x} &amp; <i>the big</i> dog at <b>the</b> snow. now'
    translation = translator.translate([source], markup="html", glossary=file)[0].text
    assert engine.texts[0].count("<term_as>") == 2
    words = re.sub("</?[ib]>", "", translation).split()
    assert words == '<a href="dog">See</a> {x} &amp; the Riesenköter at R&amp;D now'.split()
    for tag in ("<i>", "</i>", "<b>", "</b>"):
        assert translation.count(tag) == 1


def test_tags_enclose_annotated_terms_as_they_do_others():
    engine = SayingEngine(lambda words: obedient(words)[:0:-1], annotates=True)
    engine.source_tokenizer.tag_tokens = {"2de": "<2de>"}
    translator = Translator(engine)
    source = "a <b>dog</b> runs {x} <i>big dog</i> there"
    translation = translator.translate([source], tag="2de", markup="html", glossary=TERMS)[0].text
    assert translation == "there <i>Riesenköter</i> {x} runs <b>Köter</b> a"


class SearchingEngine(SayingEngine):
    """Takes phrases, as a run does."""

    capabilities = frozenset({"translate", "align", "phrases"})

    def translate(self, texts, alignment=False, phrases=None, **options):
        self.phrases = phrases
        return super().translate(texts, alignment, **options)


def test_a_search_writes_the_terms_where_a_model_has_no_annotations_or_where_it_shall():
    engine = SearchingEngine(unchanged)
    translator = Translator(engine)
    translations = translator.translate(["Dog  and a big dog", "cat"], glossary=TERMS)
    assert engine.phrases == [["Köter", "Riesenköter"], []]
    assert engine.texts == ["Dog  and a big dog", "cat"] and translations[1].text == "cat"
    source = '<a href="dog">the</a> {x} <i>big</i> dog'
    translation = translator.translate([source], markup="html", glossary=TERMS)[0].text
    assert engine.phrases == [["Riesenköter"]] and translation == source
    engine = SearchingEngine(unchanged, annotates=True)
    Translator(engine).translate(["dog"], glossary=TERMS)
    assert engine.phrases is None and "Köter" in engine.texts[0]
    Translator(engine).translate(["dog"], glossary=TERMS, glossary_by="constraints")
    assert engine.phrases == [["Köter"]] and engine.texts == ["dog"]


@pytest.mark.parametrize(
    ("by", "message"),
    [
        (None, "`glossary` needs a run folder, or a model trained with `data.glossary`"),
        ("constraints", "`glossary_by` needs a run folder: this export can"),
        ("annotations", "`glossary_by: annotations` needs a model trained with `data.glossary`"),
        ("both", "`glossary_by` must be one of constraints, annotations"),
    ],
)
def test_a_glossary_that_an_engine_cannot_keep_is_refused(by, message):
    with pytest.raises(InputError, match=message):
        Translator(SayingEngine(in_order)).translate(["a"], glossary=TERMS, glossary_by=by)
