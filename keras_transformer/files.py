"""Files and folders: read strictly, written whole and durably or not at all.

Reading: a wrong byte is an error with a line number, never a guess. Writing: under a temporary
name beside the final one, synced to the disk, then renamed, so that neither a crash nor a loss of
power leaves half a file under a final name.
"""

import contextlib
import errno
import fcntl
import gzip
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError

MANIFEST = "export.json"
"""The file that marks a folder as an export; without it no folder is replaced."""

# What exports have beside the files that their manifests list.
_OF_AN_EXPORT = {MANIFEST, "README.md", "verification.json", "model.bin", "config.json"} | {
    f"{side}{name}"
    for side in ("", "source_", "target_", "shared_")
    for name in ("tokenizer.model", "vocabulary.json")
}


def iterate_lines(path: str | os.PathLike, may_be_empty: bool = False) -> Iterator[str]:
    """The lines of a UTF-8 file, at least one, without their line ends, in constant memory.

    Lines end at `"\\n"` or `"\\r\\n"` alone. Other separators that Unicode knows (U+2028, a form
    feed, ...) stay inside their line: splitting there would shift one file of an aligned pair
    against the other. A byte order mark at the start is removed.

    Args:
        path: A plain file, or a gzip file when the name ends in `.gz`.
        may_be_empty: Whether a file may have no line.

    Raises:
        InputError: The file is missing, unreadable, empty, not gzip although named so, or not
            UTF-8; the message names the line of the first wrong byte.
    """
    path, number = os.fspath(path), 0
    if os.path.isdir(path):
        raise InputError(f"{path}: expected a text file. Received: a directory.")
    try:
        with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                text = line.decode("utf-8")
                if number == 1:  # a byte order mark is no text where it stands first
                    text = text.removeprefix("\ufeff")
                    if not text:
                        number = 0
                        break
                yield text.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}, line {number}: expected UTF-8 text. "
            f"Received: byte=0x{line[error.start]:02x} ({error.reason})."
        ) from None
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected UTF-8 text.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        # gzip tells a cut file (EOFError), a wrong header and a wrong checksum apart.
        raise InputError(f"{path}: expected a whole gzip file. Received: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    if not number and not may_be_empty:
        raise InputError(f"{path}: the file is empty; expected one sentence a line.")


def digest_of(folder: str | os.PathLike, files: Iterable[str | os.PathLike]) -> str:
    """SHA-256 over the names, below a folder, and the contents of some of its files."""
    digest = hashlib.sha256()
    for path in sorted(map(Path, files)):
        name = path.relative_to(folder).as_posix()
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def read_lines(path: str | os.PathLike) -> list[str]:
    """All lines of a file, as `iterate_lines` gives them."""
    return list(iterate_lines(path))


@contextlib.contextmanager
def replaced_file(path: str | os.PathLike) -> Iterator[Path]:
    """Gives a temporary path that takes the name `path` when the block succeeds.

    What the block wrote is synced before it is renamed, and the folder after: once this returns,
    the file outlives a loss of power. Any exception leaves `path` as it was. The temporary file
    is `.NAME.partial.SUFFIX`: some writers choose a format by the suffix.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        yield temporary
        _sync(temporary)
        rename_durably(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def rename_durably(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Gives a synced file another name on the same file system, where it outlives a loss of power.

    A file of that name is replaced.
    """
    os.replace(source, target)
    _sync(Path(target).parent)


def write_whole(path: str | os.PathLike, content: str | bytes) -> None:
    """Writes a file, of bytes or of UTF-8, that is there whole and durably, or not at all."""
    with replaced_file(path) as temporary:
        temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


def one_line(text: str) -> str:
    """Returns a text without line breaks, so that lines stay aligned."""
    return " ".join(text.splitlines())


def write_output(path: str | os.PathLike, content: str | bytes) -> None:
    """`write_whole` of what a user named; raises `InputError` where it cannot be written."""
    with _naming(path):
        write_whole(path, content)


def check_writable(path: str | os.PathLike) -> None:
    """Raises the `InputError` of `write_output` before there is anything to write."""
    with _naming(path):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        tempfile.TemporaryFile(dir=Path(path).parent).close()


@contextlib.contextmanager
def _naming(path):
    try:
        yield
    except OSError as error:
        raise InputError(f"{os.fspath(path)}: cannot be written: {error.strerror}.") from None


def empty_folder(
    folder: str | os.PathLike, own: Callable[[str], bool], marker: str | None = None
) -> None:
    """Removes the files of a folder if all of them may be removed, or none.

    Args:
        folder: The folder. It stays itself: it may be a link, or where something is mounted.
        own: Says of a file's path in the folder, `/` between names, whether it may be removed.
        marker: Path of the file that goes first, so that what is left after an interruption is not
            taken for whole.

    Raises:
        InputError: Names the first file that may not be removed; nothing was.
    """
    folder = Path(folder)
    check_own(folder, own)
    files, folders = _files_and_folders(folder)
    for path in sorted(files, key=lambda path: path != marker):
        (folder / path).unlink()
    for path in reversed(folders):
        (folder / path).rmdir()


def check_own(folder: str | os.PathLike, own: Callable[[str], bool]) -> None:
    """Raises `InputError` for the first file of a folder of which `own` is not true."""
    for path in _files_and_folders(folder)[0]:
        if not own(path):
            raise InputError(
                f"{folder}: is not overwritten, because there is a file that this command did not "
                f"make: {path}. Remove it, or give another output."
            )


def _files_and_folders(folder):
    """Paths below a folder, outer ones first; a link is a file, wherever it points."""
    files, folders = [], []
    for base, names, others in os.walk(folder):
        names.sort()
        links = [name for name in names if os.path.islink(os.path.join(base, name))]
        base = Path(base).relative_to(folder)
        files += [(base / name).as_posix() for name in sorted([*others, *links])]
        folders += [(base / name).as_posix() for name in names if name not in links]
    return files, folders


@contextlib.contextmanager
def staged_folder(
    output: str | os.PathLike, overwrite: bool = False, marker: str = MANIFEST
) -> Iterator[Path]:
    """Gives a temporary folder that takes the name `output` when the block succeeds.

    All that the block wrote is synced before the folder is renamed. Any exception,
    `KeyboardInterrupt` too, removes the temporary folder and leaves `output` as it was. After a
    kill the next call for `output` removes the temporary folder, and brings an earlier export back
    that was just being replaced.

    A folder that is empty, or where something is mounted, stays itself: the temporary folder is
    made in it, and its content then moves up, the manifest last. An earlier export in such a
    mounted folder is removed before, as two cannot be exchanged there.

    Args:
        output: Path of the folder to make, or of an empty one. Missing parents are made.
        overwrite: Whether an earlier output may be replaced, if nothing else is in its folder.
        marker: Name of the JSON file that marks a folder as one: its `files` names the others.

    Raises:
        InputError: `output` exists and may not be replaced, or cannot be written.
    """
    # Resolved: replacing a link would leave the folder that it points to behind.
    output = Path(os.path.realpath(output))
    _clear(output, marker)
    _check_output(output, overwrite, marker)
    stays = output.is_dir() and (os.path.ismount(output) or not _content(output))
    # Elsewhere beside the output, because a rename is atomic within one file system only.
    parent, names = output if stays else output.parent, _temporary_names(output)
    with contextlib.ExitStack() as stack:
        try:
            staging = stack.enter_context(held_folder(parent / names[0]))
        except OSError as error:
            raise InputError(f"{output}: cannot be written: {error.strerror}.") from None
        yield staging
        for path in [*staging.rglob("*"), staging]:
            _sync(path)
        _check_output(output, overwrite, marker)  # Again: the block may have taken hours.
        replaced = _unique(parent / names[1])
        held = _make_and_hold(replaced)
        if stays:
            # Whoever looks for the marker never sees half an output.
            old = sorted(_content(output), key=lambda path: path.name != marker)
            new = sorted(staging.iterdir(), key=lambda path: path.name == marker)
            moves = [(path, output / path.name) for path in new]
        else:
            # Without `overwrite` the rename fails where another process has been faster.
            old, moves = [output] * (overwrite and output.exists()), [(staging, output)]
        try:
            _rename_all([(path, replaced / path.name) for path in old] + moves)
            _sync(parent)
            os.rename(replaced, staging)  # whose name is free, and which is removed
        finally:
            with contextlib.suppress(OSError):
                replaced.rmdir()  # Empty after a failure; never what was there before.
            os.close(held)


def _clear(output, marker):
    """Removes what killed processes left of an output; one that was being replaced comes back."""
    for parent in (output.parent, output):
        partial, replaced = map(re.escape, _temporary_names(output))
        for folder in _left_behind(parent, replaced):
            earlier = [] if (output / marker).exists() else folder.iterdir()
            for path in sorted(earlier, key=lambda path: path.name == marker):  # It comes last.
                if parent == output and (half := output / path.name).is_dir():
                    shutil.rmtree(half)  # of what was to replace it, as a file of that name is
                with contextlib.suppress(OSError):  # There is another folder now.
                    os.rename(path, parent / path.name)
            if (output / marker).exists():
                shutil.rmtree(folder, ignore_errors=True)
        for folder in _left_behind(parent, partial):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def held_folder(start: str | os.PathLike, mode: int = 0o777) -> Iterator[Path]:
    """Makes a folder whose path begins with `start`, and removes it at the end.

    A lock says that this process lives. Folders of the same `start` that killed processes left
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


def _unique(start):
    return Path(f"{os.fspath(start)}{os.getpid()}-{secrets.token_hex(4)}")


def _make_and_hold(path, mode=0o777):
    """Makes a folder and its parents; gives a descriptor that holds a lock on it."""
    while True:
        path.mkdir(mode, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            held = os.open(path, os.O_RDONLY)
            with contextlib.suppress(OSError):  # Without locks the folder stays.
                fcntl.flock(held, fcntl.LOCK_EX)
            if path.exists():
                return held
            os.close(held)  # It was removed before it was held.


def remove_left_behind(parent: Path) -> None:
    """Removes the temporary folders of `staged_folder` in a folder whose processes have died."""
    for path in _left_behind(parent, r"\..+\.partial-"):
        shutil.rmtree(path, ignore_errors=True)


def _left_behind(parent, beginning):
    """Yields the temporary folders whose processes have ended, each while it is held.

    `beginning` is a regular expression of what their names begin with.
    """
    ours = re.compile(beginning + r"\d+-[0-9a-f]{8}")
    found = []
    with contextlib.suppress(OSError):
        found = [path for path in parent.iterdir() if ours.fullmatch(path.name)]
    for path in found:
        try:
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield path
        except OSError:
            pass
        finally:
            os.close(held)


def _rename_all(moves):
    """Renames each path, or none: what was renamed before an exception gets its name back."""
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


def _check_output(output, overwrite, marker):
    if not os.path.lexists(output):
        return
    if not output.is_dir():
        raise InputError(f"{output}: the output must be a folder. Received: a file.")
    if not _content(output):
        return
    if not overwrite:
        raise InputError(
            f"{output}: the output must not exist or be empty, unless it is to be overwritten. "
            "Received: a folder with files."
        )
    # A slip of the keyboard must not cost a run folder or a home directory.
    if not (output / marker).is_file():
        raise InputError(
            f"{output}: only an earlier output of this command is overwritten. "
            f"Received: a folder without {marker}."
        )
    check_own(output, owner_of_output(output, marker))


def owner_of_output(folder: Path, marker: str = MANIFEST) -> Callable[[str], bool]:
    """Says of a file's path in a folder whether the command that wrote the marker made it."""
    try:
        listed = set(json.loads((folder / marker).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, TypeError, KeyError):
        listed = set()
    known = listed | (_OF_AN_EXPORT if marker == MANIFEST else set())
    return lambda path: path in known or path.startswith(_temporary_names(folder))


def _content(output):
    """The content of a folder without the remains of an interrupted `staged_folder`."""
    names = _temporary_names(output)
    return [path for path in output.iterdir() if not path.name.startswith(names)]


def _temporary_names(output):
    return f".{output.name}.partial-", f".{output.name}.replaced-"


def _sync(path):
    """Waits until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_terminal(stream: Any) -> bool:
    """Whether a person reads or types at a stream, which may be None or closed."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False
