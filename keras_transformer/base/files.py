"""Writes files and folders completely or not at all; only this module renames and locks.

Four ideas keep what a user has made whole after a kill, a loss of power or on a full disk:

- A temporary sibling. A file is written as `.NAME.partial.SUFFIX` next to its place, a folder as
  `.NAME.partial-PROCESS-LETTERS/new`. All of it is synced to the disk before it gets its name.
- A rename. It gives a file its name; two renames exchange a folder (`OwnedFolder.replaced`).
- A lock of `filelock`, `.NAME.lock` next to an output: one process at a time writes there. The
  operating system releases it when the process ends. So a process with the lock knows that
  temporary siblings are the remains of a killed process.
- A marker, which every folder of a command has. `OwnedFolder.is_mine` is the only rule which
  command made a file. `--overwrite` replaces a folder only if its command made all files in it.

A kill leaves a folder in one of four states, and the next process does what is in brackets:

    before      NAME or nothing
    written     NAME or nothing    .NAME.partial-…/new           [removes `new`]
    exchanging  nothing            .NAME.partial-…/{new, old}    [gives `old` its name back]
    after       NAME               .NAME.partial-…/old           [removes `old`]
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from keras_transformer.base.errors import (
    InputError,
    as_input_error,
    check_path,
    renamed_in_errors,
    writing,
)

FilePath = str | os.PathLike
MANIFEST = "export.json"  # the marker of an export
SHORTLIST_FILE = "shortlist.npy"  # of a run or an export
FORMAT_VERSION = 4  # Development used 1 to 3, with several meanings.
"""Version of the files of runs and exports, in `recipe.yaml` and `export.json`."""
_UNLISTED = (MANIFEST, "README.md", "verification.json")  # files that no manifest lists
_PROCESS = r"\d+-[0-9a-f]{8}"
_TEMPORARY = re.compile(rf"(^|/)\.([^/]+)\.(?:lock|partial-{_PROCESS}(?:/.*)?|partial(\.[^/.]*)?)$")
_MAX_BYTES, _MAX_SUFFIX_BYTES = 255, 32  # of a name on most file systems, and of a suffix
_MAX_NAME_BYTES = 215  # so that temporary siblings and their locks have at most `_MAX_BYTES`


def check_version(version: object, path: FilePath) -> None:
    """Raises `InputError` unless a run or an export has the `FORMAT_VERSION` of this package."""
    if version != FORMAT_VERSION:
        maker, advice = "another", "Train, import or export it again"
        if isinstance(version, int) and version > FORMAT_VERSION:
            maker, advice = (
                "a newer",
                "Update keras_transformer, or train, import or export it again",
            )
        problem = f"{maker} version of this package made it, and this version does not read it"
        received = f"Received: format_version={version!r:.80} instead of {FORMAT_VERSION}"
        raise InputError(f"{os.fspath(path)}: {problem}. {received}. {advice}.")


def final_name(path: str) -> str:
    """Returns the path that a lock or a temporary file or folder belongs to, or `path` itself."""
    return _TEMPORARY.sub(r"\1\2\3", path)


def sync(path: FilePath) -> None:
    """Waits until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_durably(source: FilePath, target: FilePath) -> None:
    """Renames a synced file, which may replace `target`; the name survives a loss of power."""
    os.replace(source, target)
    sync(Path(target).parent)


@contextlib.contextmanager
def replaced_file(path: FilePath) -> Iterator[Path]:
    """Yields a temporary path, which is renamed to `path` when the `with` block succeeds.

    The temporary name ends as the final name does, as some writers choose a format by the suffix.
    The umask gives the permissions.
    """
    path = Path(path)
    temporary = path.with_name(_temporary_name(path))
    try:
        with writing(path, temporary):
            temporary.write_bytes(b"")
            mode = temporary.stat().st_mode
            temporary.unlink()
            yield temporary
            # Some libraries, such as safetensors, let only this user read what they write.
            temporary.chmod(mode)
            sync(temporary)
            rename_durably(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _temporary_name(path):
    name = f".{path.stem}.partial{path.suffix}"
    if len(os.fsencode(name)) <= _MAX_BYTES:
        return name
    # A name that a file system takes must not be too long because of this one.
    suffix = path.suffix if len(os.fsencode(path.suffix)) <= _MAX_SUFFIX_BYTES else ""
    return f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()}.partial{suffix}"


