"""Files and folders: read strictly, written whole and durably or not at all.

Reading: a wrong byte is an error with a line number, never a guess. Writing: under a temporary
name beside the final one, synced to the disk, then renamed, so that neither a crash nor a loss of
power leaves half a file under a final name.
"""

import contextlib
import gzip
import os
import secrets
import shutil
import zlib
from pathlib import Path

from keras_transformer.errors import InputError

MANIFEST = "export.json"
"""The file that marks a folder as an export; without it no folder is replaced."""


def read_lines(path):
    """The lines of a UTF-8 file, without their line ends.

    Lines end at `"\\n"` or `"\\r\\n"` alone. Other separators that Unicode knows (U+2028, a form
    feed, ...) stay inside their line: splitting there would shift one file of an aligned pair
    against the other. A byte order mark at the start is removed.

    Args:
        path: A plain file, or a gzip file when the name ends in `.gz`.

    Returns:
        A list of strings, at least one.

    Raises:
        InputError: The file is missing, unreadable, empty, not gzip although named so, or not
            UTF-8; the message names the line of the first wrong byte.
    """
    path = os.fspath(path)
    content = _read_bytes(path)
    if not content:
        raise InputError(f"{path}: the file is empty; expected one sentence a line.")
    try:
        # A byte order mark is text only when it stands first, so decode before removing it.
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: expected UTF-8 text. "
            f"Received: byte=0x{content[error.start]:02x} ({error.reason})."
        ) from None
    lines = text.removeprefix("\ufeff").split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise InputError(f"{path}: the file is empty; expected one sentence a line.")
    return [line.removesuffix("\r") for line in lines]


def _read_bytes(path):
    if os.path.isdir(path):
        raise InputError(f"{path}: expected a text file. Received: a directory.")
    compressed = path.endswith(".gz")
    try:
        with gzip.open(path, "rb") if compressed else open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected UTF-8 text.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        # gzip tells a cut file (EOFError), a wrong header and a wrong checksum apart.
        raise InputError(f"{path}: expected a whole gzip file. Received: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None


@contextlib.contextmanager
def replaced_file(path):
    """Gives a temporary path that takes the name `path` when the block succeeds.

    What the block wrote is synced before it is renamed, and the folder after: once this returns,
    the file outlives a loss of power. Any exception leaves `path` as it was.

    Args:
        path: The file to make or to replace. Its folder must exist.

    Yields:
        `pathlib.Path` of the temporary file, `.NAME.partial.SUFFIX`: the suffix stays, because
        some writers choose a format by it.

    Raises:
        OSError: The file cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path, content):
    """Writes a file that is there whole and durably, or not at all.

    Args:
        path: The file to make or to replace.
        content: Text, written as UTF-8, or bytes.

    Raises:
        OSError: The file cannot be written.
    """
    with replaced_file(path) as temporary:
        temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextlib.contextmanager
def staged_folder(output, overwrite=False):
    """Gives a temporary folder beside `output` that takes its name when the block succeeds.

    All that the block wrote is synced before the folder is renamed. Any exception,
    `KeyboardInterrupt` too, removes the temporary folder and leaves `output` as it was.

    Args:
        output: Path of the folder to make. Missing parents are made.
        overwrite: Whether an earlier export may be replaced.

    Yields:
        `pathlib.Path` of the temporary folder, `.NAME.partial-…`.

    Raises:
        InputError: `output` exists and may not be replaced, or cannot be written.
    """
    # Resolved: replacing a link would leave the folder that it points to behind.
    output = Path(os.path.realpath(output))
    _check_output(output, overwrite)
    staging = _sibling(output, "partial")
    try:
        staging.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{output}: cannot be written: {error.strerror}.") from None
    try:
        yield staging
        _publish(staging, output)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _check_output(output, overwrite):
    if not os.path.lexists(output):
        return
    if not output.is_dir():
        raise InputError(f"{output}: the output must be a folder. Received: a file.")
    if not overwrite:
        raise InputError(
            f"{output}: the output must not exist, unless it is to be overwritten. "
            "Received: an existing folder."
        )
    # A slip of the keyboard must not cost a run folder or a home directory.
    if any(output.iterdir()) and not (output / MANIFEST).is_file():
        raise InputError(
            f"{output}: only an earlier export is overwritten. "
            f"Received: a folder without {MANIFEST}."
        )


def _sibling(output, role):
    # Beside the output, because a rename is atomic within one file system only.
    return output.with_name(f".{output.name}.{role}-{os.getpid()}-{secrets.token_hex(4)}")


def _publish(staging, output):
    replaced = _sibling(output, "replaced")
    for path in [*staging.rglob("*"), staging]:
        _sync(path)
    try:
        if output.exists():
            os.rename(output, replaced)
        os.rename(staging, output)
    except BaseException:
        if replaced.exists() and not output.exists():
            os.rename(replaced, output)
        raise
    _sync(output.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _sync(path):
    """Waits until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
