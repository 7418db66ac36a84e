"""Locks: one process writes to a folder; a temporary folder is removed when its process has ended.

A lock is the operating system's. It ends with its process, also after SIGKILL.
"""

import contextlib
import functools
import itertools
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from keras_transformer.errors import InputError, say

LOCK = ".lock"
"""The file of `locked_folder` where it lies in the folder."""

_ATTEMPTS = 100
_remove_tree = functools.partial(shutil.rmtree, ignore_errors=True)


@contextlib.contextmanager
def locked_folder(path: str | os.PathLike, wait: bool = False) -> Iterator[None]:
    """Holds the lock of a folder, which need not exist: one process at a time writes to it.

    The lock is on the file `.NAME.lock` next to the folder. The file is `.lock` in the folder where
    something is mounted there, or where nothing can be written next to it. On Windows and on
    network file systems without locks nothing is held.

    Args:
        path: Path of the folder.
        wait: Whether to wait for another process that holds the lock.

    Raises:
        InputError: Another process holds the lock, or its file cannot be written.
    """
    if os.name == "nt":
        yield
        return
    folder = Path(os.path.realpath(path))
    is_inside = folder.is_dir() and (
        os.path.ismount(folder) or not os.access(folder.parent, os.W_OK | os.X_OK)
    )
    file = folder / LOCK if is_inside else folder.with_name(f".{folder.name}.lock")
    missing = [parent for parent in file.parents if not parent.exists()]

    def open_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        return os.open(file, os.O_RDWR | os.O_CREAT, 0o666)

    def refuse_or_wait(descriptor):
        holder = f"{os.fspath(path)}: {_holder(descriptor)} writes to this folder"
        if not wait:
            raise InputError(f"{holder}. Wait until it has ended, or give another folder.")
        say(f"{holder}: waiting until it has ended.")

    with _naming(path):
        held = _hold(file, open_file, refuse_or_wait)
    try:
        with _naming(path):
            os.ftruncate(held, 0)
            os.write(held, f"{os.getpid()} {socket.gethostname()}".encode())
        yield
    finally:
        # Removed while it is held: whoever opened it meanwhile sees that and makes another one.
        with contextlib.suppress(OSError):
            file.unlink()
        os.close(held)
        with contextlib.suppress(OSError):
            for parent in missing:
                parent.rmdir()  # Only of a folder that was not made after all.


@contextlib.contextmanager
def _naming(path):
    try:
        yield
    except OSError as error:
        raise InputError(f"{os.fspath(path)}: cannot be written: {error.strerror}.") from None


def _holder(descriptor):
    """The process that a lock's file names, and its machine if that is another one."""
    process, _, machine = os.pread(descriptor, 300, 0).decode(errors="replace").partition(" ")
    if not process:  # It has not written its number yet.
        return "another process"
    return f"process {process}" + f" on {machine}" * (machine != socket.gethostname())


@contextlib.contextmanager
def held_folder(
    start: str | os.PathLike, mode: int = 0o777, remove: Callable[[Path], object] = _remove_tree
) -> Iterator[Path]:
    """Makes a temporary folder, and removes it at the end.

    A lock on the folder says that this process lives. Folders with an equal `start` that killed
    processes left are removed first.

    Args:
        start: Start of the folder's path. A process number and random letters follow.
        mode: Permissions of the folder.
        remove: Removes a folder, while it is held.
    """
    for path in left_behind(start):
        remove(path)
    path = Path(f"{os.fspath(start)}{os.getpid()}-{secrets.token_hex(4)}")

    def open_folder():
        path.mkdir(mode, parents=True, exist_ok=True)
        return os.open(path, os.O_RDONLY)

    with contextlib.ExitStack() as stack:
        stack.callback(os.close, _hold(path, open_folder))
        stack.callback(remove, path)
        yield path


def left_behind(start: str | os.PathLike) -> Iterator[Path]:
    """Yields the folders of `held_folder` whose processes have ended, each while it is held."""
    parent, name = os.path.split(start)
    pattern = re.compile(re.escape(name) + r"\d+-[0-9a-f]{8}")
    remains = []
    with contextlib.suppress(OSError):
        remains = [path for path in Path(parent).iterdir() if pattern.fullmatch(path.name)]
    for path in remains:
        try:
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if _lock(held):
                yield path
        finally:
            os.close(held)


def _hold(path, open_path, when_busy=lambda descriptor: None):
    """Opens and locks a file or folder until the lock is on what has its path.

    Args:
        path: Path of the file or folder.
        open_path: Makes it where it is missing, and returns its descriptor.
        when_busy: Called with the descriptor before waiting for another process.

    Returns:
        The descriptor, which holds the lock until it is closed.
    """
    for attempt in itertools.count(1):
        try:
            descriptor = open_path()
        except FileNotFoundError:  # Another process has just removed it or its parent.
            if attempt == _ATTEMPTS:
                raise
            continue
        try:
            if _lock(descriptor) is False:
                when_busy(descriptor)
                _lock(descriptor, wait=True)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # Another process has removed it before it was held here.


def _lock(descriptor, wait=False):
    """Locks a file or folder: True; False where another process holds it, None without locks."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
