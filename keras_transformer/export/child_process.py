"""Runs a program of this folder in a process of its own, for a limited time."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from keras_transformer.errors import VerificationError


@contextlib.contextmanager
def child_process(program, request, timeout_seconds, arguments=()):
    """Starts `python -P PROGRAM *ARGUMENTS REQUEST ANSWER`; gives a function that waits for ANSWER.

    The process leads a group of its own, which is killed as a whole when the time is over or the
    context is left.

    Args:
        program: Path of the Python file.
        request: What the file REQUEST holds as JSON.
        timeout_seconds: Most time from the start to the end of the process.
        arguments: Paths or strings that come before the two files.

    Raises:
        VerificationError: By the function: the process failed, gave no answer or took too long.
    """
    with tempfile.TemporaryDirectory() as exchange:
        question, answer, errors = (Path(exchange) / name for name in ("question", "answer", "err"))
        question.write_text(json.dumps(request), encoding="utf-8")
        # -P: the script's own folder must not be where the process finds its modules.
        command = [sys.executable, "-P", program, *arguments, question, answer]
        with open(errors, "wb") as stderr:
            process = subprocess.Popen(
                [os.fspath(part) for part in command],
                # This process may hold most of a GPU already; take what is needed, not the rest.
                env={"TF_FORCE_GPU_ALLOW_GROWTH": "true", **os.environ},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        end = time.monotonic() + timeout_seconds

        def wait():
            try:
                status = process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise _failed(program, f"no answer after {timeout_seconds:.0f} s") from None
            if status or not answer.is_file():
                text = errors.read_text(encoding="utf-8", errors="replace")
                lines = [line for line in text.splitlines() if line.strip()] or ["no message"]
                raise _failed(program, f"exit status {status}, {lines[-1][:500]}")
            return json.loads(answer.read_text(encoding="utf-8"))

        try:
            yield wait
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _failed(program, received):
    return VerificationError(
        f"What is exported must load and run in a fresh process ({Path(program).name}). "
        f"Received: {received}"
    )
