"""Memory of models of hundreds of millions of parameters: whether it suffices, and what is freed.

TensorFlow keeps memory that it has freed, and so does the C library with blocks of up to 32 MiB.
That saves a model of ten million parameters time, and costs one of 600 million twice its weights.
"""

import ctypes
import math
import os
import sys
from pathlib import Path
from typing import Any

from keras_transformer.errors import say

LARGE = 1 << 29
"""Bytes of weights from which on a process gives memory back to the system."""
ALLOCATOR = "TF_ONEDNN_USE_SYSTEM_ALLOCATOR"
"""Environment variable of TensorFlow: `1` if the C library allocates its memory."""
_SHARED = 1.1e9  # bytes that TensorFlow and compiled programs take for any model
_MMAP_THRESHOLD, _LEAST_MAPPED = -3, 1 << 21  # of glibc's malloc.h: from so many bytes on
_CGROUPS = (
    # Version 2 of Linux' control groups, then version 1.
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


def prepare(size: int) -> None:
    """Lets a process give memory back to the system, if a model's weights take `LARGE` bytes.

    TensorFlow does so only if it has not been imported.
    """
    if size < LARGE:
        return
    if "tensorflow" not in sys.modules:  # It reads the variable while it is imported.
        os.environ.setdefault(ALLOCATOR, "1")
    try:
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LEAST_MAPPED)
    except (AttributeError, OSError, TypeError):  # another C library
        pass


def expect_weights(size: int, task: str, copies: float = 1.0) -> None:
    """Prepares a process for a model's weights, and warns if memory may not suffice.

    Does nothing for weights of less than `LARGE`.

    Args:
        size: Bytes of the weights.
        task: What needs the memory, for the warning: `"translating with runs/en-de"`.
        copies: How often the weights, or parts of them, are in memory at the same time.
    """
    if size < LARGE:
        return
    prepare(size)
    needed, free = copies * size + _SHARED, free_bytes()
    if free is not None and needed > free:
        say(
            f"{task} takes about {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are "
            "free: the system may end it."
        )


def is_large(model: Any) -> bool:
    """Returns whether a model's weights take at least `LARGE` bytes; other objects have none."""
    variables = getattr(model, "variables", ())
    return sum(math.prod(v.shape) * (2 if "16" in v.dtype else 4) for v in variables) >= LARGE


def give_back() -> None:
    """Returns memory to the system that the C library has freed; compilers leave much of it."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # another C library
        pass


def free_bytes() -> int | None:
    """Returns the memory that this process may still take; None if the system does not tell."""
    known = [*_free_in_groups(), *_free_on_machine()]
    return min(known) if known else None


def _free_on_machine():
    lines = _read("/proc/meminfo").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if "MemAvailable" in fields:
        kilobytes = sum(int(fields[name].split()[0]) for name in ("MemAvailable", "SwapFree"))
        yield kilobytes * 1024


def _free_in_groups():
    for limit_file, used_file in _CGROUPS:
        limit, used = _number(limit_file), _number(used_file)
        if math.isfinite(limit + used):
            # Pages of files count as used, and are given up when memory is needed.
            yield int(max(0, limit - used + _file_pages(limit_file)))


def _file_pages(limit_file):
    lines = (line.split() for line in _read(Path(limit_file).with_name("memory.stat")).splitlines())
    counts = {line[0]: int(line[1]) for line in lines if len(line) == 2}
    # Version 1 counts the pages of groups within the group only in the total.
    return counts.get("total_inactive_file", counts.get("inactive_file", 0))


def _number(path):
    text = _read(path).strip()
    return int(text) if text.isdecimal() else math.inf


def _read(path):
    try:
        return Path(path).read_text()
    except OSError:
        return ""
