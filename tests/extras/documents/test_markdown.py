"""Markdown: only texts change, and each mark comes back once."""

import re
import sys
import time

import pytest
from fakes import FakeEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from markup_engines import SayingEngine, backwards, in_order, unchanged

from keras_transformer import Translation, Translator
from keras_transformer.base.errors import InputError
from keras_transformer.extras.documents import translate_document
from keras_transformer.extras.documents.document import Settings
from keras_transformer.extras.documents.markdown import Markdown
from keras_transformer.text.symbols import Placeholders

DOCUMENT = """\
---
title: Two dogs
---

# Two *dogs*

> quote one
> **two *three*** end `code` [link *of* me](http://a.b "title") ![alt text](i.png)

- item one
  goes on
  1. and [named][ref] or [named][]
- [x] done

| a | b \\| c | `x\\|y` and |
|---|:---:|---|
| x **y** | z | |

[ref]: http://x.y "a title"
[named]: <http://x.y>
[^note]: A footnote.

hard{spaces}
break and\\
more[^note] <b>HTML</b> <!-- a comment --> <http://a.b> ~~gone~~

```python
code = "two"
```

    more code

Setext *head*
of two lines
=======

<div class="x">
a block of HTML
</div>

***
""".replace("{spaces}", "  ")
UPPER = DOCUMENT
for _text in (
    "Two *dogs*", "quote one", "two *three*", " end ", "link *of* me", "alt text", "item one",
    "goes on", "and [named][ref]", "done", "| a |", "b \\| c", " and |", "| x **y**", "| z |",
    "A footnote.", "hard  ", "break and", "more[", ">HTML<", "gone", "Setext *head*",
    "of two lines",
):  # fmt: skip
    UPPER = UPPER.replace(_text, _text.upper())
UPPER = UPPER.replace("[NAMED][REF] or [named][]", "[NAMED][ref] OR [NAMED][named]")
UPPER = UPPER.replace("title: TWO *DOGS*", "title: Two dogs")


def translated(text, engine=None, **options):
    translator = Translator(engine or SayingEngine(in_order))
    return translate_document(translator, text.encode(), ".md", **options).decode()


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_only_texts_change(line_end):
    source, expected = (text.replace("\n", line_end) for text in (DOCUMENT, UPPER))
    assert translated(source, SayingEngine(unchanged)) == source
    assert translated(source, FakeEngine()) == expected  # without alignments


def test_marks_are_around_the_words_that_attend_to_theirs():
    text = "Two **dogs** [play *here*](http://a.b) now"
    assert translated(text, SayingEngine(backwards, Placeholders())) == (
        "NOW [*HERE* PLAY](http://a.b) **DOGS** TWO"
    )


@pytest.mark.parametrize(
    ("placeholders", "text"),
    [
        (Placeholders(), "in X1, X2 and X3 or X4 X5"),
        (Placeholders(8), "in <ph_1>, <ph_2><ph_3> and <ph_4><ph_5> <ph_6> or <ph_7> <ph_8>"),
    ],
)
def test_code_and_addresses_are_words_of_the_sentence(placeholders, text):
    engine = SayingEngine(in_order, placeholders)
    source = (
        "in `<div>`, `two dogs`[^1] and <http://a.b>![](a.png) :dog: or <kbd>Ctrl</kbd> {{#if a}}"
    )
    result = translated(source, engine)
    assert [" ".join(read.split()) for read in engine.texts] == [text]
    if not placeholders.size:  # The engine would write placeholders in upper case.
        assert result == source.replace("in", "IN").replace("and", "AND").replace("or", "OR")


MARKS = ["*{}*", "**{}**", "~~{}~~", '[{}](http://a.b/c "t")', "![{}](a.png)"]
COPIES = ["`code of`", "<http://a.b>", "[^1]", ""]
WORDS = st.lists(st.sampled_from(["two", "dogs", "a,", "x-y", "ä"]), min_size=1, max_size=4)


@st.composite
def inlines(draw):
    """Draws an inline text, and what it is in upper case."""
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        words = " ".join(draw(WORDS)).rstrip(",")
        mark = draw(st.sampled_from([*MARKS, None]))
        pair = words, words.upper()
        parts.append(pair if mark is None else tuple(map(mark.format, pair)))
        parts.append((draw(st.sampled_from(COPIES)),) * 2)
    return tuple(" ".join(filter(None, side)) for side in zip(*parts, strict=True))


BLOCKS = ["{}", "# {}", "> {}\n> {}", "- {}\n  {}", "1. {}", "| {} | {} |\n|-|-|\n| {} | {} |"]
BLOCKS += ["```\n{0}\n```", "<div>{0}\n</div>", "---", "{}\n---"]


