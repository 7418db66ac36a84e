import json
import os
import shutil
import subprocess
import sys

import pytest

from keras_transformer.errors import InputError
from keras_transformer.owned_folder import MANIFEST, OwnedFolder


def make(output, content="new", overwrite=False):
    with OwnedFolder(output).staged(overwrite) as folder:
        (folder / MANIFEST).write_text(content)


def test_the_folder_appears_when_the_block_has_succeeded(tmp_path):
    with OwnedFolder(tmp_path / "a" / "model").staged() as folder:
        temporary, *_ = folder.relative_to(tmp_path / "a").parts
        assert temporary.startswith(".model.partial-")
        (folder / MANIFEST).write_text("{}")
        assert not (tmp_path / "a" / "model").exists()
    assert os.listdir(tmp_path / "a") == ["model"]
    assert os.listdir(tmp_path / "a" / "model") == [MANIFEST]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("before", [None, "old"])
def test_a_failure_leaves_what_was_there(tmp_path, error, before):
    output = tmp_path / "model"
    if before:
        make(output, before)
    with pytest.raises(error), OwnedFolder(output).staged(overwrite=True) as folder:
        (folder / "half").write_text("half")
        raise error
    assert os.listdir(tmp_path) == (["model"] if before else [])
    assert not before or (output / MANIFEST).read_text() == before


def test_all_files_are_on_the_disk_before_the_folder_has_its_name(tmp_path, disk):
    make(tmp_path / "out")
    renamed = disk.index(("rename", "out"))
    synced = {inode for event, inode in disk[:renamed] if event == "sync"}
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files and {path.stat().st_ino for path in files} <= synced
    assert ("sync", tmp_path.stat().st_ino) in disk[renamed:]


def test_a_failure_to_rename_puts_the_earlier_export_back(tmp_path, monkeypatch):
    output, rename = tmp_path / "model", os.rename
    make(output, "old")

    def fail(source, target):
        if source.parent.name == "new":
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(KeyboardInterrupt):
        make(output, overwrite=True)
    assert os.listdir(tmp_path) == ["model"] and (output / MANIFEST).read_text() == "old"


def test_the_earlier_export_behind_a_link_is_replaced_when_asked(tmp_path):
    make(tmp_path / "model", "old")
    (tmp_path / "link").symlink_to(tmp_path / "model")
    with pytest.raises(InputError, match="exists already. Give --overwrite"):
        make(tmp_path / "link")
    assert (tmp_path / "model" / MANIFEST).read_text() == "old"
    make(tmp_path / "link", "new", overwrite=True)
    assert (tmp_path / "model" / MANIFEST).read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["link", "model"]


def test_nothing_but_an_export_is_replaced(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("three years")
    (tmp_path / "file").write_text("text")
    for name, message in (("run", "only an earlier output"), ("file", "must be a folder")):
        with pytest.raises(InputError, match=message):
            make(tmp_path / name, overwrite=True)
    with pytest.raises(InputError, match="cannot be written"):
        make(tmp_path / "file" / "model")
    assert (tmp_path / "run" / "thesis.txt").read_text() == "three years"


def test_an_output_with_a_marker_of_its_own_is_replaced(tmp_path):
    report = tmp_path / "seen" / "report.json"
    for page in ("old.html", "new.html"):
        with OwnedFolder(tmp_path / "seen", report.name).staged(overwrite=True) as folder:
            (folder / page).write_text("")
            (folder / report.name).write_text(json.dumps({"files": [page, report.name]}))
        assert sorted(os.listdir(tmp_path / "seen")) == [page, report.name]
    (tmp_path / "seen" / MANIFEST).write_text("{}")
    with pytest.raises(InputError, match=f"did not make: {MANIFEST}"):
        with OwnedFolder(tmp_path / "seen", report.name).staged(overwrite=True):
            pass


def tree(folder):
    """Every path below a folder, with the content of files."""
    return {
        path.relative_to(folder).as_posix(): path.read_text() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("extra", ["thesis.txt", "variables/thesis.txt"])
def test_an_export_with_anything_else_in_its_folder_is_left_alone(tmp_path, extra):
    output = tmp_path / "model"
    files = ["variables/weights", "saved_model.pb"]
    for file in ["variables/weights", "saved_model.pb", "README.md", extra]:
        (output / file).parent.mkdir(parents=True, exist_ok=True)
        (output / file).write_text("content")
    (output / MANIFEST).write_text(json.dumps({"files": files}))
    before = tree(output)
    with pytest.raises(InputError, match=f"did not make: {extra}"):
        make(output, overwrite=True)
    assert tree(output) == before and os.listdir(tmp_path) == ["model"]
    (output / extra).unlink()
    make(output, overwrite=True)
    assert tree(output) == {MANIFEST: "new"}


def test_a_link_in_an_export_is_none_of_its_files(tmp_path):
    output = tmp_path / "model"
    make(output, "old")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "thesis.txt").write_text("years of work")
    (output / "assets").symlink_to(tmp_path / "texts")
    with pytest.raises(InputError, match="did not make: assets"):
        make(output, overwrite=True)
    assert (output / "assets" / "thesis.txt").read_text() == "years of work"


def test_what_came_into_the_folder_meanwhile_is_left_alone(tmp_path):
    output = tmp_path / "model"
    make(output, "old")
    with pytest.raises(InputError, match="thesis"), OwnedFolder(output).staged(overwrite=True):
        (output / "thesis.txt").write_text("years of work")
    assert tree(tmp_path) == {
        "model": None,
        f"model/{MANIFEST}": "old",
        "model/thesis.txt": "years of work",
    }


@pytest.mark.parametrize("linked", [False, True])
def test_an_empty_folder_is_filled_and_stays_itself(tmp_path, linked):
    output = tmp_path / "model"
    output.mkdir()
    inode = output.stat().st_ino
    if linked:
        (tmp_path / "link").symlink_to(output)
    # What an interrupted export left behind is no content.
    (output / ".model.partial-1-00").mkdir()
    with OwnedFolder(tmp_path / "link" if linked else output).staged() as folder:
        (folder / MANIFEST).write_text("new")
        (folder / "variables").mkdir()
        (folder / "variables" / "weights").write_text("0")
        assert not (output / MANIFEST).exists()
    assert output.stat().st_ino == inode
    assert tree(output) == {
        MANIFEST: "new",
        "variables": None,
        "variables/weights": "0",
        ".model.partial-1-00": None,
    }


def test_a_kill_while_a_failed_output_is_removed_costs_no_file_of_the_earlier_one(
    tmp_path, monkeypatch
):
    mounted, rename = tmp_path / "model", os.rename
    monkeypatch.setattr(os.path, "ismount", lambda path: path == mounted)
    mounted.mkdir()
    make(mounted, "old")
    (mounted / "README.md").write_text("old")

    def fail(source, target):
        if source.name == MANIFEST and source.parent.name == "new":
            raise KeyboardInterrupt
        rename(source, target)

    def killed(folder, **options):
        (folder / "new" / "README.md").unlink()

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "rename", fail)
        patch.setattr(shutil, "rmtree", killed)
        with OwnedFolder(mounted).staged(overwrite=True) as folder:
            for name in (MANIFEST, "README.md"):
                (folder / name).write_text("new")
    with pytest.raises(InputError, match="exists already"):
        make(mounted)
    assert tree(mounted) == {MANIFEST: "old", "README.md": "old"}


