"""`translate --bilingual`: sources beside translations, for revision."""

import html.parser
import os

import pytest
from fakes import FakeEngine
from markup_engines import SayingEngine, in_order

from keras_transformer import Translation, __version__
from keras_transformer.extras.corpora.translation_memory import TranslationMemory
from keras_transformer.text.languages import Languages
from keras_transformer.text.symbols import Placeholders

LINES = b"two  dogs\tplay\n\n12:30\r\n <b>&amp;</b> 'here' \n"
PAIRS = [
    ("two  dogs play", "TWO DOGS PLAY"),
    ("12:30", "12:30"),
    ("<b>&amp;</b> 'here'", "<B>&AMP;</B> 'HERE'"),
]


class English(SayingEngine):
    """Knows its languages."""

    languages = Languages(directions=(("en", "ar"),))

    def __init__(self):
        super().__init__(in_order, Placeholders())


class Cells(html.parser.HTMLParser):
    """Collects the cells of a page's table, with their attributes."""

    def __init__(self, page):
        super().__init__()
        self.rows, self._is_open = [], False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append([tag, dict(attributes), ""])
        assert tag in "html meta title style table tr td th".split()
        self._is_open = tag in ("td", "th")

    def handle_endtag(self, tag):
        self._is_open = False

    def handle_data(self, data):
        if self._is_open:
            self.rows[-1][-1][2] += data


@pytest.fixture
def pairs_of(translate, tmp_path):
    """Runs the command with a bilingual file, and returns what a reader reads of the file."""

    def call(name, *arguments, **options):
        path = tmp_path / name
        code, *_ = translate(*arguments, "--bilingual", name, engine=English(), **options)
        assert code == 0
        if name.lower().endswith(".tmx"):
            return list(TranslationMemory(path, "en-ar"))
        text = path.read_text(encoding="utf-8")
        if name.lower().endswith(".tsv"):
            return [tuple(line.split("\t")) for line in text.split("\n")[:-1]]
        rows = Cells(text).rows
        return [tuple(text for *_, text in row) for row in rows if row[0][0] == "td"]

    return call


@pytest.mark.parametrize("name", ["a.tsv", "a.tmx", "a.html", "B.TSV"])
def test_lines_are_pairs(pairs_of, name):
    assert pairs_of(name, stdin=LINES) == PAIRS


def test_a_tab_and_a_line_break_in_a_text_are_spaces(translate, tmp_path):
    broken = Translation(" A\r\nB\tC\u2028D\n", 0.0)
    engine = FakeEngine(translate=lambda texts, **_: [broken for _ in texts])
    (tmp_path / "old.tsv").write_text("old")
    assert translate("--bilingual", "old.tsv", engine=engine, stdin=b"\ta\tb \n")[0] == 0
    assert (tmp_path / "old.tsv").read_bytes() == b"a b\tA B C D\n"


@pytest.mark.parametrize("name", ["a.tsv", "a.tmx", "a.html"])
def test_documents_are_pairs_without_tags_marks_and_texts_without_letters(pairs_of, tmp_path, name):
    (tmp_path / "docs/sub").mkdir(parents=True)
    page = (
        '<!doctype html><title>two</title><p>a <b title="big">dog</b><br>&lt;3 &amp; <code>x</code>'
    )
    page += '<td>42<td>&lt;b&gt; more<td><img alt="a cat">'
    (tmp_path / "docs/a.html").write_text(page)
    (tmp_path / "docs/b.md").write_text("# two **dogs**\n\n> play `x`\n> [here](http://a.b)\n")
    (tmp_path / "docs/sub/c.txt").write_text("two\n----\n12:30\ndogs\n")
    cues = "1\n00:00:01,000 --> 00:00:02,000\n<i>two</i> &\n\n"
    cues += "2\n00:00:02,000 --> 00:00:03,000\ndogs {b}.\n\n"
    cues += "3\n00:00:03,000 --> 00:00:04,000\nplay\nmore\n\n"
    cues += "4\n00:00:04,000 --> 00:00:05,000\nhere.\n"
    (tmp_path / "docs/sub/d.srt").write_text(cues)
    assert pairs_of(name, "docs", "--output", "out") == [
        ("two", "TWO"),
        ("big", "BIG"),
        ("a dog <3 & x", "A DOG <3 & x"),
        ("<b> more", "<B> MORE"),
        ("a cat", "A CAT"),
        ("two dogs", "TWO DOGS"),
        ("play `x` here", "PLAY `x` HERE"),
        ("two", "TWO"),
        ("dogs", "DOGS"),
        ("two &", "TWO &"),
        ("dogs {b}.", "DOGS {b}."),
        ("play more here.", "PLAY MORE HERE."),
    ]


