"""Markup comes back whole and well-formed, whatever a model does to the text between."""

import collections
import html
import itertools
import random
import re
import time
import types

import numpy as np
import pytest

from keras_transformer import Translation, Translator
from keras_transformer.engine import Engine
from keras_transformer.errors import InputError
from keras_transformer.text.markup import protect, restore
from keras_transformer.text.placeholders import Placeholders, with_placeholders

EIGHT = Placeholders(8)


def tokens_of(text):
    words = [part for part in re.split(r"(<ph_\d+>|\s+)", text) if part and not part.isspace()]
    spaced = [text.find(word) == 0 or " " + word in text for word in words]
    return tuple("▁" * space + word for word, space in zip(words, spaced, strict=True))


class FakeEngine(Engine):
    """`say` gives the words of a translation, and for each the place of one of the source."""

    capabilities = frozenset({"translate", "align"})

    def __init__(self, say, placeholders=EIGHT, annotates=False):
        self.say, tokens = say, {"placeholders": placeholders, "annotates_terms": annotates}
        self.source_tokenizer = types.SimpleNamespace(tags=(), tokenize=list, **tokens)

    def translate(self, texts, alignment=False, **options):
        self.texts, translations = texts, []
        for text in texts:
            source = text.split()
            said = self.say(source)
            tokens = tuple("▁" + word for word, _ in said)
            weights = np.zeros((len(said) + 1, len(source) + 1), "float32")
            for row, (_, place) in enumerate(said):
                weights[row, place] = 1
            translation = Translation(
                " ".join(word for word, _ in said),
                0.0,
                tokens=(*tokens, "</s>"),
                source_tokens=(*("▁" + word for word in source), "</s>"),
                alignment=weights if alignment else None,
            )
            translations.append(translation)
        return translations


def unchanged(words):
    return [(word, place) for place, word in enumerate(words)]


def in_order(words):
    return [(word.upper(), place) for word, place in unchanged(words)]


def without_signs(words):
    pairs = [(word.strip("(),.:"), place) for word, place in in_order(words)]
    return [(word, place) for word, place in pairs if word]


def backwards(words):
    return in_order(words)[::-1]


def translated(source, say=in_order, markup="html", placeholders=EIGHT, **options):
    translator = Translator(FakeEngine(say, placeholders))
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
    ],
)
def test_tags_enclose_the_translations_of_the_words_that_they_enclosed(source, say, expected):
    assert translated(source, say) == expected


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
    ]:
        assert translated(source, without_signs, "html", Placeholders()) == expected


def test_markup_needs_an_engine_that_can_do_it():
    class Plain(FakeEngine):
        capabilities = frozenset({"translate"})

    with pytest.raises(
        InputError, match="`markup=html` needs alignments: .* Received: this export"
    ):
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
    return Translation(
        text,
        0.0,
        tokens=(*target, "</s>"),
        source_tokens=(*source, "</s>"),
        alignment=weights if rng.random() < 0.9 else None,
    )


TAG = re.compile(r"<!--.*?-->|</?[A-Za-z][^<>]*>")
ITEM = re.compile(r"http://a\.b/c\?d=1|me@x\.org|\{name\}|%s|%1\$d|www\.x\.de")


def tree(text):
    """The parents of all tags that have an end, by their text; tags without one are left out."""
    tags, stack, pairs = TAG.findall(text), [], {}
    for place, tag in enumerate(tags):
        name = re.match(r"</?(\w*)", tag)
        if tag.startswith("</") and name[1] in [element for _, element in stack]:
            while True:
                opened, open_name = stack.pop()
                if open_name == name[1]:
                    pairs[opened] = place
                    break
        elif not tag.startswith(("</", "<!", "<br")):
            stack.append((place, name[1]))
    return {
        tags[start]: [
            tags[outer] for outer, stop in sorted(pairs.items()) if outer < start and stop > end
        ]
        for start, end in pairs.items()
    }


