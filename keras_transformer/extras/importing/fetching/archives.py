"""Unpacks archives of models: bounded size, plain files below one folder."""

import contextlib
import errno
import gzip
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any

from keras_transformer.base.errors import InputError, first_line, writing
from keras_transformer.base.options import received
from keras_transformer.base.reading import MAX_NAME_BYTES, max_unpacked_bytes, too_large
from keras_transformer.extras.foreign.settings import is_of_macos

# Names of members make folders: 30 short names of 900 parts each would make 27,000.
_MAX_MEMBERS, _MAX_PARTS = 10_000, 20
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class LimitedStream:
    """Decompressed content, with an error where it is too large for the size of its file.

    Args:
        stream: The content.
        path: Path of the compressed file.
    """

    def __init__(self, stream: Any, path: Path):
        self._stream, self._path = stream, path
        self._bytes_left = max_unpacked_bytes(path)

    def read(self, size: int) -> bytes:
        """Reads at most `size` bytes."""
        # Never more: tarfile asks for the whole of a header.
        block = self._stream.read(min(size, self._bytes_left + 1))
        self._bytes_left -= len(block)
        if self._bytes_left < 0:
            raise too_large(self._path)
        return block


def unpack(archive: Path, folder: Path) -> Path:
    """Unpacks a zip file, or a tar file with gzip, into a new folder.

    Files that macOS adds are skipped: `__MACOSX`, `._*` and `.DS_Store`.

    Returns:
        The folder, or the folder in it that holds all.

    Raises:
        InputError: The file has another format, or is damaged or too large. It has too many files
            and folders, too long paths, or a member that is a link, a device, or outside the
            folder.
    """
    folder.mkdir()
    paths: set[tuple[str, ...]] = set()  # of files, and of folders that their names make
    try:
        with _opened(archive) as members:
            for number, (name, is_folder, file) in enumerate(members, 1):
                parts = _checked_parts(name, archive)
                paths.update(parts[:length] for length in range(1, len(parts) + 1))
                if max(number, len(paths)) > _MAX_MEMBERS:
                    rule = f"must have at most {_MAX_MEMBERS} files and folders"
                    raise InputError(f"{archive}: {rule}. Received: more.")
                if any(map(is_of_macos, parts)):
                    continue
                path = folder.joinpath(*parts)
                (path if is_folder else path.parent).mkdir(parents=True, exist_ok=True)
                if not is_folder:
                    with writing(path), open(path, "xb") as output:
                        shutil.copyfileobj(file, output, 1 << 20)
    except InputError:
        raise
    except Exception as error:  # Damaged archives raise many kinds.
        if getattr(error, "errno", None) in _CANNOT_WRITE:
            raise
        reason = f"{first_line(error):.200}"
        raise InputError(f"{archive}: cannot be unpacked: {reason}.") from None
    while len(entries := list(folder.iterdir())) == 1 and entries[0].is_dir():
        (folder,) = entries
    return folder


@contextlib.contextmanager
def _opened(archive) -> Iterator[Iterator[tuple[str, bool, IO[bytes]]]]:
    """Yields the members: name, whether it is a folder, and content."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            yield _zip_members(file, archive)
        return
    with open(archive, "rb") as start:
        is_gzip = start.read(2) == b"\x1f\x8b"
    if not is_gzip:
        rule = "expected a folder or an archive, .zip, .argosmodel or .tar.gz"
        raise InputError(f"{archive}: {rule}. Received: another file.")
    with gzip.open(archive) as stream:
        content: Any = LimitedStream(stream, archive)
        with tarfile.open(fileobj=content, mode="r|") as file:
            yield _tar_members(file, archive)
        while content.read(1 << 20):  # to the checksum at the end, which tarfile does not read
            pass


def _zip_members(file, archive):
    # A member ends at the size that the list of members has for it.
    if sum(member.file_size for member in file.infolist()) > max_unpacked_bytes(archive):
        raise too_large(archive)
    for member in file.infolist():
        kind = stat.S_IFMT(member.external_attr >> 16)  # 0 if another system than Unix made it
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise _not_a_file(archive, member.filename)
        with file.open(member) as content:
            yield member.filename, member.filename.endswith(("/", "\\")), content


def _tar_members(file, archive):
    for member in file:
        if not (member.isreg() or member.isdir()) or member.issparse():
            raise _not_a_file(archive, member.name)
        yield member.name, member.isdir(), file.extractfile(member)


def _not_a_file(archive, name):
    rule = "a member must be a file or a folder, not a link or a device"
    return InputError(f"{archive}: {rule}. Received: {received(name)}.")


def _checked_parts(name, archive):
    # Old programs of Windows write backslashes between names.
    parts = PurePosixPath(name.replace("\\", "/")).parts
    is_outside = ".." in parts or PureWindowsPath(name).anchor
    is_long = any(len(part.encode("utf-8", "replace")) > MAX_NAME_BYTES for part in parts)
    if is_outside or is_long or len(parts) > _MAX_PARTS:
        rule = "the name of a member must be a short path inside the archive"
        raise InputError(f"{archive}: {rule}. Received: {received(name)}.")
    return parts