KILLED = """
import os, signal, sys
from keras_transformer.owned_folder import MANIFEST, OwnedFolder
output, renames, mounted = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
rename, ismount = os.rename, os.path.ismount
os.path.ismount = lambda path: mounted and str(path) == output or ismount(path)

def killed(source, target):
    global renames
    if renames == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    renames -= 1
    rename(source, target)

os.rename = killed
with OwnedFolder(output).staged(overwrite=True) as folder:
    for name in (MANIFEST, "README.md", "config.json"):
        (folder / name).write_text("new")
    print(folder, flush=True)
    if renames < 0:
        signal.pause()
"""


def start(output, renames, mounted=False):
    """A process that makes a folder; it waits, or is killed after some renames."""
    command = [sys.executable, "-c", KILLED, str(output), str(renames), str(mounted)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_second_process_is_refused_until_the_first_one_has_ended(tmp_path):
    output = tmp_path / "model"
    first = start(output, -1)
    first.stdout.readline()
    before = tree(tmp_path)
    with pytest.raises(InputError, match=f"model: process {first.pid} writes to this folder. Wait"):
        make(output, overwrite=True)
    assert tree(tmp_path) == before
    first.kill()
    first.communicate()
    make(output)
    assert tree(tmp_path) == {"model": None, f"model/{MANIFEST}": "new"}


OLD = dict.fromkeys((MANIFEST, "README.md", "model.bin"), "old")
NEW = dict.fromkeys((MANIFEST, "README.md", "config.json"), "new")


@pytest.mark.parametrize(("mounted", "renames"), [(False, 2), (True, 6)])
def test_a_kill_at_any_moment_leaves_one_whole_output_to_the_next_call(
    tmp_path, mounted, renames, monkeypatch
):
    output, outputs = tmp_path / "model", []
    monkeypatch.setattr(os.path, "ismount", lambda path: mounted and path == output)
    for count in range(renames + 1):
        output.mkdir()
        for name, content in OLD.items():
            (output / name).write_text(content)
        start(output, count, mounted).communicate(timeout=60)
        with pytest.raises(InputError, match="exists already. Give --overwrite"):
            make(output)
        outputs.append(tree(output))
        assert os.listdir(tmp_path) == ["model"]
        shutil.rmtree(output)
    assert outputs == [OLD] * renames + [NEW]


@pytest.mark.parametrize("renames", range(3))
def test_a_kill_while_an_empty_folder_is_filled_leaves_it_empty_to_the_next_call(tmp_path, renames):
    output = tmp_path / "model"
    output.mkdir()
    start(output, renames).communicate(timeout=60)
    assert not (output / MANIFEST).exists() and len(tree(output)) > 1
    make(output)
    assert tree(tmp_path) == {"model": None, f"model/{MANIFEST}": "new"}
