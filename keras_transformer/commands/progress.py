"""How far a stream of lines has come, on stderr."""

import os
import stat
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from keras_transformer.commands.line_reader import Line


class Progress:
    """A bar with sentences per second and, where the input's size is known, the time left.

    Args:
        total: Bytes of the input; None if unknown.
        shown: Whether there is a bar at all.
        file: Where it and messages are written; stderr by default.
        apart: Whether the results go elsewhere. On one terminal with them, the bar is cleared
            before each.
    """

    def __init__(
        self,
        total: int | None = None,
        shown: bool = True,
        file: TextIO | None = None,
        apart: bool = True,
    ):
        self._file = sys.stderr if file is None else file
        self._apart = apart
        self._sentences = 0
        self._start = time.perf_counter()
        self._bar = _bar(total, self._file) if shown else None
        self._drawn = shown

    def advance(self, lines: Sequence[Line]) -> None:
        """Counts `Line`s that are done."""
        if self._bar is None:
            return
        self._sentences += len(lines)
        rate = self._sentences / (time.perf_counter() - self._start)
        self._bar.set_description_str(f"{self._sentences} sentences, {rate:.1f}/s", refresh=False)
        # Not `update`, which draws by the clock: chunks come seldom.
        self._bar.n += sum(line.size for line in lines)
        self._bar.refresh()
        self._drawn = True

    def log(self, message: str) -> None:
        """Writes a line of its own."""
        self.clear(always=True)
        print(f"keras-transformer: {message}", file=self._file, flush=True)

    def clear(self, always: bool = False) -> None:
        """Takes the bar away, until the next `advance`, for what is to be written there."""
        if self._drawn and (always or not self._apart):
            self._bar.clear()
            self._drawn = False

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self._bar is not None:
            self._bar.close()


def size_left(stream) -> int | None:
    """Bytes from here to the end of a regular file; None if the end is unknown."""
    try:
        descriptor = stream.fileno()
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        return max(found.st_size - os.lseek(descriptor, 0, os.SEEK_CUR), 0)
    except (AttributeError, OSError):
        return None


def _bar(total, file):
    from tqdm import tqdm

    class Bar(tqdm):
        monitor_interval = 0  # no thread that looks after it

    left = "{percentage:3.0f}%|{bar}| " if total else ""
    time_left = "<{remaining}" if total else ""
    return Bar(
        total=total or None,
        file=file,
        bar_format=left + "{desc} [{elapsed}" + time_left + "]",
        dynamic_ncols=True,
    )
