"""`translate` with files, and with a document on stdin."""

import pathlib
import re

import pytest
from fakes import FakeEngine
from markup_engines import SayingEngine, in_order

from keras_transformer.cli.main import run
from keras_transformer.extras import documents

PAGE = b'<!doctype html>\r\n<p>two\r\ndogs</p><script>\r\nlet a = "two";\r\n</script>\r\n'
UPPER = PAGE.replace(b"two\r\ndogs", b"TWO DOGS")


def test_files_are_translated_into_a_folder(translate, tmp_path, summary):
    (tmp_path / "letter.txt").write_bytes(b"two dogs\r\n\r\n  play\n")
    (tmp_path / "page.html").write_bytes(PAGE)
    code, out, err = translate("letter.txt", "page.html", "--output", "new/folder")
    assert (code, out) == (0, b"")
    assert re.fullmatch(summary("files: 2, texts: 3, words: 5"), err)
    assert (tmp_path / "new/folder/letter.txt").read_bytes() == b"TWO DOGS\r\n\r\n  PLAY\n"
    assert (tmp_path / "new/folder/page.html").read_bytes() == UPPER


def test_one_file_is_translated_into_a_file_a_folder_or_stdout(translate, tmp_path, summary):
    (tmp_path / "a.txt").write_bytes(b"two")
    (tmp_path / "folder").mkdir()
    for output in ("b.txt", "folder", "other/"):
        assert translate("a.txt", "--output", output)[:2] == (0, b"")
    for path in ("b.txt", "folder/a.txt", "other/a.txt"):
        assert (tmp_path / path).read_bytes() == b"TWO"
    code, out, err = translate("a.txt")
    assert (code, out) == (0, b"TWO")
    assert re.fullmatch(summary("files: 1, texts: 1, words: 1"), err)


def test_a_broken_file_is_one_line_and_the_others_go_on(translate, tmp_path, summary):
    (tmp_path / "a.txt").write_bytes(b"two\xff")
    (tmp_path / "c.txt").write_bytes(b"dogs")
    code, _, err = translate("a.txt", "b.txt", "c.txt", "--output", "out")
    first, second, third, last = err.splitlines()
    assert code == 2
    assert first.startswith("keras-transformer: a.txt, line 1: expected UTF-8 text.")
    assert second == "keras-transformer: b.txt: no such file."
    assert re.fullmatch(summary("files: 1, texts: 1, words: 1"), f"{third}\n")
    assert last == "keras-transformer: 2 of 3 files were not translated."
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["c.txt"]


def test_a_file_of_an_unknown_kind_is_one_line_unless_the_kind_is_named(translate, tmp_path):
    for name in ("a.json", "b.txt"):
        (tmp_path / name).write_bytes(b"two")
    one, two = ["a.json", "--output", "c"], ["a.json", "b.txt", "--output", "out"]
    for arguments in (["a.json"], one, two):
        code, out, err = translate(*arguments)
        assert (code, out) == (2, b"")
        assert err.startswith("keras-transformer: a.json: expected a name that ends with .txt, ")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.txt"]
    assert translate("a.json", "--document-kind", "text")[:2] == (0, b"TWO")


