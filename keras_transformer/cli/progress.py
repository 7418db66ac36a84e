"""A progress bar on stderr for bytes of text."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

from keras_transformer.base.errors import print_message


@contextlib.contextmanager
def progress_bar(total: int | None = None, shown: bool = True) -> Iterator[Any]:
    """A tqdm bar on stderr for `total` bytes; `advance` and `describe` move it."""
    tqdm.monitor_interval = 0  # no thread that looks after it
    start = "{percentage:3.0f}%|{bar}| " if total else ""
    form = start + "{desc} [{elapsed}" + ("<{remaining}]" if total else "]")
    options = {"bar_format": form, "dynamic_ncols": True, "disable": not shown}
    with tqdm(total=total or None, file=sys.stderr, **options) as bar:
        bar.sentences = 0
        yield bar


def advance(bar: Any, sentences: int, size: int) -> None:
    """Counts finished sentences, of `size` bytes, in a bar, which shows their rate."""
    if not bar.disable:
        bar.sentences += sentences
        rate = bar.sentences / (time.time() - bar.start_t)
        describe(bar, f"{bar.sentences} sentences, {rate:.1f}/s", size)


def describe(bar: Any, text: str, size: int) -> None:
    """Shows a text and `size` more finished bytes in a bar."""
    bar.set_description_str(text, refresh=False)
    # Not `update`, which draws by the clock: chunks come seldom.
    bar.n += size
    bar.refresh()


def say_beside_bar(message: object) -> None:
    """Writes a message to stderr, where a bar on the same terminal is cleared for it."""
    with tqdm.external_write_mode():
        print_message(message)


def size_left(stream: Any) -> int | None:
    """Bytes from here to the end of a file; None if the end is unknown."""
    try:
        descriptor = stream.fileno()
        return max(os.fstat(descriptor).st_size - os.lseek(descriptor, 0, os.SEEK_CUR), 0)
    except (AttributeError, OSError):  # bytes in memory, a pipe, a terminal
        return None
