"""Translates files: whole or not at all, never over themselves."""

import os
import re

import pytest
from fakes import FakeEngine
from markup_engines import SayingEngine, in_order

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.extras.documents import (
    KINDS,
    kind_of,
    translate_document,
    translate_file,
)

TRANSLATOR = Translator(FakeEngine())


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.txt", "text"), ("A.HTM", "html"), (".xhtml", "html"), ("a.b/c.d.srt", "srt")],
)
def test_the_ending_of_a_name_tells_the_kind(name, kind):
    assert kind_of(name) == kind
    assert kind in KINDS


UNKNOWN = "a.json a.csv a.ass a.mdx a.txt.gz README html a.md/b .strings".split()
OTHER_PROGRAMS = "a.docx A.ODT b.c.pdf".split()
CATALOGUES = "a.po A.XLF b.xliff .po".split()


@pytest.mark.parametrize("name", UNKNOWN + OTHER_PROGRAMS + CATALOGUES)
def test_an_unknown_ending_is_refused_before_anything_is_read(name, tmp_path):
    message = r"ends with \.txt, .*; or name the"
    message = "Save it as HTML" if name in OTHER_PROGRAMS else message
    message = "#messages-of-programs" if name in CATALOGUES else message
    with pytest.raises(InputError, match=f"^{re.escape(name)}: .*{message}"):
        kind_of(name)
    with pytest.raises(InputError, match=message):
        translate_document(TRANSLATOR, b"msgid", name if "." in name else f".{name}x")
    with pytest.raises(InputError, match=message):
        translate_file(TRANSLATOR, tmp_path / "missing" / name, tmp_path / "b")


class NotCalled(FakeEngine):
    def translate(self, texts, **options):
        raise AssertionError("translated")


NOT_REPLACED, NOT_WRITTEN = "must not replace its document", "{output}: .*cannot be written"
REFUSED = [
    # Document, output, options, error
    ("letter.txt", "letter.txt", {}, NOT_REPLACED),
    ("letter.txt", "link.txt", {}, NOT_REPLACED),
    ("letter.txt", "other_name.txt", {}, NOT_REPLACED),
    ("letter.txt", "b", {"kind": "page"}, "`kind` must be one of text, html"),
    ("a.txt", "b", {}, r"a\.txt: no such file"),
    ("folder", "b", {"kind": "text"}, "expected a file. Received: a directory"),
    ("/dev/zero", "b", {"kind": "text"}, "/dev/zero: expected a file. Received: a device."),
    ("latin.txt", "letter.txt", {}, r"latin\.txt, line 2: expected UTF-8"),
    *(("letter.txt", path, {}, NOT_WRITTEN) for path in ("a" * 256, "loop", "no/b.txt", "folder")),
]


@pytest.mark.parametrize(("document", "output", "options", "message"), REFUSED)
def test_what_cannot_be_read_or_written_is_refused_before_the_translation(
    tmp_path, document, output, options, message
):
    (tmp_path / "letter.txt").write_text("two dogs")
    (tmp_path / "latin.txt").write_bytes(b"a\n\xff")
    os.symlink(tmp_path / "letter.txt", tmp_path / "link.txt")
    os.link(tmp_path / "letter.txt", tmp_path / "other_name.txt")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    before, output = sorted(os.listdir(tmp_path)), tmp_path / output
    with pytest.raises(InputError, match=message.format(output=re.escape(str(output)))):
        translate_file(Translator(NotCalled()), tmp_path / document, output, **options)
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "letter.txt").read_text() == "two dogs"


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".txt", b""),
        (".txt", b"12:30\n-----\n"),
        (".md", b"```\ncode\n```\n"),
        (".html", b"<html lang='en'><script>let a</script><p>12</p>"),
        (".srt", b"1\n00:00:01,000 --> 00:00:02,000\n...\n"),
    ],
)
def test_a_document_without_words_is_told(suffix, content):
    translator = Translator(SayingEngine(in_order))
    with pytest.warns(UserWarning, match="^a: nothing was found"):
        translate_document(translator, content, suffix, name="a")


@pytest.mark.parametrize("suffix", ["notes.md", ".MD", "md", "markdown"])
def test_a_name_a_suffix_and_a_format_name_the_kind_of_bytes(suffix):
    assert translate_document(TRANSLATOR, b"a `b`", suffix) == b"A `b`"


def test_addresses_are_kept_unless_the_caller_says_otherwise():
    text = b"see http://a.b now"
    assert translate_document(TRANSLATOR, text, ".txt") == b"SEE http://a.b NOW"
    assert translate_document(TRANSLATOR, text, ".txt", markup=None) == text.upper()


@pytest.mark.parametrize(
    ("suffix", "text", "expected"),
    [(".html", b"<p>a <b>b</b>", b"<p>A <b>B</b>"), (".md", b"a **b**", b"A **B**")],
)
@pytest.mark.parametrize("markup", [None, "placeholders"])
def test_a_format_with_tags_keeps_them_whatever_the_caller_says(suffix, text, expected, markup):
    translator = Translator(SayingEngine(in_order))
    assert translate_document(translator, text, suffix, markup=markup) == expected


def test_options_with_which_an_engine_gives_no_alignments_still_place_tags_around_words():
    class Engine(SayingEngine):
        def request(self, **options):
            if options.get("alignment") and options.get("beam_size") == 1:
                raise InputError("Alignments need beam search.")
            return super().request(**options)

        def translate(self, texts, **options):
            self.request(**options)
            return super().translate(texts, **options)

    translator = Translator(Engine(in_order))
    assert translate_document(translator, b"a **b** c", ".md", beam_size=1) == b"A **B** C"


@pytest.mark.parametrize(("name", "kind"), [("a.txt", None), ("a.po", "text")])
def test_a_file_is_translated_into_another_file(tmp_path, name, kind):
    path, output = tmp_path / name, tmp_path / "brief.txt"
    path.write_bytes(b"two dogs\r\n")
    translate_file(TRANSLATOR, path, output, kind=kind)
    assert (path.read_bytes(), output.read_bytes()) == (b"two dogs\r\n", b"TWO DOGS\r\n")


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        ("text", b"a\nb\nc\n\nd\ne"),
        ("html", b"<p>a</p><p>b</p> <h1>c</h1><p>d</p><i>e</i>"),
    ],
)
def test_texts_and_blocks_are_translated_in_chunks_whose_shares_sum_to_all(suffix, content):
    class Engine(SayingEngine):
        lines_at_once = 2

        def translate(self, texts, **options):
            counts.append(len(texts))
            return super().translate(texts, **options)

    counts, shares = [], []
    upper = re.sub(rb"(?<!<|/)\b[a-e]\b(?!>)", lambda m: m[0].upper(), content)
    translator = Translator(Engine(in_order))
    assert translate_document(translator, content, suffix, advance=shares.append) == upper
    assert counts == [2, 2, 1]
    assert shares == [0.4, 0.4, 0.2]


def test_options_of_the_translator_reach_it():
    engine = FakeEngine()
    translate_document(Translator(engine), b"a", ".txt", beam_size=3)
    assert engine.options["beam_size"] == 3


def test_a_mistake_in_a_text_names_the_document():
    class Engine(FakeEngine):
        def translate(self, texts, **options):
            raise InputError("is too long", 1)

    with pytest.raises(InputError, match=r"^a\.txt: is too long$"):
        translate_document(Translator(Engine()), b"a\nb", ".txt", name="a.txt")