def write_whole(path: FilePath, content: str | bytes | memoryview) -> None:
    """Writes bytes or UTF-8 text to a file, completely and durably, or not at all.

    A byte of a path that is not UTF-8 is written as an escape, such as `\\udcff`.
    """
    with replaced_file(path) as temporary:
        temporary.write_bytes(_encoded(content))


def _encoded(content):
    return content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content


def write_output(path: FilePath, content: str | bytes) -> None:
    """Writes a file, link, device or pipe that a user named; raises `InputError` if it cannot."""
    with as_input_error(path):
        if is_replaced(path):
            write_whole(os.path.realpath(path), content)
        else:
            Path(path).write_bytes(_encoded(content))


def check_writable(path: FilePath) -> None:
    """Raises the `InputError` of `write_output` before the content exists."""
    with as_input_error(path):
        with contextlib.suppress(FileNotFoundError):
            os.stat(path)  # Fails for a name that is too long, and for links in a circle.
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if is_replaced(path):
            tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(path))).close()
        elif not os.access(path, os.W_OK):  # Opening a pipe would wait for its reader.
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def is_replaced(path: FilePath) -> bool:
    """Returns whether `write_output` replaces a file; False for a device or pipe."""
    return os.path.isfile(path) or not os.path.exists(path)


@contextlib.contextmanager
def locked_folder(path: FilePath, noun: str = "folder") -> Iterator[None]:
    """Holds the lock of a folder or a file, which need not exist; `noun` names it in messages.

    Raises `InputError` if the folder is a mount point, its lock cannot be written, or another
    process holds the lock.
    """
    from filelock import FileLock, Timeout

    check_path(path)
    name, target = os.fspath(path), Path(os.path.realpath(path))
    has_siblings = not os.path.ismount(target) and os.access(target.parent, os.W_OK | os.X_OK)
    if target.is_dir() and not has_siblings:
        raise InputError(
            f"{name}: must not be a mount point, and its parent folder must be writable, because "
            f"the lock is next to it. Give a folder inside it: {os.path.join(name, 'NAME')}"
        )
    file = target.with_name(f".{target.name}.lock")
    missing_parents = [parent for parent in file.parents if not parent.exists()]
    lock = FileLock(file, thread_local=False)
    with as_input_error(path):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            problem = f"{name}: another process writes to this {noun}"
            advice = f"Wait until it has ended, or give another {noun}"
            raise InputError(f"{problem}. {advice}.") from None
    try:
        yield
    finally:
        # Removed while it is locked: a process that opened it meanwhile sees that it is gone.
        with contextlib.suppress(OSError):
            file.unlink()
        with contextlib.suppress(OSError):  # It holds nothing that anyone misses.
            lock.release()
        with contextlib.suppress(OSError):
            for parent in missing_parents:
                parent.rmdir()  # Fails if the folder was made, because it is not empty.


