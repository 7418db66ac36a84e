"""Translated files of a server, until its clients fetch them."""

import contextlib
import hashlib
import os
import re
import secrets
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_transformer.base.files import temporary_folder, write_output
from keras_transformer.extras.serving.endpoints import Rejection

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
        self.put(token, content)
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


class Documents:
    """Translations of documents for which clients ask again and again.

    Args:
        files: Files that all processes share.
        seconds: Seconds that a translation takes at most.
    """

    def __init__(self, files: TranslatedFiles, seconds: float):
        self._files, self._seconds = files, seconds

    def begin(self) -> dict[str, str]:
        """Begins a translation; returns the answer of `/v2/document`."""
        key = secrets.token_hex(16)
        self._files.put(f"{key}.begun", b"")
        return {"document_id": _id_of(key), "document_key": key}

    def end(self, key: str, content: bytes) -> None:
        """Keeps the translation of a document."""
        self._files.put(f"{key}.done", content)

    def fail(self, key: str, message: str) -> None:
        """Keeps why a document has no translation."""
        self._files.put(f"{key}.failed", message.encode("utf-8"))

    def status(self, document_id: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the answer of `/v2/document/ID`; raises `Rejection` (404)."""
        status, told = self._state(document_id, fields)
        answer: dict[str, Any] = {"document_id": document_id, "status": status}
        if status == "error":
            answer |= {"error_message": told.decode("utf-8")}
        return answer

    def result(self, document_id: str, fields: Mapping[str, Any]) -> bytes:
        """Returns the translated document.

        Raises:
            Rejection: 404 for an unknown document, 503 for a document that is not translated yet,
                400 for a document that cannot be translated.
        """
        status, content = self._state(document_id, fields)
        if status == "error":
            raise Rejection(400, content.decode("utf-8"))
        if status != "done":
            raise Rejection(503, "Document translation is not done")
        return content

    def _state(self, document_id, fields):
        """Returns the status of a document, and its bytes."""
        key = fields.get("document_key")
        expected = _id_of(key).encode() if isinstance(key, str) else b""
        # An id of other characters than ASCII is no text that it compares.
        if expected and secrets.compare_digest(expected, document_id.encode()):
            for state, status in (("done", "done"), ("failed", "error")):
                if path := self._files.path_of(f"{key}.{state}"):
                    return status, path.read_bytes()
            if path := self._files.path_of(f"{key}.begun"):
                if time.time() < path.stat().st_mtime + self._seconds:
                    return "translating", b""
                return "error", b"The process that translated the document has ended"
        raise Rejection(404, "There is no such document: it is kept for an hour")


def _id_of(key):
    """Returns the id of a document, which may be in logs: it does not tell the key."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:32].upper()