def test_every_tag_and_item_of_ten_thousand_sources_is_there_once_and_nested_as_before():
    rng = random.Random(0)
    for _ in range(10_000):
        source = random_markup(rng)
        placeholders = rng.choice([Placeholders(), Placeholders(2), EIGHT])
        protected = protect(source, "html", placeholders)
        assert protected.text.count("<ph_") <= placeholders.size
        assert not TAG.search(re.sub(r"<ph_\d+>", "", protected.text.replace("<b>", "")))
        restored = restore(disorder(protected.text, rng), protected).text
        for pattern in (TAG, ITEM):
            counts = collections.Counter(pattern.findall(source))
            assert collections.Counter(pattern.findall(restored)) == counts, (source, restored)
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
        protected = protect(source, "html", EIGHT)
        assert protected.literals == [item] * 2, source
        assert re.findall("[xy]", protected.text) == ["x", "y"], source
        tokens = tokens_of(protected.text)
        translation = Translation(protected.text, 0.0, tokens=tokens, source_tokens=tokens)
        translation = html.unescape(restore(translation, protected).text)
        assert translation.split() == html.unescape(source).split(), source


def test_thousands_of_nested_tags_are_nested_as_before():
    source = "<b>" * 3000 + "word" + "</b>" * 3000
    assert translated(source) == source.replace("word", "WORD")


@pytest.mark.parametrize("text", ["%" + "0" * 8191, "a." * 4096, "http://" * 1170, "{" * 8192])
def test_a_text_is_read_once_for_its_items(text):
    begin = time.process_time()
    protect(text, "placeholders", Placeholders(8, True))
    # Read again from each of its characters, it would take from half a second to five.
    assert time.process_time() - begin < 0.2


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("100 %d, 20\u00a0%s", []),
        ("20 % der Leute, 5%", []),
        ("%d of %1$s, %-5.2f: %(name)s", ["%d", "%1$s", "%-5.2f", "%(name)s"]),
        ("共%d个，%s的", ["%d", "%s"]),
        ("请写信给a@b.org。", ["a@b.org"]),
        ("%dort", []),
        ("他买了3本书，a4 4b 12:30, 1999", ["3", "12:30", "1999"]),
    ],
)
def test_a_field_is_no_percentage_and_may_stand_beside_words_without_spaces(text, items):
    placeholders = Placeholders(8, numbers="3" in text)
    assert protect(text, "placeholders", placeholders).literals == items


@pytest.mark.parametrize(
    "source", ["a <ph_1> b", "a &lt;ph_1&gt; b", "&lt;ph_<b>1</b>&gt; b", "<b>&lt;ph_1</b>> b"]
)
@pytest.mark.parametrize("item", ["", "{x} "])
def test_what_looks_like_a_placeholder_in_a_source_is_none(source, item):
    protected = protect(item + source, "html", EIGHT)
    symbols = re.findall(r"<ph_\d+>", protected.text)
    assert symbols == [f"<ph_{number + 1}>" for number in range(len(protected.literals))]
    translation = translated(item + source, unchanged)
    assert translation.startswith(item)
    assert sorted(re.findall("</?[bi]>", translation)) == sorted(re.findall("</?[bi]>", source))
    text = [html.unescape(re.sub("</?[bi]>", "", side)) for side in (translation, item + source)]
    # A name that tags interrupt is written with another sign.
    assert re.sub("[-_ ]", "", text[0]) == re.sub("[-_ ]", "", text[1])


class SplittingEngine(FakeEngine):
    """Translates sentence by sentence, each with the tag in front of the text."""

    def translate(self, texts, **options):
        translations = []
        for text in texts:
            tag, *sentences = re.split(r" (?=S)", text)
            parts = super().translate([f"{tag} {sentence}" for sentence in sentences], **options)
            translations.append(Translation.joined(parts, False))
        return translations


