import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from keras_transformer.errors import VerificationError
from keras_transformer.export import child_process as module
from keras_transformer.export.child_process import child_process, exchange_folder


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """`ask(program)`: what a process that runs this program answers."""

    def ask(program, timeout_seconds=60):
        path = tmp_path / "program.py"
        path.write_text(
            f"import os, sys, pathlib, time\nname, request, answer = sys.argv[1:]\n{program}"
        )
        monkeypatch.setattr(module, "FRESH_PROCESS", path)
        with child_process("litert", {"batches": [["ä"], []]}, timeout_seconds) as wait:
            return wait()

    return ask


def test_the_process_gets_the_request_and_gives_the_answer(ask):
    copy = "pathlib.Path(answer).write_bytes(pathlib.Path(request).read_bytes())"
    assert ask(copy) == {"batches": [["ä"], []]}
    assert ask("pathlib.Path(answer).write_text(f'[\"{name}\"]')") == ["litert"]


FAILING = {
    "no answer": ("pass", "exit status 0, no message"),
    "an exit status": ("sys.exit(7)", "exit status 7, no message"),
    "lines": ("print('one', file=sys.stderr)\nsys.exit('two\\n\\n')", "exit status 1, two$"),
    "an exception after the answer": (
        "pathlib.Path(answer).write_text('[]')\nraise OSError('three')",
        "exit status 1, OSError: three$",
    ),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_process_that_fails_is_told_by_its_last_line(ask, case):
    program, message = FAILING[case]
    with pytest.raises(VerificationError, match=f"must load and run .* Received: .*{message}"):
        ask(program)


def check_ends(pid):
    for _ in range(100):  # Its new parent may take a while to notice.
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True
        ).stdout.strip()
        if not state or state.startswith("Z"):
            return
        time.sleep(0.1)
    raise AssertionError(state)


def test_a_process_that_hangs_ends_with_its_children_when_its_time_is_over(ask, tmp_path):
    child = tmp_path / "child"
    program = (
        "import subprocess\n"
        f"pathlib.Path({str(child)!r}).write_text(str(subprocess.Popen(['sleep', '60']).pid))\n"
        "time.sleep(60)"
    )
    start = time.monotonic()
    with pytest.raises(VerificationError, match=r"\(litert\). Received: no answer after 3 s$"):
        ask(program, timeout_seconds=3)
    assert time.monotonic() - start < 30
    check_ends(child.read_text())


def test_an_interrupt_ends_the_process(tmp_path):
    program = tmp_path / "sleep.py"
    program.write_text("import time\ntime.sleep(60)")
    started = []

    def popen(*args, **options):
        started.append(subprocess_popen(*args, **options))
        return started[0]

    subprocess_popen = subprocess.Popen
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(subprocess, "Popen", popen)
        monkeypatch.setattr(module, "FRESH_PROCESS", program)
        with pytest.raises(KeyboardInterrupt), child_process("litert", {}, 60):
            assert os.getpgid(started[0].pid) == started[0].pid  # a group of its own
            raise KeyboardInterrupt
    assert started[0].poll() is not None


PARENT = """
import subprocess, sys
from keras_transformer.export.child_process import child_process
started = subprocess.Popen

def popen(*args, **options):
    process = started(*args, **options)
    print(process.pid, flush=True)
    return process

subprocess.Popen = popen
graph = {"graph": sys.argv[1], "custom_operations": False}
with child_process("conversion", {"functions": [graph]}, 600) as wait:
    wait()
"""


def test_a_kill_ends_the_process_too_and_the_next_one_removes_what_is_left(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "graph")  # The process waits for it, for ever.
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "graph")],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
    )
    child = parent.stdout.readline().strip()
    try:
        parent.kill()
        parent.communicate()
        check_ends(child)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert len(os.listdir(temporary)) == 1
    with exchange_folder() as folder:
        assert os.listdir(temporary) == [folder.name]
        assert folder.stat().st_mode & 0o077 == 0
    assert os.listdir(temporary) == []
