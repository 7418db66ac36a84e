"""Folders that a command owns: locked, staged, and emptied only where it made every file."""

import contextlib
import itertools
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from keras_transformer.errors import InputError, say
from keras_transformer.files import file_digests, sync

MANIFEST = "export.json"
"""The file that marks a folder as an export; without it no folder is replaced."""

# Files of exports that their manifests do not list.
_OF_AN_EXPORT = {MANIFEST, "README.md", "verification.json", "model.bin", "config.json"} | {
    f"{side}{name}"
    for side in ("", "source_", "target_", "shared_")
    for name in ("tokenizer.model", "vocabulary.json")
}
# The file of `locked_folder`, where it lies in the folder.
_LOCK = ".lock"
_ATTEMPTS = 100


class OwnedFolder:
    """A folder, and the rule that tells the files of the command that made it from others.

    `staged` takes it through four states. A kill leaves the state as it is, and the next call of
    `staged` brings the folder to the state in brackets.

        1 before       NAME, or nothing
        2 written      NAME, .NAME.partial-…      [1: the partial folder is removed]
        3 exchanged    .NAME.replaced-…, NAME     [4, or 1 where NAME has no marker yet]
        4 after        NAME

    Args:
        path: Path of the folder, which need not exist.
        marker: Path in the folder of the file that marks it as whole. It is written last and
            removed first. Without `owns`, a folder without it is not replaced.
        owns: Takes a file's path in the folder, `/` between names; True where the command made it.
            By default the marker is JSON whose `files` names them.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        marker: str = MANIFEST,
        owns: Callable[[str], bool] | None = None,
    ):
        # Resolved: replacing a link would leave the folder that it points to behind.
        self.path = Path(os.path.realpath(path))
        self.marker = marker
        self._named = os.fspath(path)
        self._owns = owns
        self._partial, self._replaced = (
            f".{self.path.name}.{state}-" for state in ("partial", "replaced")
        )

    def ownership_rule(self) -> Callable[[str], bool]:
        """Returns the rule for the folder as it is now, with the remains of earlier processes."""
        if self._owns is not None:
            return self._owns
        try:
            known = set(json.loads((self.path / self.marker).read_text(encoding="utf-8"))["files"])
        except (OSError, ValueError, TypeError, KeyError):
            known = set()
        if self.marker == MANIFEST:
            known |= _OF_AN_EXPORT
        return lambda path: path in known or path.startswith((self._partial, self._replaced))

    def is_left_beside(self, name: str) -> bool:
        """Returns whether a name next to the folder is one that a killed process left there."""
        return name.startswith((self._partial, self._replaced)) or name == f".{self.path.name}.lock"

    def check(self) -> None:
        """Raises `InputError` for the first file that another program made."""
        owns = self.ownership_rule()
        for path in _files_and_folders(self.path)[0]:
            if not owns(path) and path != _LOCK:
                raise InputError(
                    f"{self._named}: is not overwritten, because there is a file that this command "
                    f"did not make: {path}. Remove it, or give another output."
                )

    def clear(self) -> None:
        """Removes all files, the marker first, or none; the folder stays: it may be a mount.

        Raises:
            InputError: Another program made one of the files.
        """
        self.check()
        files, folders = _files_and_folders(self.path)
        for path in sorted(files, key=lambda path: path != self.marker):
            if path != _LOCK:
                (self.path / path).unlink()
        for path in reversed(folders):
            (self.path / path).rmdir()

    def check_digests(self, digests: dict[str, str]) -> None:
        """Raises `InputError` for a file that is missing or has another SHA-256 than `digests`.

        Weights of another model have the same names and shapes: nothing else would notice them.
        """
        try:
            digests_of_files = file_digests(self.path, (self.path / name for name in digests))
        except OSError as error:
            raise InputError(f"{self._named}: cannot be read: {error.strerror}.") from None
        for name, digest in digests.items():
            if digests_of_files.get(name) != digest:
                state = (
                    "is missing"
                    if name not in digests_of_files
                    else "is not the file that was exported"
                )
                raise InputError(
                    f"{self._named}: the export is incomplete or damaged. Received: {name} {state}."
                )

    @contextlib.contextmanager
    def staged(self, overwrite: bool = False, wait: bool = False) -> Iterator[Path]:
        """Gives a temporary folder that takes this folder's name when the block succeeds.

        The folder is locked meanwhile (`locked_folder`). All that the block wrote is synced before
        the folder is renamed. Any exception, `KeyboardInterrupt` too, removes the temporary folder
        and leaves the output as it was. After a kill the next call removes the temporary folder,
        and brings an earlier output back that was just being replaced.

        A folder that is empty, or where something is mounted, stays itself: the temporary folder is
        made in it, and its content then moves up, the marker last. An earlier output in such a
        mounted folder is removed before, as two cannot be exchanged there.

        Args:
            overwrite: Whether an earlier output may be replaced, if it holds no other file.
            wait: Whether to wait for another process that writes to the folder.

        Raises:
            InputError: The folder exists and may not be replaced, cannot be written, or another
                process writes to it.
        """
        output = self.path
        with contextlib.ExitStack() as stack:
            stack.enter_context(locked_folder(self._named, wait))
            self._restore()
            self.check_replaceable(overwrite)
            stays = output.is_dir() and (os.path.ismount(output) or not self._content())
            # Elsewhere beside the output, because a rename is atomic within one file system only.
            parent = output if stays else output.parent
            try:
                staging = stack.enter_context(held_folder(parent / self._partial))
            except OSError as error:
                raise InputError(f"{output}: cannot be written: {error.strerror}.") from None
            yield staging
            for path in [*staging.rglob("*"), staging]:
                sync(path)
            self.check_replaceable(overwrite)  # Again: the block may have taken hours.
            replaced = _unique(parent / self._replaced)
            held = _make_and_hold(replaced)
            if stays:
                # A reader that looks for the marker never sees half an output.
                old = sorted(self._content(), key=lambda path: path.name != self.marker)
                new = sorted(staging.iterdir(), key=lambda path: path.name == self.marker)
                moves = [(path, output / path.name) for path in new]
            else:
                # Without `overwrite` the rename fails where another program has been faster.
                old, moves = [output] * (overwrite and output.exists()), [(staging, output)]
            try:
                _rename_all([(path, replaced / path.name) for path in old] + moves)
                sync(parent)
                os.rename(replaced, staging)  # whose name is free, and which is removed
            finally:
                with contextlib.suppress(OSError):
                    replaced.rmdir()  # Empty after a failure; never what was there before.
                os.close(held)

    def _restore(self):
        """Removes what killed processes left; an output that was being replaced comes back."""
        output, marker = self.path, self.marker
        for parent in (output.parent, output):
            for folder in _left_behind(parent, re.escape(self._replaced)):
                earlier = [] if (output / marker).exists() else folder.iterdir()
                for path in sorted(earlier, key=lambda path: path.name == marker):  # It comes last.
                    if parent == output and (half := output / path.name).is_dir():
                        shutil.rmtree(half)  # of what was to replace it, as a file of that name is
                    with contextlib.suppress(OSError):  # There is another folder now.
                        os.rename(path, parent / path.name)
                if (output / marker).exists():
                    shutil.rmtree(folder, ignore_errors=True)
            for folder in _left_behind(parent, re.escape(self._partial)):
                shutil.rmtree(folder, ignore_errors=True)

    def check_replaceable(self, overwrite: bool, others: str = "") -> None:
        """Raises `InputError` unless the folder is missing, empty, or may be overwritten.

        Args:
            overwrite: Whether what is there may be replaced, if the command made all of it.
            others: Options of the command that help, other than `--overwrite`, for the message.
        """
        output = self.path
        if not os.path.lexists(output):
            return
        if not output.is_dir():
            raise InputError(f"{output}: the output must be a folder. Received: a file.")
        if not self._content():
            return
        if not overwrite:
            raise InputError(
                f"{self._named}: exists already. Give {others}--overwrite to replace it, or "
                "another --output."
            )
        # A slip of the keyboard must not cost a run folder or a home directory.
        if self._owns is None and not (output / self.marker).is_file():
            raise InputError(
                f"{output}: only an earlier output of this command is overwritten. "
                f"Received: a folder without {self.marker}."
            )
        self.check()

    def _content(self):
        """Paths in the folder, without its lock and the remains of an interrupted `staged`."""
        names = self._partial, self._replaced
        paths = (path for path in self.path.iterdir() if path.name != _LOCK)
        return [path for path in paths if not path.name.startswith(names)]


@contextlib.contextmanager
def locked_folder(path: str | os.PathLike, wait: bool = False) -> Iterator[None]:
    """Holds the lock of a folder, which need not exist: one process at a time writes to it.

    The operating system's lock, which ends with the process, on the file `.NAME.lock` next to the
    folder. The file is `.lock` in the folder where something is mounted there, or where nothing
    can be written next to it. On Windows and on network file systems without locks nothing is held.

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
    file = folder / _LOCK if is_inside else folder.with_name(f".{folder.name}.lock")
    missing = [parent for parent in file.parents if not parent.exists()]
    held = _held_lock(file, os.fspath(path), wait)
    try:
        yield
    finally:
        # Removed while it is held: whoever opened it meanwhile sees that and makes another one.
        with contextlib.suppress(OSError):
            file.unlink()
        os.close(held)
        with contextlib.suppress(OSError):
            for parent in missing:
                parent.rmdir()  # Only of a folder that was not made after all.


