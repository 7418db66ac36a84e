"""Memory of models of hundreds of millions of parameters: whether it suffices, and what is freed.

TensorFlow keeps memory that it has freed, and so does the C library with blocks of up to 32 MiB.
That saves a model of ten million parameters time, and costs one of 600 million twice its weights.
"""

import contextlib
import ctypes
import math
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_transformer.base.errors import InputError, print_message

LARGE_MODEL_BYTES = 1 << 29
"""Bytes of weights from which on a process gives memory back to the system."""
ALLOCATOR = "TF_ONEDNN_USE_SYSTEM_ALLOCATOR"
"""Environment variable of TensorFlow: `1` if the C library allocates its memory."""
_SHARED = 1.6e9  # bytes that TensorFlow, compiled programs and a search take for any model
_MMAP_THRESHOLD, _LEAST_MAPPED = -3, 1 << 21  # of glibc's malloc.h: from so many bytes on
_CGROUPS = (
    # Version 2 of Linux' control groups, then version 1.
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


def use_system_allocator(size: int) -> None:
    """Lets a process give memory back to the system, if its weights take `LARGE_MODEL_BYTES`.

    TensorFlow does so only if it has not been imported.
    """
    if size < LARGE_MODEL_BYTES:
        return
    if "tensorflow" not in sys.modules:  # It reads the variable while it is imported.
        os.environ.setdefault(ALLOCATOR, "1")
    try:
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LEAST_MAPPED)
    except (AttributeError, OSError, TypeError):  # another C library
        pass


def check_memory(size: int, task: str, copies: float = 1.0) -> None:
    """Prepares a process for a model's weights, and warns if the free memory may not suffice.

    Does nothing for weights of less than `LARGE_MODEL_BYTES`.

    Args:
        size: Bytes of the weights.
        task: What needs the memory, for the warning: `"translating with runs/en-de"`.
        copies: How often the weights, or parts of them, are in memory at the same time.

    Raises:
        InputError: One copy of the weights is more than all memory and swap of the machine, or of
            its control group.
    """
    if size < LARGE_MODEL_BYTES:
        return
    total = total_bytes()
    if total is not None and size > total:
        raise InputError(
            f"{task} needs {size / 1e9:.1f} GB of memory for a copy of the weights, and there are "
            f"{total / 1e9:.1f} GB, swap included."
        )
    use_system_allocator(size)
    needed, free = copies * size + _SHARED, free_bytes()
    if free is not None and needed > free:
        print_message(
            f"{task} takes about {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are "
            "free: the system may end it."
        )


def is_large(model: Any) -> bool:
    """Returns whether a model's weights would take `LARGE_MODEL_BYTES` bytes or more in float32.

    Copies of weights of half precision, for a loop, are in float32. Other objects have no weights.
    """
    variables = getattr(model, "variables", ())
    return 4 * sum(math.prod(variable.shape) for variable in variables) >= LARGE_MODEL_BYTES


def give_back() -> None:
    """Returns memory to the system that the C library has freed; compilers leave much of it."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # another C library
        pass


@contextlib.contextmanager
def giving_back(is_needed: bool) -> Iterator[None]:
    """Calls `give_back` every second until the block ends, where a large model needs it.

    One call compiles a program and runs it. The compiler frees more than a gigabyte in small blocks
    before the program takes its own memory.
    """
    if not is_needed:
        yield
        return
    has_ended = threading.Event()

    def give_back_every_second():
        while not has_ended.wait(1.0):
            give_back()

    thread = threading.Thread(target=give_back_every_second, daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
        give_back()


def free_bytes() -> int | None:
    """Returns the memory that this process may still take; None if the system does not tell."""
    known = [*_free_in_groups(), *_on_machine("MemAvailable", "SwapFree")]
    return min(known) if known else None


def total_bytes() -> int | None:
    """Returns the memory and the swap that a process may ever take; None if nobody tells."""
    swap = sum(_on_machine("SwapTotal"))
    limits = [_number(limit_file) + swap for limit_file, _ in _CGROUPS]
    known = [*filter(math.isfinite, limits), *_on_machine("MemTotal", "SwapTotal")]
    return int(min(known)) if known else None


def _on_machine(*names):
    lines = _read("/proc/meminfo").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if names[0] in fields:
        yield sum(int(fields[name].split()[0]) for name in names) * 1024


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