@st.composite
def documents(draw):
    blocks = []
    for _ in range(draw(st.integers(1, 4))):
        form = draw(st.sampled_from(BLOCKS))
        pairs = [draw(inlines()) for _ in range(4)]
        sources, uppers = zip(*pairs, strict=True)
        is_code = "{0}" in form
        blocks.append((form.format(*sources), form.format(*(sources if is_code else uppers))))
    return tuple("\n\n".join(side) + "\n" for side in zip(*blocks, strict=True))


@settings(max_examples=25)
@given(documents())
def test_any_document_keeps_its_marks_and_a_copy_is_the_same(document):
    source, expected = document
    assert translated(source, SayingEngine(unchanged)) == source
    assert translated(source, FakeEngine()) == expected


@settings(max_examples=25)
@given(documents())
def test_words_in_another_order_lose_no_mark(document):
    source, _ = document
    result = translated(source, SayingEngine(backwards, Placeholders()))
    signs = [sorted(re.findall(r"[^\w\s]", text)) for text in (source, result)]
    assert signs[0] == signs[1]


class Saying(FakeEngine):
    """Has a translation for some texts."""

    def translate(self, texts, **options):
        return [Translation(self.translations.get(text, text), 0.0) for text in texts]


GARDEN = "two dogs play in the garden with a ball"
SIGNS = [
    # Signs that would be marks are escaped, and others are not.
    ("one two", {"one two": "*eins* zwei"}, r"\*eins\* zwei"),
    ("one two", {"one two": "2 * 3 = a_b"}, "2 * 3 = a_b"),
    ("one two", {"one two": "1986. Jahr"}, r"1986\. Jahr"),
    ("one two", {"one two": "- eins"}, r"\- eins"),
    ("one two", {"one two": "# eins"}, r"\# eins"),
    ("one two", {"one two": "<b> & &amp;"}, r"\<b\> \& \&amp;"),
    ("| one two |\n|-|", {"one two": "a | b"}, "| a \\| b |\n|-|"),
    ("## one two", {"one two": "C #"}, "## C \\#"),
    # Signs of a text and of an image in it are no marks together.
    ("one ![two](a)", {"one": "eins `", "two": "zwei `"}, "eins \\` ![zwei `](a)"),
    # A translation that looks like the address of a link names no link.
    (
        "one\n\nsee [dog]\n",
        {"one": "[dog]: x", "see [dog]": "siehe [dog]"},
        "\\[dog\\]: x\n\nsiehe [dog]\n",
    ),
    # White space of a translation is single spaces.
    ("one two", {"one two": " eins\n zwei "}, "eins zwei"),
    # Lines of a paragraph end near the same places.
    (
        "> two dogs play in\n> the garden with\n> a ball\n",
        {GARDEN: "zwei Hunde spielen im großen Garten mit einem roten Ball"},
        "> zwei Hunde spielen im\n> großen Garten mit einem\n> roten Ball\n",
    ),
]


@pytest.mark.parametrize(("source", "translations", "expected"), SIGNS)
def test_a_translation_has_the_lines_of_its_source_and_no_marks_of_its_own(
    source, translations, expected
):
    assert translated(source, Saying(translations=translations)) == expected


def test_a_copy_of_the_words_is_the_source_wherever_its_marks_are():
    document = Markdown("<del\nclass=a>\n*two* dogs\n</del>", Settings())
    copy = Translation("<x2>two dogs</x2><x0></x0>", 0.0)
    assert document.written([copy]) == "<del\nclass=a>\n*two* dogs\n</del>"


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        # CommonMark: no emphasis ends between a sign and a letter, and none begins there.
        ("**note:** read", "<x0>注意：</x0>阅读", "**注意：** 阅读"),
        ("read *(this)* now", "阅读<x0>（这）</x0>吧", "阅读 *（这）* 吧"),
        ("***note:*** read", "<x0><x1>注意：</x1></x0>阅读", "***注意：*** 阅读"),
        ("~~[old](x)~~ word", "<x0><x1>旧</x1></x0>词", "~~[旧](x)~~ 词"),
        # With `_` neither between letters.
        ("_note_ read", "<x0>注意</x0>阅读", "_注意_ 阅读"),
        # Everywhere else as the translation has it.
        ("**note** read", "<x0>注意</x0>阅读", "**注意**阅读"),
        ("**note:** read", "<x0>注意：</x0>（阅读）", "**注意：**（阅读）"),
    ],
)
def test_a_space_is_beside_emphasis_that_would_be_signs_without_it(source, translation, expected):
    document = Markdown(source, Settings())
    assert document.written([Translation(translation, 0.0)]) == expected


