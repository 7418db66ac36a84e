"""Runs a program of `fresh_process.py` in a new process, for a limited time."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer.errors import VerificationError

FRESH_PROCESS = Path(__file__).with_name("fresh_process.py")
SECONDS_PER_ANSWER = 600
"""Time limit of an answer, including the start of the program."""
_ENVIRONMENT = {
    # This process may hold most of a GPU already, so the new process must not reserve the rest.
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    # A compiled function runs once, so only LLVM's cheap passes pay off.
    "XLA_FLAGS": "--xla_backend_optimization_level=1",
}
KERAS = ("keras", "tf_keras")
TENSORFLOW = ("tensorflow", "tensorflow_text")


class ChildProcess:
    """Starts a program that answers requests, as a context manager.

    Its process group is killed when the context ends, or when this process is killed.

    Args:
        program: Name in `fresh_process.PROGRAMS`.
        hidden: Packages that the process cannot import.
        **arguments: Arguments of the program.
    """

    def __init__(self, program: str, hidden: Sequence[str] = (), **arguments: Any):
        self._program, self._errors = program, tempfile.TemporaryFile()
        self._pipe, other_end = multiprocessing.Pipe()
        with other_end:
            self._process = subprocess.Popen(
                # -P: the script's own directory is not where the process finds its modules.
                [sys.executable, "-P", FRESH_PROCESS, str(other_end.fileno())],
                env={**_ENVIRONMENT, **os.environ},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[other_end.fileno()],
                start_new_session=True,
            )
        self._pipe.send((program, tuple(hidden), arguments))

    def send(self, **request: Any) -> None:
        """Sends the next request."""
        with contextlib.suppress(OSError):  # `receive` says why the process has ended.
            self._pipe.send(request)

    def receive(self, seconds: float = SECONDS_PER_ANSWER) -> Any:
        """Returns the program's answer; raises `VerificationError` without an answer in time."""
        received = f"no answer after {seconds:.0f} s"
        try:
            if self._pipe.poll(seconds):
                return self._pipe.recv()
        except (EOFError, OSError):
            received = f"exit status {self._process.wait()}, {self._last_line()}"
        rule = f"The export must load and run in a new process ({self._program})."
        raise VerificationError(f"{rule} Received: {received}")

    def _last_line(self):
        self._errors.seek(0)
        text = self._errors.read().decode("utf-8", errors="replace")
        is_killed = self._process.returncode == -signal.SIGKILL
        default = "killed, as the system does if memory runs out" if is_killed else "no message"
        lines = [line for line in text.splitlines() if line.strip()] or [default]
        return lines[-1][:500]

    def __enter__(self) -> "ChildProcess":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._pipe.close()
        self._errors.close()


def named_process(function: str, hidden: Sequence[str] = (), **arguments: Any) -> ChildProcess:
    """Starts a function of this package, `MODULE:FUNCTION`, which returns what answers requests."""
    root = os.fspath(Path(__file__).parents[2])
    return ChildProcess("named", hidden, name=function, root=root, **arguments)


def engine_process(path: str | os.PathLike) -> ChildProcess:
    """Starts `Translator.load(path)` in a process that can import neither Keras nor TensorFlow."""
    function = "keras_transformer.engine.translator:translate_of"
    return named_process(function, KERAS + TENSORFLOW, path=os.fspath(path))
