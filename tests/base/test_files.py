"""Files and folders appear whole or not at all, for one process at a time."""

import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest

from keras_transformer.base.errors import InputError
from keras_transformer.base.files import (
    MANIFEST,
    OwnedFolder,
    check_writable,
    final_name,
    locked_folder,
    replaced_file,
    temporary_folder,
    write_output,
    write_whole,
)
from keras_transformer.base.reading import iterate_lines
from keras_transformer.engine.steps.glossary import Glossary, glossary_of
from keras_transformer.extras.documents import check_output
from keras_transformer.runs.sections import recipe_text

NUL = "a\0b"


@pytest.mark.parametrize(
    "call",
    [
        Glossary.load,
        glossary_of,
        lambda path: list(iterate_lines(path)),
        recipe_text,
        OwnedFolder,
        lambda path: write_output(path, b""),
        lambda path: locked_folder(path).__enter__(),
        lambda path: check_output("a", path),
        lambda path: check_output(path, "a"),
    ],
)
def test_a_path_with_a_nul_character_is_one_line(call):
    with pytest.raises(InputError, match=r"^The path of a file must have no NUL .*'a\\x00b'\.$"):
        call(NUL)


def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_before_the_call_ends(
    tmp_path, disk
):
    write_whole(tmp_path / "text", "a")
    file, folder = ((tmp_path / name).stat().st_ino for name in ("text", "."))
    assert disk == [("sync", file), ("rename", "text"), ("sync", folder)]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_file_has_the_permissions_of_the_umask_whoever_writes_it(tmp_path, umask):
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "text", "a")
        with replaced_file(tmp_path / "model") as temporary:
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600))  # as safetensors does
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("text", "model"), 0o666 & ~umask)


def test_an_output_goes_through_links_and_into_pipes(tmp_path):
    pipe, link, file = (tmp_path / name for name in ("pipe", "link", "file"))
    os.mkfifo(pipe)
    link.symlink_to(file)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    for path in pipe, link:
        check_writable(path)
        write_output(path, "a")
    reader.join(10)
    assert pipe.is_fifo() and read == ["a"]
    assert link.is_symlink() and file.read_text() == "a"
    for call in check_writable, lambda path: write_output(path, "a"):
        with pytest.raises(InputError, match="must not be empty. Received: ''"):
            call("")


def test_each_name_that_a_file_system_takes_can_be_written(tmp_path):
    names = ["a" * 255, "a" * 251 + ".txt", "b." + "c" * 253, "ß" * 127, "a" * 247, "a" * 246]
    for name in names:
        check_writable(tmp_path / name)
        write_output(tmp_path / name, name)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {n: n for n in names}
    with replaced_file(tmp_path / ("a" * 251 + ".npy")) as temporary:
        np.save(temporary, [7])  # It would add the suffix to another name.
    assert np.load(tmp_path / ("a" * 251 + ".npy")).tolist() == [7]


