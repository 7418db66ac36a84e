import os

import pytest

from keras_transformer.errors import InputError
from keras_transformer.files import MANIFEST, staged_folder


def make(output, content="new", overwrite=False):
    with staged_folder(output, overwrite) as folder:
        (folder / MANIFEST).write_text(content)


def test_the_folder_appears_when_the_block_has_succeeded(tmp_path):
    with staged_folder(tmp_path / "a" / "model") as folder:
        assert folder.parent == tmp_path / "a" and folder.name.startswith(".model.partial-")
        (folder / MANIFEST).write_text("{}")
        assert not (tmp_path / "a" / "model").exists()
    assert os.listdir(tmp_path / "a") == ["model"]
    assert os.listdir(tmp_path / "a" / "model") == [MANIFEST]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("before", [None, "old"])
def test_a_failure_leaves_what_was_there(tmp_path, error, before):
    output = tmp_path / "model"
    if before:
        make(output, before)
    with pytest.raises(error), staged_folder(output, overwrite=True) as folder:
        (folder / "half").write_text("half")
        raise error
    assert os.listdir(tmp_path) == (["model"] if before else [])
    assert not before or (output / MANIFEST).read_text() == before


def test_a_failure_to_rename_puts_the_earlier_export_back(tmp_path, monkeypatch):
    output, rename = tmp_path / "model", os.rename
    make(output, "old")

    def fail(source, target):
        if ".partial-" in str(source):
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(KeyboardInterrupt):
        make(output, overwrite=True)
    assert os.listdir(tmp_path) == ["model"] and (output / MANIFEST).read_text() == "old"


def test_an_earlier_export_is_replaced_when_asked(tmp_path):
    output = tmp_path / "model"
    make(output, "old")
    with pytest.raises(InputError, match="must not exist"):
        make(output)
    assert (output / MANIFEST).read_text() == "old"
    make(output, "new", overwrite=True)
    assert os.listdir(tmp_path) == ["model"] and (output / MANIFEST).read_text() == "new"


def test_the_folder_behind_a_link_is_replaced(tmp_path):
    make(tmp_path / "model", "old")
    (tmp_path / "link").symlink_to(tmp_path / "model")
    make(tmp_path / "link", "new", overwrite=True)
    assert (tmp_path / "model" / MANIFEST).read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["link", "model"]


def test_nothing_but_an_export_is_replaced(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("three years")
    (tmp_path / "file").write_text("text")
    for name, message in (("run", "only an earlier export"), ("file", "must be a folder")):
        with pytest.raises(InputError, match=message):
            make(tmp_path / name, overwrite=True)
    with pytest.raises(InputError, match="cannot be written"):
        make(tmp_path / "file" / "model")
    assert (tmp_path / "run" / "thesis.txt").read_text() == "three years"