@contextlib.contextmanager
def temporary_folder(start: FilePath) -> Iterator[Path]:
    """Makes a folder `START…` for this user; it is removed at the end, or later after a kill."""
    for path in _left_behind(start):
        # An error: another process holds the folder, or it is another user's.
        with contextlib.suppress(InputError), locked_folder(path):
            shutil.rmtree(path, ignore_errors=True)
    path = _unique_name(start)
    with locked_folder(path):
        path.mkdir(0o700, parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def _unique_name(start):
    return Path(f"{os.fspath(start)}{os.getpid()}-{secrets.token_hex(4)}")


def _left_behind(start):
    """Returns the folders with names of `_unique_name`, also of those that only a lock is left."""
    parent, name = os.path.split(start)
    pattern = re.compile(rf"({re.escape(name)}{_PROCESS})|\.({re.escape(name)}{_PROCESS})\.lock")
    with contextlib.suppress(OSError):
        paths = [path for path in Path(parent).iterdir() if not path.is_symlink()]
        matches = filter(None, (pattern.fullmatch(path.name) for path in paths))
        return sorted({Path(parent, match[1] or match[2]) for match in matches})
    return []


class OwnedFolder:
    """A folder that a command makes whole, and replaces only if it made all of its files.

    Args:
        path: Path of the folder, which need not exist.
        marker: Path in the folder, or pattern of paths, of a file that only the command writes.
        files: Regular expression of the paths of the command's files in the folder, with `/`
            between names. By default the marker is JSON whose `files` names them.
    """

    def __init__(self, path: FilePath, marker: str = MANIFEST, files: str | None = None):
        check_path(path)
        # Resolved: replacing a link would leave the folder that it points to behind.
        self.path = Path(os.path.realpath(path))
        if not 0 < len(self.path.name.encode("utf-8", "replace")) <= _MAX_NAME_BYTES:
            rule = "the output must have a name, of at most"
            raise InputError(f"{os.fspath(path)}: {rule} {_MAX_NAME_BYTES} bytes.")
        self._named, self._marker, self._files = os.fspath(path), marker, files
        self._temporary = self.path.with_name(f".{self.path.name}.partial-")

    def files(self) -> str:
        """Returns the regular expression of the paths of the command's files, as they are now."""
        if self._files is not None:
            return self._files
        names = _UNLISTED if self._marker == MANIFEST else (self._marker,)
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            text = (self.path / self._marker).read_text(encoding="utf-8")
            names = (*names, *json.loads(text)["files"])
        return "|".join(map(re.escape, names))

    def is_mine(self, path: str) -> bool:
        """Returns whether the command made a file in the folder, or began to write it."""
        return self._has_marker() and bool(re.fullmatch(self.files(), final_name(path)))

    def _has_marker(self):
        return any(path.is_file() for path in self.path.glob(self._marker))

    def _has_content(self):
        return self.path.is_dir() and any(self.path.iterdir())

    def foreign_files(self) -> list[str]:
        """Returns the sorted paths in the folder of files that the command did not make."""
        # A link is a file, wherever it points.
        paths = (path for path in self.path.rglob("*") if path.is_symlink() or not path.is_dir())
        names = sorted(path.relative_to(self.path).as_posix() for path in paths)
        return [name for name in names if not self.is_mine(name)]

    def check_replaceable(self, overwrite: bool, other_options: str = "") -> None:
        """Raises `InputError`, with options that help, unless the folder may be replaced."""
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise InputError(f"{self._named}: the output must be a folder. Received: a file.")
        foreign_names = self.foreign_files()
        # A slip of the keyboard must not cost a run folder or a home directory.
        if foreign_names and (overwrite or not self._has_marker()):
            raise InputError(
                f"{self._named}: is not overwritten, because there is a file that this command did "
                f"not make: {foreign_names[0]}. Remove it, or give another output."
            )
        if not overwrite and self._has_content():
            raise InputError(
                f"{self._named}: exists already. Give {other_options}--overwrite to replace it, or "
                "another --output."
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder's lock (`locked_folder`); removes what a killed process left first."""
        with locked_folder(self._named):
            for temporary in _left_behind(self._temporary):
                self._remove(temporary)
            yield

    @contextlib.contextmanager
    def replaced(self, check: Callable[[], object]) -> Iterator[Path]:
        """Gives a temporary folder that takes this folder's name when the block succeeds.

        The caller holds the lock. `check` raises `InputError` if the folder may not be replaced.
        Any exception, `KeyboardInterrupt` too, leaves the folder as it was.
        """
        check()
        temporary = _unique_name(self._temporary)
        new, old = temporary / "new", temporary / "old"
        try:
            with as_input_error(self._named):
                new.mkdir(parents=True)
            with renamed_in_errors(new, self._named):
                yield new
                for path in [*new.rglob("*"), new]:
                    with writing(path):
                        sync(path)
            # Before the check: a folder that another program makes later stops the rename.
            has_content = self._has_content()
            check()  # Again: the block may have taken hours.
            with as_input_error(self._named):
                if has_content:
                    os.rename(self.path, old)
                os.rename(new, self.path)
                sync(self.path.parent)
        finally:
            self._remove(temporary)

    @contextlib.contextmanager
    def staged(self, overwrite: bool = False) -> Iterator[Path]:
        """Gives the folder of `replaced`, under the lock; `overwrite` replaces an output."""
        with self.locked(), self.replaced(lambda: self.check_replaceable(overwrite)) as folder:
            yield folder

    def _remove(self, temporary):
        """Removes a temporary folder; an output that was being replaced gets its name back."""
        old, new = temporary / "old", temporary / "new"
        # If another program has taken the name, both outputs stay for the next call.
        with contextlib.suppress(OSError):
            if old.exists() and new.exists():
                os.rename(old, self.path)
                sync(self.path.parent)  # before `new` is gone, which tells of the exchange
            shutil.rmtree(temporary, ignore_errors=True)
