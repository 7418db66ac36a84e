"""Pages in HTML: a page is one text, and all except its text stays."""

import pytest
from fakes import FakeEngine
from markup_engines import SayingEngine, in_order, unchanged

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.extras.documents import html, translate_document
from keras_transformer.extras.markup import protecting
from keras_transformer.text.elements import find_tags
from keras_transformer.text.languages import Languages

PAGE = """<!DOCTYPE html>
<!-- two dogs -->
<html lang="en" xml:lang='en'>
<head><meta charset="iso-8859-1"><title>Two dogs</title>
<script>if (a < b) { alert("two dogs"); }</script>
<style>p { color: red }</style>
</head>
<body class="x"
  id="b">
<p>Two <b>dogs</b> play &amp; bark.</p>\r
<p translate="no">Do not</p>
<p>caf\xe9</p>
</body></html>
"""


def translated(page, say=in_order, codec="utf-8", **options):
    engine = SayingEngine(say)
    engine.languages = Languages(directions=(("en", "en"),))
    translator = Translator(engine)
    return translate_document(translator, page.encode(codec), ".html", **options).decode(codec)


def test_a_page_of_words_that_are_copied_is_the_same_bytes():
    assert translated(PAGE, unchanged, "latin-1") == PAGE


def test_the_tags_of_a_page_and_of_its_translation_are_found_once(monkeypatch):
    sources, page = [], "<html lang=en><meta charset=utf-8><p>Two dogs</p>"

    def noting(source, language=None):
        sources.append(source)
        return find_tags(source, language)

    for module in (html, protecting):
        monkeypatch.setattr(module, "find_tags", noting)
    assert translated(page) == page.replace("Two dogs", "TWO DOGS")
    assert sources == [page, page.replace("Two dogs", "TWO DOGS")]


def test_all_except_the_text_stays():
    expected = PAGE
    for text in ("Two dogs</title>", "Two <b>dogs</b> play &amp; bark.", "caf\xe9</p>"):
        new_text = text.upper().replace("B>", "b>").replace("AMP", "amp")
        for name in ("TITLE", "P>"):
            new_text = new_text.replace(name, name.lower())
        expected = expected.replace(text, new_text)
    assert translated(PAGE, codec="latin-1") == expected


class FromEnglishToPortuguese(SayingEngine):
    def __init__(self, pairs):
        super().__init__(unchanged)
        self.languages = Languages(directions=tuple(pairs))


@pytest.mark.parametrize(
    ("pairs", "to", "code"),
    [
        ([("en", "pt")], None, "pt"),
        ([("en", "pt"), ("de", "pt")], None, "pt"),
        ([("en", "pt"), ("en", "de")], "de_DE", "de"),
        ([("eng_Latn", "por_Latn")], None, "pt"),
        # An unknown language is none, and not the source's.
        ([("en", "pt"), ("en", "de")], None, ""),
        ([("en", "of pirates")], None, ""),
        ([], None, ""),
    ],
)
def test_the_page_names_the_language_of_the_translation_and_no_other(pairs, to, code):
    translator = Translator(FromEnglishToPortuguese(pairs))
    options = {} if to is None else {"target_language": to}
    page = translate_document(translator, PAGE.encode("latin-1"), ".html", **options)
    expected = PAGE.replace('"en"', f'"{code}"').replace("'en'", f"'{code}'")
    assert page.decode("latin-1") == expected


DIRECTIONS = [
    # The target is written from right to left.
    (("en", "ar"), "<html lang=en>", '<html dir="rtl" lang="ar">'),
    (("en", "ar"), '<HTML DIR="LTR"><p dir=ltr>', '<HTML DIR="rtl"><p dir="rtl">'),
    (("en", "he"), "<html dir=rtl><p dir=rtl><p dir=ltr>", None),
    # The source is.
    (
        ("ar", "en"),
        '<html dir="rtl"><p dir=rtl><p dir=ltr>',
        '<html dir="ltr"><p dir="ltr"><p dir=ltr>',
    ),
    (("ar", "en"), "<html><body dir=rtl>", '<html><body dir="ltr">'),
    (("ar", "fa"), "<html dir=rtl><p dir=rtl><p dir=ltr>", None),
    (("en", "pt"), "<html dir=ltr><p dir=rtl><p dir=auto>", None),
    (("en", "of pirates"), "<html dir=ltr><p dir=rtl>", None),
    (("en", "ar"), "<p>a</p>", None),
    (("en", "ar"), "<html dir=auto><p dir translate=no><code dir=ltr>a</code>", None),
]


BRAZIL = ("en", "pt-BR")
DIRECTIONS += [
    # Elements in the language of the page name the language of the translation.
    (
        BRAZIL,
        "<html lang=en-US><p lang=\"en\" xml:lang='EN-gb'><i lang=fr>b</i><b lang=''>c</b>"
        "<code lang=en>d</code><input lang=en><i translate=no lang=en>e</i><i lang>f</i>",
        "<html lang=\"pt-BR\"><p lang=\"pt-BR\" xml:lang='pt-BR'><i lang=fr>b</i><b lang=''>c</b>"
        '<code lang=en>d</code><input lang="pt-BR"><i translate=no lang=en>e</i><i lang>f</i>',
    ),
    (BRAZIL, "<html lang=de><p lang=fr>", '<html lang="pt-BR"><p lang=fr>'),
    (BRAZIL, "<html lang><p>", None),
    # A part of a page does not name its language.
    (BRAZIL, '<p lang="en">a</p><p lang="fr">b</p>', '<p lang="pt-BR">a</p><p lang="fr">b</p>'),
    # Only attributes of the language name another one.
    (
        BRAZIL,
        """<HTML data-lang="en" class="a lang=en" id='lang="en"' LANG=en hreflang="en"><p>""",
        """<HTML data-lang="en" class="a lang=en" id='lang="en"' LANG="pt-BR" hreflang="en"><p>""",
    ),
]


@pytest.mark.parametrize(("pair", "page", "expected"), DIRECTIONS)
@pytest.mark.filterwarnings("ignore:.*nothing was found")
def test_language_and_direction_of_text_are_those_of_the_translation(pair, page, expected):
    translator = Translator(FromEnglishToPortuguese([pair]))
    assert translate_document(translator, page.encode(), ".html").decode() == (expected or page)


def test_an_engine_without_alignments_cannot_place_the_tags():
    with pytest.raises(InputError, match=r"^a\.html: `markup=html` needs alignments"):
        translate_document(Translator(FakeEngine()), b"<p>a</p>", ".html", name="a.html")