def test_a_memory_has_the_languages_the_documents_and_only_characters_of_xml(translate, tmp_path):
    (tmp_path / "a&b.txt").write_bytes("two \x01 \ufffe dogs".encode())
    options = ["--output", "c.txt", "--bilingual", "a.tmx"]
    assert translate("a&b.txt", *options, engine=English())[0] == 0
    assert (tmp_path / "a.tmx").read_text(encoding="utf-8") == (
        '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4">\n'
        f'<header creationtool="keras-transformer" creationtoolversion="{__version__}" '
        'segtype="paragraph" o-tmf="keras-transformer" adminlang="en" srclang="en" '
        'datatype="plaintext"/>\n<body>\n'
        '<tu><prop type="x-document">a&amp;b.txt</prop>'
        '<tuv xml:lang="en"><seg>two \ufffd \ufffd dogs</seg></tuv>'
        '<tuv xml:lang="ar"><seg>TWO \ufffd \ufffd DOGS</seg></tuv></tu>\n'
        "</body>\n</tmx>\n"
    )
    assert list(TranslationMemory(tmp_path / "a.tmx", "en-ar")) == [
        ("two \ufffd \ufffd dogs", "TWO \ufffd \ufffd DOGS")
    ]


def test_a_memory_of_a_model_of_several_languages_has_the_named_ones(translate, tmp_path):
    engine = English()
    engine.languages = Languages(directions=(("en", "ar"), ("pt-BR", "de"), ("nb", "de")))
    options = ["--from", "por_Latn_BR", "--to", "deu_Latn", "--bilingual", "a.tmx"]
    assert translate(*options, engine=engine, stdin=b"um\n")[0] == 0
    assert list(TranslationMemory(tmp_path / "a.tmx", "pt-BR,de")) == [("um", "UM")]


def test_a_page_names_languages_directions_and_documents(translate, tmp_path):
    (tmp_path / "<i>.txt").write_text('<script>"&amp;')
    (tmp_path / "b.txt").write_text("two")
    options = ["--output", "out", "--bilingual", "a.html"]
    assert translate("<i>.txt", "b.txt", *options, engine=English())[0] == 0
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>\n") and '<meta charset="utf-8">' in page
    source, target = {"lang": "en", "dir": "ltr"}, {"lang": "ar", "dir": "rtl"}
    assert Cells(page).rows[1:] == [
        [["th", {"colspan": "2"}, "<i>.txt"]],
        [["td", source, '<script>"&amp;'], ["td", target, '<SCRIPT>"&AMP;']],
        [["th", {"colspan": "2"}, "b.txt"]],
        [["td", source, "two"], ["td", target, "TWO"]],
    ]
    assert translate(*options[2:], stdin=b"two\n")[0] == 0
    unknown = {"lang": "", "dir": "auto"}
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert Cells(page).rows[1:] == [[["td", unknown, "two"], ["td", unknown, "TWO"]]]


def test_a_document_on_stdin_is_pairs(pairs_of):
    assert pairs_of("a.tsv", "--markup", "html", stdin=b"<!doctype html><p>two\r\ndogs") == [
        ("two dogs", "TWO DOGS")
    ]


def test_lines_stay_as_they_are_and_hypotheses_are_no_pairs(translate, tmp_path):
    code, out, _ = translate("--json", "--bilingual", "a.tsv", engine=English(), stdin=b"two\n")
    assert code == 0 and out.startswith(b'{"line": 1, "source": "two", "translation": "TWO"')
    assert (tmp_path / "a.tsv").read_text() == "two\tTWO\n"


