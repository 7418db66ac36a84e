import os
import pathlib
import subprocess
import sys

import pytest

from keras_transformer.errors import InputError
from keras_transformer.locks import held_folder, locked_folder

HOLD = """
import signal, sys
from keras_transformer.locks import held_folder
with held_folder(sys.argv[1]) as path:
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
def test_a_lock_leaves_nothing_and_needs_no_folder(tmp_path, is_there, monkeypatch, small_disk):
    folder = tmp_path / "a" / "b" / "run"
    if is_there:
        folder.mkdir(parents=True)
        # As in a folder in which nothing can be written.
        monkeypatch.setattr(os, "access", lambda path, mode: path != folder.parent)
    before = sorted(tmp_path.rglob("*"))
    with locked_folder(folder):
        with pytest.raises(InputError, match=f"process {os.getpid()} writes"):
            with locked_folder(folder):
                pass
        assert os.listdir(folder if is_there else folder.parent)
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "file").write_text("")
    full = pytest.raises(InputError, match="new: cannot be written: File too large")
    with small_disk(0), full, locked_folder(tmp_path / "new"):
        pass
    with pytest.raises(InputError, match="cannot be written"), locked_folder(tmp_path / "file/run"):
        pass


def test_processes_that_wait_for_each_other_write_one_at_a_time(tmp_path):
    code = (
        "import pathlib, sys; from keras_transformer.locks import locked_folder\n"
        "for _ in range(50):\n"
        "    with locked_folder(sys.argv[1], wait=True):\n"
        "        path = pathlib.Path(sys.argv[2])\n"
        "        path.write_text(str(int(path.read_text()) + 1))\n"
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


def test_a_temporary_folder_is_removed_after_its_process_and_no_other_one(tmp_path, holder):
    start = tmp_path / "work-"
    (_, held), (killed, left) = holder(start), holder(start)
    pathlib.Path(left, "file").write_text("")
    pathlib.Path(f"{start}notes").mkdir()
    killed.kill()
    killed.wait()
    with held_folder(start, 0o700) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {str(path) for path in tmp_path.iterdir()} == {str(folder), held, f"{start}notes"}
    assert {str(path) for path in tmp_path.iterdir()} == {held, f"{start}notes"}