@pytest.mark.parametrize("name", ["a.po", "A.XLF", "a.xliff"])
def test_a_catalogue_of_messages_is_one_line_with_the_way_around(translate, tmp_path, name):
    (tmp_path / name).write_bytes(b'msgid "two"')
    code, out, err = translate(name, "--output", "b.txt")
    assert (code, out, err.count("\n")) == (2, b"", 1)
    page, heading = re.search(r"docs/(\S+\.md)#(\S+)", err).groups()
    text = (pathlib.Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    headings = re.findall("^## (.*)", text, re.MULTILINE)
    assert heading in {line.lower().replace(" ", "-") for line in headings}
    assert not (tmp_path / "b.txt").exists()


def test_a_file_without_words_is_copied_and_told(translate, tmp_path, summary):
    (tmp_path / "a.txt").write_bytes(b"12:30\n")
    code, out, err = translate("a.txt")
    assert (code, out) == (0, b"12:30\n")
    warning, total = err.splitlines(keepends=True)
    assert warning.startswith("keras-transformer: a.txt: nothing was found")
    assert re.fullmatch(summary("files: 1, texts: 0, words: 0", warnings=1), total)


def test_a_single_broken_file_is_one_line(translate):
    assert translate("a.txt") == (2, b"", "keras-transformer: a.txt: no such file.\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("a.txt --output a.txt", "a.txt: a translation must not replace its document."),
        ("a.txt b.txt --output .", "./a.txt: a translation must not replace its document."),
        ("a.txt c/b.txt --output c --engine ray --wrapped", "`--wrapped` is not allowed with"),
        ("c/b.txt a.txt b.txt --output .", "./b.txt: a translation must not replace a document."),
        ("b.txt c/b.txt --output d", "c/b.txt: two files must not have the same name in d."),
        ("a.txt b.txt", "Several files need --output DIR"),
        ("a.txt --json", "`--json` is not allowed with whole documents."),
        ("a.txt --document-kind lines", "`--document-kind` must be one of lines, text, html"),
        ("--document-kind page", "`--document-kind` must be one of lines, text, html"),
        ("--wrapped", "`--wrapped` needs files or --document-kind."),
        ("--output a", "`--output` needs files or --document-kind."),
        ("a.txt --beam-size 0", "`--beam-size` must"),
        ("--engine ray a.txt", "--engine ray needs --output."),
        ("--engine ray --output a", "--engine ray needs FILE."),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(translate, tmp_path, arguments, message):
    (tmp_path / "c").mkdir()
    for name in ("a.txt", "b.txt", "c/b.txt"):
        (tmp_path / name).write_bytes(b"two")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = translate(*arguments.split())
    assert (code, out, err.count("\n")) == (2, b"", 1)
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before


def test_wrapped_lines_of_a_file_are_one_text(translate, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"two dogs\nplay here\n")
    engine = SayingEngine(in_order)
    assert translate("a.txt", "--wrapped", engine=engine)[1] == b"TWO DOGS\nPLAY HERE\n"
    assert engine.texts == ["two dogs play here"]


def test_a_page_on_stdin_is_read_whole(translate):
    for options in (["--markup", "html"], ["--document-kind", "html"]):
        assert translate(*options, stdin=PAGE) == (0, UPPER, "")
    utf16 = PAGE.decode().encode("utf-16")
    assert translate("--markup", "html", stdin=utf16)[1] == UPPER.decode().encode("utf-16")


def test_fragments_on_stdin_are_lines_and_so_is_a_page_as_lines(translate):
    fragments = b"<p>two\n<b>dogs</b> play\nend"
    expected = b"<p>TWO\n<b>DOGS</b> PLAY\nEND\n"
    assert translate("--markup", "html", stdin=fragments) == (0, expected, "")
    page = translate("--markup", "html", "--document-kind", "lines", stdin=PAGE)[1]
    assert b"LET A" in page  # A script of several lines is lost.


def test_a_document_on_stdin_may_go_to_a_file(translate, tmp_path):
    options = ["--document-kind", "text", "--output", "b.txt"]
    assert translate(*options, stdin=b"two\r\n") == (0, b"", "")
    assert (tmp_path / "b.txt").read_bytes() == b"TWO\r\n"


def test_options_of_lines_are_refused_for_a_page_with_the_way_out(translate):
    code, _, err = translate("--markup", "html", "--json", stdin=PAGE)
    rule = "`--json` is not allowed with whole documents: add --document-kind lines."
    assert (code, err) == (2, f"keras-transformer: {rule}\n")


def test_a_classifier_translates_no_documents(translate, tmp_path):
    engine = FakeEngine(labels=["a", "b"], noun="a classifier")
    (tmp_path / "a.txt").write_bytes(b"two")
    code, _, err = translate("a.txt", engine=engine)
    assert (code, err) == (
        2,
        "keras-transformer: Documents need a model that translates sentences. "
        "Received: a classifier.\n",
    )


def test_a_bar_shows_the_files(translate, tmp_path, summary):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(b"two\n" * 3)
    err = translate("a.txt", "b.txt", "--output", "out", "--progress")[2]
    assert "1 of 2 files" in err and "2 of 2 files" in err and "100%" in err
    err = translate("a.txt", "b.txt", "--output", "out", "--no-progress")[2]
    assert re.fullmatch(summary("files: 2, texts: 6, words: 6"), err)


def test_help_names_all_kinds(capsys):
    with pytest.raises(SystemExit):
        run(["translate", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"lines, {', '.join(documents.KINDS)};" in shown