def _held_lock(file, folder, wait):
    """Returns a descriptor of `file` that holds its lock; the file then names this process."""
    for attempt in itertools.count(1):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            held = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            # Another process may just have removed the parent that it had made.
            if isinstance(error, FileNotFoundError) and attempt < _ATTEMPTS:
                continue
            raise InputError(f"{folder}: cannot be written: {error.strerror}.") from None
        try:
            if _lock(held) is False:
                holder = f"{folder}: {_holder(held)} writes to this folder"
                if not wait:
                    rule = "Wait until it has ended, or give another folder"
                    raise InputError(f"{holder}. {rule}.")
                say(f"{holder}: waiting until it has ended.")
                _lock(held, wait=True)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(held), os.stat(file)):
                    os.ftruncate(held, 0)
                    os.write(held, f"{os.getpid()} {socket.gethostname()}".encode())
                    return held
        except BaseException:
            os.close(held)
            raise
        os.close(held)  # Its holder has just removed it.


def _holder(descriptor):
    """The process that a lock's file names, and its machine if that is another one."""
    process, _, machine = os.pread(descriptor, 300, 0).decode(errors="replace").partition(" ")
    if not process:  # It has not written its number yet.
        return "another process"
    return f"process {process}" + f" on {machine}" * (machine != socket.gethostname())


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