def test_a_translation_without_a_footnote_of_its_source_is_left_and_counted():
    document = Markdown("one[^1] two\n\nthree\n", Settings())
    with pytest.warns(UserWarning, match="1 of 2 texts stay as they were"):
        written = document.written([Translation(text, 0.0) for text in ("eins zwei", "drei")])
    assert written == "one[^1] two\n\ndrei\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # Tags of HTML that have no other end, or are not nested in the marks.
        ("*two </b> dogs* play", "*TWO </b> DOGS* PLAY"),
        ("<i>two *dogs</i> play* here", "<i>TWO *DOGS</i> PLAY* HERE"),
        # The text of an image that also names its address.
        (
            "two ![dog][] ![dog] ![big dog][dog]\n\n[dog]: a.png",
            "TWO ![dog][] ![dog] ![BIG DOG][dog]\n\n[dog]: a.png",
        ),
    ],
)
def test_what_cannot_be_translated_stays_and_the_words_around_it_do_not(source, expected):
    assert translated(source, SayingEngine(in_order, Placeholders())) == expected


DIALECTS = {
    "a footnote of an address or of one word": (
        "two[^1] dogs[^n]\n\n[^1]: https://a.b/c\n[^n]: dogs\n",
        "TWO[^1] DOGS[^n]\n\n[^1]: https://a.b/c\n[^n]: DOGS\n",
    ),
    "footnotes in several lines and paragraphs": (
        "[^1]: two\n[^2]: dogs\n    play\n\n       in\n\n        code\n\nsnow\n\n    [^3]: code\n",
        "[^1]: TWO\n[^2]: DOGS\n    PLAY\n\n       IN\n\n        code\n\nSNOW\n\n    [^3]: code\n",
    ),
    "an alert": (
        "> [!NOTE]\n> two dogs\n\n> [!warning]- a title\n> text\n\n> [!TIP]\n> - dogs\n",
        "> [!NOTE]\n> TWO DOGS\n\n> [!warning]- A TITLE\n> TEXT\n\n> [!TIP]\n> - DOGS\n",
    ),
    "elements of HTML that are not translated": (
        'see <kbd>Ctrl<br>c</kbd>, *<code>a **b**</code>* or <span translate="no">x [y](z)</span>',
        'SEE <kbd>Ctrl<br>c</kbd>, *<code>a **b**</code>* OR <span translate="no">x [y](z)</span>',
    ),
    "elements of HTML that are translated": (
        '<b translate="yes">two<br>dogs</b> <kbd>play <i>in</b> <code translate="yes">snow</code>',
        '<b translate="yes">TWO<br>DOGS</b> <kbd>PLAY <i>IN</b> <code translate="yes">SNOW</code>',
    ),
    "blocks in elements of HTML that are not translated": (
        'two\n\n<div translate="no">\n\n# keep *me*\n\n<div>\n\nme\n\n</div>\n\n- me\n\n</div>\n\n'
        '<div>\n\ndogs\n\n</div>\n\n<div class="notranslate">\n\nme\n',
        'TWO\n\n<div translate="no">\n\n# keep *me*\n\n<div>\n\nme\n\n</div>\n\n- me\n\n</div>\n\n'
        '<div>\n\nDOGS\n\n</div>\n\n<div class="notranslate">\n\nme\n',
    ),
    "a list continued after tabs": (
        "- two\n\tdogs\n\n\tplay\n\tin\n\n1.\tthe\n\t* snow  \n\t\tnow\n>\tand\n>\tthen\n",
        "- TWO\n\tDOGS\n\n\tPLAY\n\tIN\n\n1.\tTHE\n\t* SNOW  \n\t\tNOW\n>\tAND\n>\tTHEN\n",
    ),
    "front matter that ends with points": ("---\na: b\n...\ntwo", "---\na: b\n...\nTWO"),
    "containers of colons": (
        ":::: note Title\n::: {.x}\ntwo\n:::\n::::\n",
        ":::: note Title\n::: {.x}\nTWO\n:::\n::::\n",
    ),
    "boxes whose content is indented": (
        '!!! note "T"\n    two\n\n    - dogs\n\n        play\n\n=== "C"\n\n    in\nthe\n\nnow\n',
        '!!! note "T"\n    TWO\n\n    - DOGS\n\n        PLAY\n\n=== "C"\n\n    IN\nTHE\n\nNOW\n',
    ),
    "attributes and commands": (
        "two\n{: .x a='b'}\n\n# *dogs*{: .y} play {#id}\n{% if a %}\nin\n{% endif %}\n[[_TOC_]]\n",
        "TWO\n{: .x a='b'}\n\n# *DOGS*{: .y} PLAY {#id}\n{% if a %}\nIN\n{% endif %}\n[[_TOC_]]\n",
    ),
    "emoji": ("two :dog: at 12:30:45, a:b:c :+1:", "TWO :dog: AT 12:30:45, A:B:C :+1:"),
    "lines of a quotation without its sign": ("> two\ndogs\n===\n", "> TWO\nDOGS\n===\n"),
    "a sign before a link": ("\\![two]\n\n[two]: /x", "\\![TWO][two]\n\n[two]: /x"),
    # The parser replaces this character.
    "a character that no text has": (
        "| two | a\0 |\n|-|-|\n| dogs | x |", "| TWO | A\ufffd |\n|-|-|\n| DOGS | X |",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DIALECTS)
def test_what_other_dialects_add_is_translated_or_stays(name, recwarn):
    source, expected = DIALECTS[name]
    assert translated(source, SayingEngine(unchanged, Placeholders())) == source
    assert translated(source, FakeEngine()) == expected
    assert not recwarn.list


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (
            "[see](#two-dogs) [it](<#two-dogs-1> 't')",
            "[SEE](#zwei-hunde) [IT](<#zwei-hunde-1> 't')",
        ),
        ("[see]\n\n[see]: #two-dogs", "[SEE][see]\n\n[see]: #zwei-hunde"),
        ('<a href="#two-dogs">see</a>', '<a href="#zwei-hunde">SEE</a>'),
        ('<p><a href="#two-dogs">see</a></p>', '<p><a href="#zwei-hunde">see</a></p>'),
        # The name of a text that stays, another page's, and code.
        ("[see](#42) [it](#two)", "[SEE](#42) [IT](#two)"),
        ("[see](a.md#two-dogs) `[x](#two-dogs)`", "[SEE](a.md#two-dogs) `[x](#two-dogs)`"),
        ("```\n[x](#two-dogs)\n```", "```\n[x](#two-dogs)\n```"),
        # The name of a title without marks and images, and in other scripts.
        ("[see](#-big) [it](#42)", "[SEE](#-groß) [IT](#42)"),
        ("[see](#use-go_x-now) [it](#%C3%A9t%C3%A9)", "[SEE](#nutze-go_x-jetzt) [IT](#summer)"),
    ],
)
def test_links_to_headings_have_the_names_of_their_translations(link, expected):
    headings = "# Two *dogs*!\n\n{}\n\nTwo dogs!\n===\n\n## Use `go_x` now\n\n# été\n\n# 42\n"
    headings += "\n# ![](a.png) big\n"
    translations = {
        "Two dogs!": "zwei Hunde?", "Use X1 now": "Nutze X1 jetzt", "été": "summer",
        "big": "groß", "see": "SEE", "see X1": "SEE X1", "it": "IT", "see it": "SEE IT",
    }  # fmt: skip
    result = translated(headings.format(link), Saying(translations=translations))
    assert result.split("\n\n", 1)[1].startswith(expected + "\n\nzwei Hunde?\n===")