ENDINGS = "`--bilingual` must be a file that ends with .tsv, .tmx, .html. Received: "


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--bilingual a.txt", f"{ENDINGS}'a.txt'.\n"),
        ("--bilingual tsv", f"{ENDINGS}'tsv'.\n"),
        ("a.txt --output b.txt --bilingual a.tmx.gz", f"{ENDINGS}'a.tmx.gz'.\n"),
        ("--bilingual a.tmx", "a.tmx: a translation memory names both languages, and one is unkn"),
        ("--bilingual a.tsv --stream", "`--bilingual` is not allowed with --stream."),
        ("a.txt --engine ray --output o --bilingual a.tsv", "`--bilingual` is not allowed with --"),
        ("--bilingual missing/a.tsv", "missing/a.tsv: cannot be written: No such file"),
        ("--bilingual folder.tsv", "folder.tsv: cannot be written: Is a directory"),
        ("a.html --bilingual a.html", "a.html: the bilingual file must not replace a document"),
        ("a.html --output b.html --bilingual ./b.html", "./b.html: the bilingual file must not r"),
        ("a.html a.txt --output o --bilingual link.html", "link.html: the bilingual file must no"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(translate, tmp_path, arguments, message):
    (tmp_path / "folder.tsv").mkdir()
    (tmp_path / "a.html").write_text("<p>two")
    (tmp_path / "a.txt").write_text("two")
    (tmp_path / "link.html").symlink_to(tmp_path / "a.html")
    before = sorted(tmp_path.iterdir())
    code, out, err = translate(*arguments.split(), stdin=b"two\n")
    assert (code, out, err.count("\n")) == (2, b"", 1)
    assert err.startswith(f"keras-transformer: {message}")
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "a.html").read_text() == "<p>two"


def test_a_link_stays_and_a_pipe_gets_the_file(translate, tmp_path, in_background):
    (tmp_path / "link.tsv").symlink_to(tmp_path / "file.tsv")
    os.mkfifo(tmp_path / "pipe.tsv")
    read = []
    thread = in_background(lambda: read.append((tmp_path / "pipe.tsv").read_text()))
    for name in ("link.tsv", "pipe.tsv"):
        assert translate("--bilingual", name, stdin=b"two\n")[0] == 0
    assert (tmp_path / "link.tsv").is_symlink()
    assert (tmp_path / "file.tsv").read_text() == "two\tTWO\n"
    assert (tmp_path / "pipe.tsv").is_fifo()
    thread.join(9)
    assert read == ["two\tTWO\n"]


def test_a_name_of_a_language_that_is_no_code_is_unknown_in_a_page(translate, tmp_path):
    engine = English()
    engine.languages = Languages(directions=(("en", "x y"),))
    assert translate("--bilingual", "a.html", engine=engine, stdin=b"two\n")[0] == 0
    (_, (source, target)) = Cells((tmp_path / "a.html").read_text()).rows
    assert (source[1]["lang"], target[1]["lang"]) == ("en", "")


def test_a_name_that_is_not_utf_8_is_written_with_an_escape(translate, tmp_path):
    name = os.fsdecode(b"a\xff.txt")
    (tmp_path / name).write_text("two")
    assert translate(name, "--output", "b.txt", "--bilingual", "a.html")[0] == 0
    assert b">a\\udcff.txt</th>" in (tmp_path / "a.html").read_bytes()


def names(folder):
    return sorted(path.name for path in folder.rglob("*"))


def test_a_line_at_fault_leaves_the_earlier_file(translate, tmp_path):
    (tmp_path / "a.tsv").write_text("old")
    code, out, err = translate("--bilingual", "a.tsv", stdin=b"two\ndogs\xff\n")
    assert (code, out) == (2, b"TWO\n")
    assert err.startswith("keras-transformer: stdin, line 2: ")
    assert (tmp_path / "a.tsv").read_text() == "old" and names(tmp_path) == ["a.tsv"]


def test_an_interrupted_translation_leaves_no_file(translate, tmp_path):
    class Interrupted(English):
        def translate(self, texts, **options):
            if "dogs" in texts:
                raise KeyboardInterrupt
            return super().translate(texts, **options)

    for name, text in (("a.txt", "two"), ("b.txt", "dogs")):
        (tmp_path / name).write_text(text)
    options = ["--output", "out", "--bilingual", "a.tmx"]
    assert translate("a.txt", "b.txt", *options, engine=Interrupted())[0] == 130
    assert names(tmp_path) == ["a.txt", "a.txt", "b.txt", "out"]


def test_a_document_at_fault_is_no_pair_and_hides_no_other(translate, tmp_path):
    for name, content in (("a.txt", b"two"), ("b.txt", b"\xff"), ("c.txt", b"dogs")):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "out/c.txt").mkdir(parents=True)  # Its translation cannot be written.
    options = ["--output", "out", "--bilingual", "a.tsv"]
    assert translate("a.txt", "b.txt", "c.txt", *options)[0] == 2
    assert (tmp_path / "a.tsv").read_text() == "two\tTWO\n"
    (tmp_path / "a.tsv").unlink()
    assert translate("b.txt", *options)[0] == 2  # A single document
    assert not (tmp_path / "a.tsv").exists()
