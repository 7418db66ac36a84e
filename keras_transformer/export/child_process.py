"""Runs a function in a new process, for a limited time."""

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

from keras_transformer.base.errors import VerificationError
from keras_transformer.engine.translator import translate_of

FRESH_PROCESS = Path(__file__).with_name("fresh_process.py")
_ROOT = os.fspath(Path(__file__).parents[2])
SECONDS_PER_ANSWER = 600
"""Time limit of an answer, including the start of the process."""
_ENVIRONMENT = {
    # This process may hold most of a GPU already, so the new process must not reserve the rest.
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    # A compiled function runs once, so only LLVM's cheap passes pay off.
    "XLA_FLAGS": "--xla_backend_optimization_level=1",
}
KERAS = ("keras", "tf_keras")
TENSORFLOW = ("tensorflow", "tensorflow_text")


class ChildProcess:
    """Runs a function in a new process, as a context manager; its result answers requests.

    `start` or the first request starts the process. The process group is killed when the context
    ends, or when this process is killed.

    Args:
        function: `MODULE:FUNCTION` of this package, or `FILE.py:FUNCTION` of a script that does not
            need this package. The function returns a function, which answers requests.
        hidden: Packages that the process cannot import.
        **arguments: Arguments of the function.
    """

    def __init__(self, function: str, hidden: Sequence[str] = (), **arguments: Any):
        self._program = (function, _ROOT, tuple(hidden), arguments)
        self._errors = tempfile.TemporaryFile()
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        """Starts the process, unless it runs."""
        if self._process is not None:
            return
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
        self._send(self._program)

    def send(self, **request: Any) -> None:
        """Sends the next request."""
        self.start()
        self._send(request)

    def _send(self, message):
        with contextlib.suppress(OSError):  # `receive` says why the process has ended.
            self._pipe.send(message)

    def receive(self, seconds: float = SECONDS_PER_ANSWER) -> Any:
        """Returns the next answer; raises `VerificationError` without an answer in time."""
        received = f"no answer after {seconds:.0f} s"
        try:
            if self._pipe.poll(seconds):
                return self._pipe.recv()
        except (EOFError, OSError):
            received = f"exit status {self._process.wait()}, {self._last_line()}"
        rule = f"The export must load and run in a new process ({self._program[0]})."
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
        self._errors.close()
        if self._process is None:
            return
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._pipe.close()


def engine_process(
    path: str | os.PathLike, hidden: Sequence[str] = KERAS + TENSORFLOW
) -> ChildProcess:
    """Returns a process without some packages for the `translate` of `Translator.load(path)`.

    An export's engine needs no Keras, and only a SavedModel's needs TensorFlow.
    """
    function = f"{translate_of.__module__}:{translate_of.__name__}"
    return ChildProcess(function, hidden, path=os.fspath(path))
