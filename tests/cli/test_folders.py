"""`translate` with folders, and the summary of files and folders."""

import os
import re
import warnings

import pytest
from markup_engines import SayingEngine, in_order


@pytest.fixture
def docs(tmp_path):
    """A folder of documents, and of other files."""
    files = {
        "docs/a.txt": "two\n\ndogs play\n",
        "docs/sub/b.md": "# two dogs\n",
        "docs/sub/deep/a.txt": "play",
        "docs/sub/c.json": "{}",
        "docs/d.png": "",
        "docs/.hidden.txt": "two",
        "docs/.git/e.txt": "two",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "docs"


def files_below(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


TREE = {"a.txt": "TWO\n\nDOGS PLAY\n", "sub/b.md": "# TWO DOGS\n", "sub/deep/a.txt": "PLAY"}


@pytest.mark.parametrize("folder", ["docs", "docs/", "./docs"])
def test_a_folder_is_translated_with_its_tree_and_the_rest_is_named(
    translate, summary, tmp_path, docs, folder
):
    code, out, err = translate(folder, "--output", "out")
    assert (code, out) == (0, b"")
    assert files_below(tmp_path / "out") == TREE
    line = summary("files: 3, texts: 4, words: 6").replace(r"\n", "; left out: (.*)\n")
    names = [os.path.join(folder, name) for name in ("d.png", "sub/c.json")]
    assert re.fullmatch(line, err)[1].split(", ") == names


def test_files_and_folders_may_be_named_together(translate, tmp_path, docs):
    (tmp_path / "b.txt").write_text("here")
    assert translate("b.txt", "docs/sub", "--output", "out")[0] == 0
    assert files_below(tmp_path / "out") == {
        "b.txt": "HERE",
        "b.md": "# TWO DOGS\n",
        "deep/a.txt": "PLAY",
    }


def test_links_and_pipes_do_no_harm(translate, tmp_path, docs):
    (docs / "loop").symlink_to(docs)
    (docs / "circle.txt").symlink_to(docs / "circle.txt")
    (docs / "nothing.txt").symlink_to(tmp_path / "missing")
    (docs / "link.txt").symlink_to(docs / "a.txt")
    os.mkfifo(docs / "pipe.txt")
    code, _, err = translate("docs", "--output", "out")
    assert code == 0
    assert files_below(tmp_path / "out") == {**TREE, "link.txt": TREE["a.txt"]}
    assert not (tmp_path / "out/link.txt").is_symlink()
    left_out = ["loop", "circle.txt", "d.png", "nothing.txt", "pipe.txt"]
    assert err.endswith(f"left out: {', '.join(f'docs/{name}' for name in left_out)} and 1 more\n")


def test_five_names_of_what_was_left_out_are_shown_and_the_rest_is_counted(translate, docs):
    for number in range(5):
        (docs / f"{number}.csv").touch()
    err = translate("docs", "--output", "out")[2]
    names = [f"docs/{number}.csv" for number in range(5)]
    assert err.endswith(f"left out: {', '.join(names)} and 2 more\n")
    (docs / "4.csv").unlink()
    (docs / "sub/c.json").unlink()
    err = translate("docs", "--output", "out")[2]
    assert err.endswith(f"left out: {', '.join([*names[:4], 'docs/d.png'])}\n")


def test_a_folder_that_cannot_be_listed_is_named(translate, docs, monkeypatch):
    scandir = os.scandir

    def refuse(path):
        if os.fspath(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    code, _, err = translate("docs", "--output", "out")
    assert code == 0
    assert "files: 2," in err and err.endswith("docs/sub/c.json, docs/sub/deep\n")


def test_a_broken_document_stops_no_other_and_leaves_no_file(translate, tmp_path, docs):
    (docs / "sub/b.md").write_bytes(b"two\xff")
    code, _, err = translate("docs", "--output", "out")
    first, second, last = err.splitlines()
    assert code == 2
    assert first.startswith("keras-transformer: docs/sub/b.md, line 1: expected UTF-8 text.")
    assert second.startswith("keras-transformer: files: 2, texts: 3, words: 4, ")
    assert last == "keras-transformer: 1 of 3 files were not translated."
    assert {**files_below(tmp_path / "out"), "sub/b.md": TREE["sub/b.md"]} == TREE


def test_words_are_those_of_sources_and_all_warnings_of_a_document_count(translate, docs):
    class Wordy(SayingEngine):
        def translate(self, texts, **options):
            for number in range(2):
                warnings.warn(f"{number}", stacklevel=2)
            return super().translate(texts, **options)

    engine = Wordy(lambda words: in_order([*words, "more"]))
    err = translate("docs", "--output", "out", engine=engine)[2]
    assert "files: 3, texts: 4, words: 6, " in err and "warnings: 6;" in err


def test_a_folder_of_one_document_becomes_a_folder(translate, tmp_path, docs):
    assert translate("docs/sub/deep", "--output", "out")[0] == 0
    assert files_below(tmp_path / "out") == {"a.txt": "PLAY"}


def test_warnings_are_counted(translate, docs):
    (docs / "sub/deep/a.txt").write_text("12:30")
    err = translate("docs", "--output", "out")[2]
    assert err.startswith("keras-transformer: docs/sub/deep/a.txt: nothing was found")
    assert "files: 3, texts: 3, words: 5," in err and "warnings: 1;" in err


NO_DOCUMENT = "there is no document below this folder."
OUTSIDE = "the output must be outside of the folder"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("docs --output docs", f"docs: {OUTSIDE}"),
        ("docs --output docs/new/out", f"docs/new/out: {OUTSIDE}"),
        ("docs/sub --output docs", f"docs: {OUTSIDE}"),
        ("docs/sub --output .", f".: {OUTSIDE}"),
        ("docs --output link/new", f"link/new: {OUTSIDE}"),
        ("link --output docs/new", f"docs/new: {OUTSIDE}"),
        ("docs", "docs: a folder needs --output DIR"),
        ("empty --output out", f"empty: {NO_DOCUMENT}\n"),
        ("docs empty --output out", f"empty: {NO_DOCUMENT}\n"),
        (
            "other --output out",
            f"other: {NO_DOCUMENT} Left out: other/x.po.\n",
        ),
        ("docs --output out --document-kind text", "`--document-kind` is not allowed with a fo"),
        (
            "docs docs/sub/deep --output out",
            "docs/sub/deep/a.txt: two files must not",
        ),
        ("docs --output file", "file: cannot be written: "),
        ("docs --output out --json", "`--json` is not allowed with whole documents."),
    ],
)
def test_a_mistake_is_one_line_and_changes_no_file(translate, tmp_path, docs, arguments, message):
    (tmp_path / "link").symlink_to(docs)
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/x.po").write_text("two")
    (tmp_path / "file").write_text("two")
    before = files_below(tmp_path)
    code, out, err = translate(*arguments.split())
    assert (code, out, err.count("\n")) == (2, b"", 1)
    assert err.startswith(f"keras-transformer: {message}")
    assert files_below(tmp_path) == before


def test_a_link_from_the_output_to_the_folder_replaces_no_document(translate, tmp_path, docs):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/sub").symlink_to(docs / "sub")
    before = files_below(docs)
    code, _, err = translate("docs", "--output", "out")
    assert code == 2 and "must not replace" in err
    assert files_below(docs) == before
