"""Translated files of a server, until its clients fetch them."""

import contextlib
import os
import re
import secrets
import tempfile
import time
import weakref
from pathlib import Path

from keras_transformer.files import temporary_folder, write_output

_KEPT_SECONDS = 3600
# Of all files, because clients decide how many there are.
_KEPT_BYTES, _KEPT_FILES = 1 << 28, 1000
_NAME = re.compile(r"[0-9a-f]{32}\.[\w.-]+")
_MAX_STEM_BYTES = 120


def folder_of_files() -> contextlib.AbstractContextManager[Path]:
    """Returns a context with a temporary folder for `TranslatedFiles`."""
    return temporary_folder(Path(tempfile.gettempdir(), "kt-files-"))


class TranslatedFiles:
    """Keeps files for an hour, under names that nobody can guess.

    Args:
        folder: Folder that other processes may share, whose owner removes it at the end. None makes
            a folder that is removed when this process ends, or later after a kill.
    """

    def __init__(self, folder: str | os.PathLike | None = None):
        if folder is None:
            owned = contextlib.ExitStack()
            folder = owned.enter_context(folder_of_files())
            weakref.finalize(self, owned.close)
        self._folder = Path(folder)

    def add(self, name: str, content: bytes) -> str:
        """Keeps a file; returns a name for `path_of`, which ends with its own name."""
        stem, suffix = os.path.splitext(re.sub(r"[^\w.-]", "_", name))
        stem = stem.encode()[:_MAX_STEM_BYTES].decode(errors="ignore")
        token = f"{secrets.token_hex(16)}.{stem}{suffix}"
        (self._folder / token).write_bytes(content)
        self.remove_old()
        return token

    def put(self, token: str, content: bytes) -> None:
        """Keeps a file under a name that clients know: 32 secret hexadecimal digits, an ending."""
        write_output(self._folder / token, content)
        self.remove_old()

    def path_of(self, token: str) -> Path | None:
        """Returns the path of a file; None if it is not there, or no longer."""
        path = self._folder / token
        with contextlib.suppress(OSError):
            if _NAME.fullmatch(token) and time.time() < path.stat().st_mtime + _KEPT_SECONDS:
                return path
        return None

    def remove_old(self) -> None:
        """Removes files whose hour is over, and the oldest files while there are too many."""
        sizes = {}
        for path in self._folder.glob("*"):
            with contextlib.suppress(OSError):  # Another process may have removed it.
                status = path.stat()
                sizes[path] = (status.st_mtime, status.st_size)
        total, count = sum(size for _, size in sizes.values()), len(sizes)
        for path, (changed, size) in sorted(sizes.items(), key=lambda row: row[1]):
            is_full = total > _KEPT_BYTES or count > _KEPT_FILES
            if not is_full and time.time() < changed + _KEPT_SECONDS:
                break
            path.unlink(missing_ok=True)
            total, count = total - size, count - 1
