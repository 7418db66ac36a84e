import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest

from keras_transformer.errors import InputError
from keras_transformer.locks import held_folder, locked_folder

HOLD = """
import signal, sys
from keras_transformer import locks
with getattr(locks, sys.argv[1])(sys.argv[2]) as path:
    print(path, flush=True)
    signal.pause()
"""


@pytest.fixture
def holder():
    """`holder(name, path)` starts a process that holds a context of `locks`."""
    processes = []

    def start(name, path):
        command = [sys.executable, "-c", HOLD, name, str(path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_a_process_may_wait_for_the_first_one(tmp_path, capsys, holder):
    first, _ = holder("locked_folder", tmp_path / "model")
    threading.Timer(0.5, first.kill).start()
    with locked_folder(tmp_path / "model", wait=True):
        assert f"process {first.pid} writes to this folder: waiting" in capsys.readouterr().err
        assert first.poll() == -signal.SIGKILL or first.wait() == -signal.SIGKILL
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("is_there", [False, True])
def test_a_lock_leaves_nothing_and_needs_no_folder(tmp_path, is_there, monkeypatch):
    folder = tmp_path / "a" / "b" / "run"
    if is_there:
        folder.mkdir(parents=True)
        # As where nothing can be written beside it.
        monkeypatch.setattr(os, "access", lambda path, mode: path != folder.parent)
    before = sorted(tmp_path.rglob("*"))
    with locked_folder(folder):
        with pytest.raises(InputError, match=f"process {os.getpid()} writes"):
            with locked_folder(folder):
                pass
        assert os.listdir(folder if is_there else folder.parent)
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "file").write_text("")
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
    (_, kept), (killed, left) = holder("held_folder", start), holder("held_folder", start)
    pathlib.Path(left, "file").write_text("")
    pathlib.Path(f"{start}notes").mkdir()
    killed.kill()
    killed.wait()
    with held_folder(start, 0o700) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {str(path) for path in tmp_path.iterdir()} == {str(folder), kept, f"{start}notes"}
    assert {str(path) for path in tmp_path.iterdir()} == {kept, f"{start}notes"}
