"""Archives that hold a model, and archives that were made to harm."""

import shutil
import stat
import tarfile

import pytest
from model_servers import make_tar, make_zip

from keras_transformer.base import reading
from keras_transformer.base.errors import InputError
from keras_transformer.extras.importing.fetching import archives
from keras_transformer.extras.importing.fetching.archives import unpack


@pytest.mark.parametrize("make", [make_zip, make_tar])
@pytest.mark.parametrize("top", ["", "translate-en_de-1_0/", "a/b/"])
def test_all_files_are_unpacked_and_a_folder_of_all_is_entered(tmp_path, make, top):
    members = {f"{top}model.npz": b"weights", f"{top}model/vocab.yml": b"a: 1\n"}
    folder = unpack(make(tmp_path / "archive", members), tmp_path / "model")
    assert (folder / "model.npz").read_bytes() == b"weights"
    assert (folder / "model" / "vocab.yml").read_bytes() == b"a: 1\n"


OF_MACOS = ["__MACOSX/model/._model.npz", "model/._model.npz", "model/.DS_Store", "._model"]


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_files_that_macos_adds_are_skipped(tmp_path, make):
    members = {"model/model.npz": b"weights", **dict.fromkeys(OF_MACOS, b"attributes")}
    folder = unpack(make(tmp_path / "archive", members), tmp_path / "model")
    assert [path.name for path in folder.rglob("*")] == ["model.npz"]


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_backslashes_of_windows_are_paths(tmp_path, make):
    members = {"toy\\": b"", "toy\\a\\model.npz": b"weights", "toy\\vocab.yml": b"a: 1\n"}
    if make is make_tar:
        del members["toy\\"]  # A tar file says of each member what it is.
    folder = unpack(make(tmp_path / "archive", members), tmp_path / "model")
    assert (folder / "a" / "model.npz").read_bytes() == b"weights"
    assert (folder / "vocab.yml").read_bytes() == b"a: 1\n" and folder.name == "toy"


OUTSIDE = ["../x", "a/../../x", "/x", "..\\x", "n" * 300]
OUTSIDE += ["a\\..\\..\\x", "\\x", "C:\\x", "C:x", "c:/x", "\\\\host\\share\\x", "a\\" + "n" * 300]
HOSTILE = {
    **{f"zip {name:.10}": lambda path, name=name: make_zip(path, {name: b"x"}) for name in OUTSIDE},
    **{f"tar {name:.10}": lambda path, name=name: make_tar(path, {name: b"x"}) for name in OUTSIDE},
    "zip link": lambda path: make_zip(path, {"x": b"/etc/passwd"}, stat.S_IFLNK | 0o777),
    "zip device": lambda path: make_zip(path, {"x": b""}, stat.S_IFCHR | 0o777),
    "tar link": lambda path: make_tar(path, {"x": b""}, tarfile.SYMTYPE),
    "tar hard link": lambda path: make_tar(path, {"x": b""}, tarfile.LNKTYPE),
    "tar device": lambda path: make_tar(path, {"x": b""}, tarfile.CHRTYPE),
    "tar pipe": lambda path: make_tar(path, {"x": b""}, tarfile.FIFOTYPE),
    "zip bomb": lambda path: make_zip(path, dict.fromkeys("abc", bytes(400_000))),
    "tar bomb": lambda path: make_tar(path, {"x": bytes(2_000_000)}),
    "tar header bomb": lambda path: make_tar(path, {"x": b""}, headers={"a": "x" * 2_000_000}),
    "two of one name": lambda path: make_tar(path, {"x": b"", "x/y": b""}),
    "many members": lambda path: make_zip(path, {str(number): b"" for number in range(20)}),
    "many folders": lambda path: make_zip(path, {f"{n}/a/b/x": b"" for n in range(3)}),
    "many folders in tar": lambda path: make_tar(path, {f"{n}/a/b/x": b"" for n in range(3)}),
    "another file": lambda path: path.write_text("<!DOCTYPE html>"),
    "empty": lambda path: path.touch(),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_archive_is_one_line_and_writes_nothing_outside(tmp_path, monkeypatch, case):
    monkeypatch.setattr(reading, "_FREE_BYTES", 1_000_000)
    monkeypatch.setattr(archives, "_MAX_MEMBERS", 10)
    path = tmp_path / "archive"
    HOSTILE[case](path)
    with pytest.raises(InputError, match="archive: ") as caught:
        unpack(path, tmp_path / "model")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    assert {entry.name for entry in tmp_path.iterdir()} == {"archive", "model"}
    sizes = [entry.lstat().st_size for entry in (tmp_path / "model").rglob("*")]
    assert sum(sizes) <= 2_100_000 and len(sizes) <= 10
    assert not any(p.is_symlink() for p in tmp_path.rglob("*"))


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_an_unpacked_folder_is_never_too_deep_to_be_removed(tmp_path, make):
    # Python's functions call themselves once for each folder, at most 1,000 times.
    members = {"a/" * depth + "x": b"" for depth in (21, 600, 1200, 1700)}
    with pytest.raises(InputError, match="must be a short path inside the archive"):
        unpack(make(tmp_path / "archive", members), tmp_path / "model")
    shutil.rmtree(tmp_path / "model")
    members = {"a/" * 19 + "x": b"weights"}
    assert (unpack(make(tmp_path / "archive", members), tmp_path / "model") / "x").is_file()


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_every_cut_of_an_archive_is_one_line(tmp_path, make):
    whole = make(tmp_path / "whole", {"a/model.npz": bytes(range(256)) * 40}).read_bytes()
    for number, size in enumerate(range(0, len(whole) - 1, max(1, len(whole) // 40))):
        path = tmp_path / f"cut{number}"
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=f"{path}: "):
            unpack(path, tmp_path / f"model{number}")
