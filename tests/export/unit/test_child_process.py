"""A process that loads an export ends with its parent, its time or its failure."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from keras_transformer.base.errors import VerificationError
from keras_transformer.export import child_process as module
from keras_transformer.export import fresh_process
from keras_transformer.export.child_process import ChildProcess, engine_process


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """`ask(program, seconds)`: the answer of a process that runs this program with a pipe."""

    def ask(program, seconds=60):
        path = tmp_path / "program.py"
        path.write_text(
            "import os, sys, time, pathlib\nfrom multiprocessing.connection import Connection\n"
            f"pipe = Connection(int(sys.argv[1]))\n{program}"
        )
        monkeypatch.setattr(module, "FRESH_PROCESS", path)
        with ChildProcess("module:function", ("keras",), path="model") as child:
            child.send(texts=["ä"])
            return child.receive(seconds)

    return ask


def test_the_process_gets_the_program_and_the_request_and_gives_the_answer(ask):
    (name, _, *rest), request = ask("pipe.send([pipe.recv(), pipe.recv()])\ntime.sleep(60)")
    assert (name, *rest) == ("module:function", ("keras",), {"path": "model"})
    assert request == {"texts": ["ä"]}


FAILURES = [("pass", "exit status 0, no message"), ("sys.exit(7)", "exit status 7, no message")]
FAILURES += [("print('one', file=sys.stderr)\nsys.exit('two\\n\\n')", "exit status 1, two$")]
FAILURES += [("pipe.recv()\nraise OSError('three')", "exit status 1, OSError: three$")]
FAILURES += [
    ("import os\nos.kill(os.getpid(), 9)", "exit status -9, killed, as .* memory runs out$")
]


@pytest.mark.parametrize(("program", "message"), FAILURES)
def test_a_process_that_fails_is_told_by_its_last_line(ask, program, message):
    with pytest.raises(VerificationError, match=f"must load and run .* Received: .*{message}"):
        ask(program)


def test_a_process_that_ends_before_it_is_told_what_to_run_is_no_other_error(ask, monkeypatch):
    start = subprocess.Popen

    def ended(*arguments, **options):
        process = start(*arguments, **options)
        process.wait()
        return process

    monkeypatch.setattr(subprocess, "Popen", ended)
    with pytest.raises(VerificationError, match="Received: exit status 7, no message"):
        ask("sys.exit(7)")


@pytest.mark.parametrize("flags", [None, "--xla_dump_to=here"])
def test_the_environment_of_a_user_is_kept(ask, monkeypatch, flags):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    if flags:
        monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "false")
    names = "XLA_FLAGS", "TF_FORCE_GPU_ALLOW_GROWTH"
    received = ask(f"pipe.send([os.environ[name] for name in {names}])\ntime.sleep(60)")
    assert received == [flags or "--xla_backend_optimization_level=1", "false"]


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
    with pytest.raises(VerificationError, match=r"function\). Received: no answer after 3 s$"):
        ask(program, seconds=3)
    assert time.monotonic() - start < 30
    check_ends(child.read_text())


PARENT = """
import subprocess, sys, time
from keras_transformer.export.child_process import ChildProcess
function = "keras_transformer.base.errors:show"
child = ChildProcess(function, ("keras", "tensorflow"), path="/dev/null")
child.start()
print(child._process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_kill_of_the_parent_ends_the_process(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    child = parent.stdout.readline().strip()
    try:
        parent.kill()
        parent.communicate()
        check_ends(child)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)


@pytest.mark.slow
def test_a_folder_that_is_no_export_is_told_in_one_line(tmp_path):
    with engine_process(tmp_path) as child:
        child.send(texts=["a"])
        with pytest.raises(VerificationError, match=r"Received: exit status 1, .*neither a run"):
            child.receive()


KERAS_ERROR = ValueError(
    "Exception in F.call().\n\n\x1b[1mtoo long\x1b[0m\n\nArguments:\n  • x=None"
)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (KERAS_ERROR, "ValueError: Exception in F.call(). too long"),
        (KeyError(), "KeyError: no message"),
        (ImportError("halted", name="keras"), "it imports keras, which is hidden from it"),
        (ImportError("halted", name="numpy"), "ImportError: halted"),
    ],
)
def test_an_error_in_the_process_is_one_line(error, line):
    assert fresh_process.message_of(error, ("keras", "tensorflow")) == line
