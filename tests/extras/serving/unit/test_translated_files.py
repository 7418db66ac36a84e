"""Translated files of a server: their names, and when they are gone."""

import gc
import os
import time

import pytest

from keras_transformer.base.errors import InputError
from keras_transformer.extras.serving import translated_files
from keras_transformer.extras.serving.translated_files import TranslatedFiles


def test_a_file_is_found_by_its_whole_name_alone(tmp_path):
    (tmp_path / "secret").write_bytes(b"other")
    (tmp_path / "files").mkdir()
    files = TranslatedFiles(tmp_path / "files")
    token = files.add("Zoë's letter.txt", b"content")
    assert files.path_of(token).read_bytes() == b"content"
    assert token.partition(".")[2] == "Zoë_s_letter.txt"
    assert files.add("Zoë's letter.txt", b"content") != token
    for other in (token[1:], "../secret", f"{'0' * 32}./../secret", "", "secret", "0" * 32 + ".a"):
        assert files.path_of(other) is None
    long = files.add("a" * 500 + ".html", b"")
    assert files.path_of(long) and long.endswith("a.html")
    wide = files.add("𠀀" * 60 + ".html", b"")  # of four bytes each
    assert files.path_of(wide) and wide.endswith("𠀀.html")


def test_a_file_is_gone_after_an_hour(tmp_path):
    files, other = TranslatedFiles(tmp_path), TranslatedFiles(tmp_path)
    old, new = files.add("old.txt", b"1"), files.add("new.txt", b"2")
    assert other.path_of(old)  # of another process
    hour_ago = time.time() - 3601
    os.utime(tmp_path / old, (hour_ago, hour_ago))
    assert files.path_of(old) is None and files.path_of(new)
    other.remove_old()
    assert [path.name for path in tmp_path.iterdir()] == [new]


@pytest.mark.parametrize(("limit", "value"), [("_KEPT_BYTES", 10), ("_KEPT_FILES", 2)])
def test_the_oldest_files_go_where_all_are_too_large_or_too_many(
    tmp_path, monkeypatch, limit, value
):
    assert (translated_files._KEPT_BYTES, translated_files._KEPT_FILES) == (1 << 28, 1000)
    monkeypatch.setattr(translated_files, limit, value)
    files = TranslatedFiles(tmp_path)
    # The oldest is the last in the order of names.
    tokens = [f"{letter * 32}.txt" for letter in "cba"]
    for token, age in zip(tokens, (30, 20, 0), strict=True):
        files.put(token, b"four")
        moment = time.time() - age
        os.utime(tmp_path / token, (moment, moment))
    assert [files.path_of(token) is not None for token in tokens] == [False, True, True]


def test_a_folder_of_its_own_is_removed_with_it_and_a_shared_one_may_be_gone(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    files = TranslatedFiles()
    files.add("a.txt", b"1")
    assert len([*tmp_path.glob("kt-files-*/*")]) == 1
    del files
    gc.collect()
    assert [*tmp_path.iterdir()] == []
    TranslatedFiles(tmp_path / "gone").remove_old()
    with pytest.raises(InputError, match="gone"):
        TranslatedFiles(tmp_path / "gone").add("a.txt", b"1")