@contextlib.contextmanager
def held_folder(start: str | os.PathLike, mode: int = 0o777) -> Iterator[Path]:
    """Makes a folder whose path begins with `start`, and removes it at the end.

    A lock says that this process lives. Folders with an equal `start` that killed processes left
    are removed first.
    """
    for path in _left_behind(Path(start).parent, re.escape(Path(start).name)):
        shutil.rmtree(path, ignore_errors=True)
    path = _unique(start)
    held = _make_and_hold(path, mode)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(held)


def remove_left_behind(parent: Path) -> None:
    """Removes what `OwnedFolder.staged` of killed processes left in a folder of `data.cache`."""
    for path in _left_behind(parent, r"\..+\.partial-"):
        shutil.rmtree(path, ignore_errors=True)
    for path in parent.glob(f".{'[0-9a-f]' * 32}.lock"):
        with contextlib.suppress(InputError), locked_folder(parent / path.name[1:-5]):
            pass  # Nobody holds it: it is removed at the end.


def _files_and_folders(folder):
    """Paths below a folder, outer ones first; a link is a file, wherever it points."""
    files, folders = [], []
    for base, names, files_of_base in os.walk(folder):
        names.sort()
        links = [name for name in names if os.path.islink(os.path.join(base, name))]
        base = Path(base).relative_to(folder)
        files += [(base / name).as_posix() for name in sorted([*files_of_base, *links])]
        folders += [(base / name).as_posix() for name in names if name not in links]
    return files, folders


def _unique(start):
    return Path(f"{os.fspath(start)}{os.getpid()}-{secrets.token_hex(4)}")


def _make_and_hold(path, mode=0o777):
    """Makes a folder and its parents; gives a descriptor that holds a lock on it."""
    while True:
        path.mkdir(mode, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            held = os.open(path, os.O_RDONLY)
            _lock(held, wait=True)
            if path.exists():
                return held
            os.close(held)  # It was removed before it was held.


def _left_behind(parent, beginning):
    """Yields the temporary folders whose processes have ended, each while it is held.

    `beginning` is a regular expression for the start of their names.
    """
    ours = re.compile(beginning + r"\d+-[0-9a-f]{8}")
    remains = []
    with contextlib.suppress(OSError):
        remains = [path for path in parent.iterdir() if ours.fullmatch(path.name)]
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


def _rename_all(moves):
    """Renames each path, or none: after an exception every renamed path gets its name back."""
    done = []
    try:
        for source, target in moves:
            done.append((source, target))
            os.rename(source, target)
    except BaseException:
        for source, target in reversed(done):
            if not os.path.lexists(source):
                os.rename(target, source)
        raise
