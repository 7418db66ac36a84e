"""A disk whose n-th change fails, or before whose n-th change the process is killed.

It replaces Python's own calls. What a C library writes by itself is not counted.
"""

import builtins
import errno
import io
import os

import pytest

KINDS = {"full": errno.ENOSPC, "broken": errno.EIO, "killed": None}
_OF_FILES = ("write", "pwrite", "fsync", "ftruncate", "sendfile")
_OF_PATHS = ("mkdir", "link", "symlink", "open")
_RENAMING = ("rename", "replace")  # These need no space.
_REMOVING = ("unlink", "remove", "rmdir")  # These do not fail. A kill may come before them.


class KilledError(BaseException):
    """Ends a call as a kill ends a process: nothing changes on the disk afterwards."""


class FailingDisk:
    """Counts the calls that change something below `root`; `changes` names them in order.

    Call number `failing` fails once ("broken"), or all from there on fail ("full"), or the process
    is "killed" before it.
    """

    def __init__(self, root, failing=0, kind="broken"):
        self._start, self._failing, self._kind = f"{root}{os.sep}", failing, kind
        self._is_dead, self._patch, self.changes = False, pytest.MonkeyPatch(), []

    def change(self, name, file, folder=None):
        """Counts a call for a path or a descriptor; returns whether the process is dead."""
        if self._is_dead:
            return True
        if isinstance(file, int):
            place = os.readlink(f"/proc/self/fd/{file}")
        else:  # Its last name may be a link.
            start = "" if folder is None else f"/proc/self/fd/{folder}/"
            place = os.path.realpath(os.path.dirname(f"{start}{os.fspath(file)}"))
        if not f"{place}{os.sep}".startswith(self._start):
            return False
        self.changes.append(name)
        number = len(self.changes)
        if not self._failing or number < self._failing:
            return False
        if self._kind == "killed":
            self._is_dead = True
            raise KilledError
        is_hit = number == self._failing if self._kind == "broken" else name not in _RENAMING
        if is_hit and name not in _REMOVING:
            names = () if isinstance(file, int) else (os.fspath(file),)
            raise OSError(KINDS[self._kind], os.strerror(KINDS[self._kind]), *names)
        return False

    def __enter__(self):
        disk, real_open = self, io.open

        class File(io.FileIO):
            def write(self, data):
                return len(data) if disk.change("write", self.fileno()) else super().write(data)

            def truncate(self, size=None):
                return size if disk.change("truncate", self.fileno()) else super().truncate(size)

        def opened(path, mode="r", buffering=-1, encoding=None, *arguments, **options):
            if not set(mode) & set("wxa+"):
                return real_open(path, mode, buffering, encoding, *arguments, **options)
            if not isinstance(path, int) and disk.change("open", path):
                raise KilledError
            raw = File(
                path, mode.replace("b", "").replace("t", ""), opener=options.pop("opener", None)
            )
            buffered = io.BufferedRandom if "+" in mode else io.BufferedWriter
            binary = raw if buffering == 0 else buffered(raw)
            return (
                binary if "b" in mode else io.TextIOWrapper(binary, encoding, *arguments, **options)
            )

        def counted(name, call):
            def counted_call(file, *arguments, **options):
                is_read = name == "open" and not arguments[0] & (
                    os.O_CREAT | getattr(os, "O_TMPFILE", 0)
                )
                if not is_read and disk.change(name, file, options.get("dir_fd")):
                    if name in ("open", "mkdir"):
                        raise KilledError
                    return len(arguments[0]) if name in ("write", "pwrite") else None
                return call(file, *arguments, **options)

            return counted_call

        for name in filter(
            lambda name: hasattr(os, name), (*_OF_FILES, *_OF_PATHS, *_RENAMING, *_REMOVING)
        ):
            self._patch.setattr(os, name, counted(name, getattr(os, name)))
        self._patch.setattr(io, "open", opened)
        self._patch.setattr(builtins, "open", opened)
        return self

    def __exit__(self, *_):
        self._patch.undo()
