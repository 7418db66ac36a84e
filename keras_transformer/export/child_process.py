"""Runs a program of `fresh_process.py` in a process of its own, for a limited time."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from keras_transformer.errors import VerificationError
from keras_transformer.owned_folder import held_folder

FRESH_PROCESS = Path(__file__).with_name("fresh_process.py")


@contextlib.contextmanager
def child_process(
    program: str, request: dict, timeout_seconds: float
) -> Iterator[Callable[[], dict | list]]:
    """Starts a program; gives a function that waits for its answer.

    The process leads a group of its own, which is killed as a whole when the time is over or the
    context is left. Where this process is killed, its end of a pipe closes, and the other ends.

    Args:
        program: A name in `fresh_process.PROGRAMS`.
        request: The program's arguments, fit for JSON.
        timeout_seconds: Most time from the start to the end of the process.

    Raises:
        VerificationError: By the function: the process failed, gave no answer or took too long.
    """
    with exchange_folder() as exchange:
        question, answer, errors = (exchange / name for name in ("question", "answer", "err"))
        question.write_text(json.dumps(request), encoding="utf-8")
        with open(errors, "wb") as stderr:
            process = subprocess.Popen(
                # -P: the script's own folder must not be where the process finds its modules.
                [sys.executable, "-P", FRESH_PROCESS, program, question, answer],
                # This process may hold most of a GPU already; take what is needed, not the rest.
                env={"TF_FORCE_GPU_ALLOW_GROWTH": "true", **os.environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        assert process.stdin is not None
        end = time.monotonic() + timeout_seconds

        def failed(received):
            return VerificationError(
                f"What is exported must load and run in a fresh process ({program}). "
                f"Received: {received}"
            )

        def wait():
            try:
                status = process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise failed(f"no answer after {timeout_seconds:.0f} s") from None
            if status or not answer.is_file():
                text = errors.read_text(encoding="utf-8", errors="replace")
                lines = [line for line in text.splitlines() if line.strip()] or ["no message"]
                raise failed(f"exit status {status}, {lines[-1][:500]}")
            return json.loads(answer.read_text(encoding="utf-8"))

        try:
            yield wait
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            process.stdin.close()


def exchange_folder() -> contextlib.AbstractContextManager[Path]:
    """A private temporary folder; those that killed processes left are removed."""
    return held_folder(Path(tempfile.gettempdir(), "keras_transformer-"), mode=0o700)