def test_a_lock_that_cannot_be_closed_hides_no_other_error(tmp_path, monkeypatch):
    close = os.close

    def failing(descriptor):
        close(descriptor)
        raise OSError(5, "Input/output error")

    with pytest.raises(ZeroDivisionError), locked_folder(tmp_path / "a" / "run"):
        monkeypatch.setattr(os, "close", failing)
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_no_content_could_make_is_refused_before_there_is_content(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("a")
    for name, reason in (("a" * 256, "too long"), ("loop", "symbolic"), ("file/a", "Not a dir")):
        with pytest.raises(InputError, match=f"cannot be written: .*{reason}"):
            check_writable(tmp_path / name)


HOLD = """
import signal, sys
from keras_transformer.base.files import temporary_folder
with temporary_folder(sys.argv[1]) as path:
    print(path, flush=True)
    signal.pause()
"""


@pytest.fixture
def holder():
    """`holder(path)` starts a process that holds a folder."""
    processes = []

    def start(path):
        command = [sys.executable, "-c", HOLD, str(path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("is_there", [False, True])
def test_a_lock_leaves_nothing_and_needs_no_folder(tmp_path, is_there):
    folder = tmp_path / "a" / "b" / "run"
    if is_there:
        folder.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with locked_folder(folder):
        with pytest.raises(InputError, match="run: another process writes to this folder"):
            with locked_folder(folder):
                pass
        assert ".run.lock" in os.listdir(folder.parent)
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"), locked_folder(tmp_path / "file/run"):
        pass


@pytest.mark.parametrize("cause", ["mount", "parent"])
def test_a_mount_point_or_a_folder_of_a_read_only_parent_is_refused_with_advice(
    tmp_path, cause, monkeypatch
):
    output = tmp_path / "out"
    output.mkdir()
    (output / "file").write_text("a file of the user")
    if cause == "mount":
        monkeypatch.setattr(os.path, "ismount", lambda path: path == output)
    else:
        monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    message = f"out: must not be a mount point.* Give a folder inside it: {output}/NAME"
    for overwrite in (False, True):
        with pytest.raises(InputError, match=message), OwnedFolder(output).staged(overwrite):
            pass
    assert tree(tmp_path) == {"out": None, "out/file": "a file of the user"}
    make(output / "model")
    assert (output / "model" / MANIFEST).read_text() == "new"


@pytest.mark.slow
def test_processes_that_try_again_write_one_at_a_time(tmp_path):
    code = (
        "import pathlib, sys; from keras_transformer.base.errors import InputError\n"
        "from keras_transformer.base.files import locked_folder\n"
        "count = 0\n"
        "while count < 50:\n"
        "    try:\n"
        "        with locked_folder(sys.argv[1]):\n"
        "            path = pathlib.Path(sys.argv[2])\n"
        "            path.write_text(str(int(path.read_text()) + 1))\n"
        "        count += 1\n"
        "    except InputError:\n"
        "        pass\n"
    )
    counter = tmp_path / "counter"
    counter.write_text("0")
    command = [sys.executable, "-c", code, str(tmp_path / "run"), str(counter)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
    for process in processes:
        _, message = process.communicate(timeout=120)
        assert process.returncode == 0, message
    assert counter.read_text() == "150"
    assert os.listdir(tmp_path) == ["counter"]


def folders_of(parent):
    """Paths in a folder; locks of processes that live are next to their folders."""
    return {str(path) for path in parent.iterdir() if path.suffix != ".lock"}


def test_a_temporary_folder_is_removed_after_its_process_and_no_other_one(tmp_path, holder):
    start = tmp_path / "work-"
    (_, held), (killed, left) = holder(start), holder(start)
    pathlib.Path(left, "file").write_text("")
    pathlib.Path(f"{start}notes").mkdir()
    killed.kill()
    killed.wait()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "thesis.txt").write_text("years of work")
    linked = pathlib.Path(f"{start}1-0123abcd")
    linked.symlink_to(tmp_path / "texts")
    others = {held, f"{start}notes", str(tmp_path / "texts"), str(linked)}
    with temporary_folder(start) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folders_of(tmp_path) == {str(folder), *others}
    assert folders_of(tmp_path) == others
    assert (tmp_path / "texts" / "thesis.txt").read_text() == "years of work"


def make(output, content="new", overwrite=False):
    with OwnedFolder(output).staged(overwrite) as folder:
        (folder / MANIFEST).write_text(content)


def test_the_folder_appears_when_the_block_has_succeeded(tmp_path):
    with OwnedFolder(tmp_path / "a" / "model").staged() as folder:
        with pytest.raises(InputError, match="model: another process writes to this folder. Wait"):
            make(tmp_path / "a" / "model", overwrite=True)
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


@pytest.mark.parametrize(
    "error", [OSError(28, "full", "{}/a"), InputError("{}/a: cannot be made.")]
)
def test_an_error_of_a_file_in_a_folder_names_its_final_path(tmp_path, error):
    with pytest.raises(type(error)) as caught, OwnedFolder(tmp_path / "out").staged() as folder:
        if isinstance(error, OSError):
            error.filename = error.filename.format(folder)
        else:
            error.message = error.message.format(folder)
        raise error
    assert f"{tmp_path}/out/a" in str(caught.value) and "partial" not in str(caught.value)


def test_all_files_are_on_the_disk_before_the_folder_has_its_name(tmp_path, disk):
    make(tmp_path / "out")
    renamed = disk.index(("rename", "out"))
    synced = {inode for event, inode in disk[:renamed] if event == "sync"}
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files and {path.stat().st_ino for path in files} <= synced
    assert ("sync", tmp_path.stat().st_ino) in disk[renamed:]


def interrupt_before_new(source, target, rename=os.rename):
    """`os.rename` that is interrupted before a new folder gets its name."""
    if source.name == "new":
        raise KeyboardInterrupt
    rename(source, target)


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
    (tmp_path / "plan" / "chapters").mkdir(parents=True)
    with pytest.raises(InputError, match="plan: exists already. Give --overwrite"):
        make(tmp_path / "plan")
    for name, message in (("run", "did not make: thesis.txt"), ("file", "must be a folder")):
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
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {name: path.read_text() if path.is_file() else None for name, path in paths.items()}


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


def test_a_name_in_a_manifest_is_that_name_alone(tmp_path):
    output = tmp_path / "model"
    output.mkdir()
    (output / MANIFEST).write_text(json.dumps({"files": ["model.bin"]}))
    (output / "model-bin").write_text("years of work")
    with pytest.raises(InputError, match="did not make: model-bin"):
        make(output, overwrite=True)


@pytest.mark.parametrize("has_marker", [False, True])
def test_files_with_the_names_of_a_runs_are_its_own_beside_its_marker_alone(tmp_path, has_marker):
    (tmp_path / "model.keras").write_text("weights")
    if has_marker:
        (tmp_path / "recipe.yaml").write_text("")
    folder = OwnedFolder(tmp_path, "recipe.yaml", r"recipe\.yaml|model\.keras")
    assert folder.foreign_files() == ([] if has_marker else ["model.keras"])


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
    left = {f"model/{MANIFEST}": "old", "model/thesis.txt": "years of work"}
    assert tree(tmp_path) == {"model": None, **left}


@pytest.mark.parametrize("linked", [False, True])
def test_an_empty_folder_is_filled(tmp_path, linked):
    output = tmp_path / "model"
    output.mkdir()
    if linked:
        (tmp_path / "link").symlink_to(output)
    with OwnedFolder(tmp_path / "link" if linked else output).staged() as folder:
        (folder / MANIFEST).write_text("new")
        (folder / "variables").mkdir()
        (folder / "variables" / "weights").write_text("0")
        assert not (output / MANIFEST).exists()
    assert tree(output) == {MANIFEST: "new", "variables": None, "variables/weights": "0"}
    assert sorted(os.listdir(tmp_path)) == (["link", "model"] if linked else ["model"])


def test_what_another_program_makes_at_the_last_moment_is_not_replaced(tmp_path, monkeypatch):
    output, check = tmp_path / "model", OwnedFolder.check_replaceable
    calls = []

    def checked(folder, *arguments):
        check(folder, *arguments)
        calls.append(folder)
        if len(calls) == 2:  # Between the last check and the rename.
            output.mkdir()
            (output / "thesis.txt").write_text("years of work")

    monkeypatch.setattr(OwnedFolder, "check_replaceable", checked)
    with pytest.raises(InputError, match="model: cannot be written: Directory not empty"):
        make(output, overwrite=True)
    assert tree(tmp_path) == {"model": None, "model/thesis.txt": "years of work"}


def test_a_kill_while_a_failed_output_is_removed_costs_no_file_of_the_earlier_one(
    tmp_path, monkeypatch
):
    output = tmp_path / "model"
    make(output, "old")
    (output / "README.md").write_text("old")

    def killed(folder, **options):
        (folder / "new" / "README.md").unlink()

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "rename", interrupt_before_new)
        patch.setattr(shutil, "rmtree", killed)
        with OwnedFolder(output).staged(overwrite=True) as folder:
            for name in (MANIFEST, "README.md"):
                (folder / name).write_text("new")
    with pytest.raises(InputError, match="exists already"):
        make(output)
    assert tree(tmp_path) == {"model": None, f"model/{MANIFEST}": "old", "model/README.md": "old"}


def test_the_earlier_output_has_its_name_on_the_disk_before_the_new_one_is_removed(
    tmp_path, disk, monkeypatch
):
    output, left = tmp_path / "model", tmp_path / ".model.partial-1-0123abcd"
    for name in ("old", "new"):
        (left / name).mkdir(parents=True)
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: disk.append(("remove", path)))
    with OwnedFolder(output).locked():
        pass
    parent = tmp_path.stat().st_ino
    assert disk == [("rename", "model"), ("sync", parent), ("remove", left)]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".run.lock", "run"),
        (".run.partial-12-0123abcd/new/.history.partial.csv", "run"),
        ("checkpoints/.step-0001-00000003.partial.json", "checkpoints/step-0001-00000003.json"),
        (".terms.partial", "terms"),
        ("run.lock", "run.lock"),
        ("a/.run.lock/b", "a/.run.lock/b"),
        (".run.partial-12-0123abcdef", ".run.partial-12-0123abcdef"),
        ("model.partial.keras", "model.partial.keras"),
        (".model.partial.keras.mine", ".model.partial.keras.mine"),
    ],
)
def test_a_temporary_name_is_that_of_its_output(path, expected):
    assert final_name(path) == expected
