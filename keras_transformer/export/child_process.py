"""A program of `fresh_process.py` in a process of its own, for a limited time."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer.engine import Engine
from keras_transformer.errors import VerificationError

FRESH_PROCESS = Path(__file__).with_name("fresh_process.py")
SECONDS_PER_ANSWER = 600
"""Most time of an answer, the program's start included. A call of a SavedModel takes about 5 s with
2 million weights on two cores, nearly all of it in XLA's compiler."""
_ENVIRONMENT = {
    # The other process may hold most of a GPU already; take what is needed, not the rest.
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    # Programs are run once: of LLVM's passes only those that pay off at once.
    "XLA_FLAGS": "--xla_backend_optimization_level=1",
}
KERAS = ("keras", "tf_keras")
TENSORFLOW = ("tensorflow", "tensorflow_text")


class ChildProcess:
    """Starts a program; `ask` gives its answers; threads may share it.

    The process leads a group of its own, which is killed as a whole when the context is left. Where
    this process is killed, its end of the pipe closes, and the other ends.

    Args:
        program: A name in `fresh_process.PROGRAMS`.
        hidden: Packages that the process must do without.
        **arguments: Arguments of the program.
    """

    def __init__(self, program: str, hidden: Sequence[str] = (), **arguments: Any):
        self._program, self._lock = program, threading.Lock()
        self._errors = tempfile.TemporaryFile()
        self._pipe, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                # -P: the script's own folder must not be where the process finds its modules.
                [sys.executable, "-P", FRESH_PROCESS, str(theirs.fileno())],
                env={**_ENVIRONMENT, **os.environ},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._pipe.send((program, tuple(hidden), arguments))

    def ask(self, seconds: float = SECONDS_PER_ANSWER, **request: Any) -> Any:
        """Returns the program's answer.

        Raises:
            VerificationError: The process failed or took more than `seconds`.
        """
        with self._lock:
            try:
                self._pipe.send(request)
                if self._pipe.poll(seconds):
                    return self._pipe.recv()
            except (EOFError, OSError):
                raise self._failed(
                    f"exit status {self._process.wait()}, {self._last_line()}"
                ) from None
        raise self._failed(f"no answer after {seconds:.0f} s")

    def _failed(self, received):
        rule = f"What is exported must load and run in a fresh process ({self._program})."
        return VerificationError(f"{rule} Received: {received}")

    def _last_line(self):
        self._errors.seek(0)
        text = self._errors.read().decode("utf-8", errors="replace")
        lines = [line for line in text.splitlines() if line.strip()] or ["no message"]
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


class RemoteEngine(Engine):
    """The engine of an export in a child process that runs the program `engine`."""

    def __init__(self, child: ChildProcess):
        self._child = child

    def translate(self, texts, *arguments, **options):
        return self._child.ask(method="translate", arguments=(texts, *arguments), options=options)

    def score(self, sources, targets, *arguments, **options):
        given = sources, targets, *arguments
        return self._child.ask(method="score", arguments=given, options=options)


@contextlib.contextmanager
def remote_engine(path: str | os.PathLike, hidden: Sequence[str] = KERAS + TENSORFLOW):
    """Gives the engine of an export that `Translator.load` reads in a fresh process."""
    root = os.fspath(Path(__file__).parents[2])
    with ChildProcess("engine", hidden, path=os.fspath(path), root=root) as child:
        yield RemoteEngine(child)