@pytest.mark.parametrize("end", [" c.", ""])
def test_tags_of_a_split_text_with_a_tag_of_the_corpus_do_not_drift(end):
    # Without an end, each part has fewer tokens of the target than of the source.
    engine = SplittingEngine(lambda words: in_order(words)[1 : None if end else -1])
    engine.source_tokenizer.tags = ("2de",)
    sentences = [f"S{number} a <b>b</b> c." for number in range(9)]
    (translation,) = Translator(engine).translate([" ".join(sentences)], markup="html", tag="2de")
    expected = " ".join(f"S{number} a <b>b</b>{end}" for number in range(9))
    assert translation.text == expected.upper().replace("B>", "b>")


def test_a_tag_encloses_a_word_where_words_have_no_spaces():
    source = "我有一只<b>狗</b>。"
    protected = protect(source, "html", EIGHT)
    same = dict(tokens=tuple(protected.text), source_tokens=tuple(protected.text))
    translation = Translation(protected.text, 0.0, alignment=np.eye(len(protected.text)), **same)
    assert restore(translation, protected).text == source


def test_a_tag_cuts_no_word_between_a_letter_and_its_marks():
    protected = protect("<i>a</i> b", "html", EIGHT)
    translation = Translation(
        "घरों है",
        0.0,
        tokens=("▁घर", "ों", "▁है"),
        source_tokens=("▁a", "▁b"),
        alignment=np.array([[1, 0], [0.4, 0.6], [0, 1]]),
    )
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
    with_numbers = with_placeholders("12 of 13", "13 von 12", Placeholders(9, True))
    assert not re.search(r"1\d", "".join(with_numbers))


TERMS = {"dog": "Köter", "big dog": "Riesenköter", "the snow.": "R&D"}


def obedient(words):
    """Writes annotated translations, the other words as they are."""
    translation, is_in_term = [], False
    for place, word in enumerate(words):
        if word == "<term_begin>" or is_in_term:
            is_in_term = not word.endswith("<term_as>")
        else:
            translation.append((word.replace("<term_end>", ""), place))
    return translation


def test_a_model_of_annotations_reads_terms_with_their_translations(tmp_path):
    engine = FakeEngine(obedient, annotates=True)
    translator = Translator(engine)
    translation = translator.translate(["Dog dogs a big dog"], glossary=TERMS)[0].text
    assert engine.texts == [
        "<term_begin> Dog<term_as> Köter<term_end> dogs a "
        "<term_begin> big dog<term_as> Riesenköter<term_end>"
    ]
    assert translation == "Köter dogs a Riesenköter"
    file = tmp_path / "terms.tsv"
    file.write_text("".join(f"{a}\t{b}\n" for a, b in TERMS.items()), encoding="utf-8")
    # Terms are looked for in what the model reads: not in a tag, nor up to a tag alone.
    source = '<a href="dog">See</a> {x} &amp; <i>the big</i> dog at <b>the</b> snow. now'
    translation = translator.translate([source], markup="html", glossary=file)[0].text
    assert engine.texts[0].count("<term_as>") == 2
    words = re.sub("</?[ib]>", "", translation).split()
    assert words == '<a href="dog">See</a> {x} &amp; the Riesenköter at R&amp;D now'.split()
    for tag in ("<i>", "</i>", "<b>", "</b>"):
        assert translation.count(tag) == 1


def test_tags_enclose_annotated_terms_as_they_do_others():
    engine = FakeEngine(lambda words: obedient(words)[:0:-1], annotates=True)
    engine.source_tokenizer.tags = ("2de",)
    translator = Translator(engine)
    source = "a <b>dog</b> runs {x} <i>big dog</i> there"
    translation = translator.translate([source], tag="2de", markup="html", glossary=TERMS)[0].text
    assert translation == "there <i>Riesenköter</i> {x} runs <b>Köter</b> a"


class SearchingEngine(FakeEngine):
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
        Translator(FakeEngine(in_order)).translate(["a"], glossary=TERMS, glossary_by=by)