# fmt: off
HOSTILE = [
    "[^", "[^1] ", "[^1]: ", "\n[^1]: a", "{:", "{%", ":a", ":::\n", "\n!!! a\n", "=== a ",
    "\n...\n", "<kbd>", "</kbd><kbd>", "<a href=#", "[a](#a) ", "](#", "\n# a\n", "\n[a]: #a\n",
    "<div>\n\n", "*a:*a", "**", "~~a~~", "a\n", "a  \n", "|\0|a\n|-|-|\n", "|",
    "\\", "![", "[!A]\n> ", "`",
]
# fmt: on


@pytest.mark.parametrize("unit", HOSTILE)
@pytest.mark.filterwarnings("ignore:.*stay as they were")
def test_a_long_hostile_text_takes_time_in_proportion(unit):
    def seconds(count):
        start = time.thread_time()
        document = Markdown("---\na\n" + unit * count, Settings())
        document.written([Translation(f"{text} b", 0.0) for text in document.texts])
        return time.thread_time() - start

    # A cost that grows with the square takes 64 times as long.
    assert any(seconds(800) < max(24 * seconds(100), 0.05) for _ in range(3))


def test_front_matter_of_toml_stays_and_a_rule_is_none():
    text = "+++\ntitle = 'two'\n+++\ntwo\n"
    assert translated(text) == text.replace("\ntwo", "\nTWO")
    assert translated("---\n\ntwo\n\n---\n") == "---\n\nTWO\n\n---\n"


def test_the_missing_parser_is_one_line_with_the_command_that_installs_it(monkeypatch):
    from keras_transformer.extras.documents import markdown_parser

    monkeypatch.setitem(sys.modules, "markdown_it", None)
    markdown_parser.parser.cache_clear()
    with pytest.raises(InputError, match=r"\(package markdown_it\): pip install"):
        translated("two")
    markdown_parser.parser.cache_clear()
