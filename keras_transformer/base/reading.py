"""Reads files strictly: lines of texts, plain or compressed, YAML, JSON, and files of models.

A wrong byte in a text raises an error with a line number, and so does a truncated compressed file.
"""

import codecs
import contextlib
import csv
import gzip
import hashlib
import io
import itertools
import json
import math
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from keras_transformer.base.errors import InputError, check_path, first_line, require

COMPRESSED = {".gz": "gzip", ".xz": "xz", ".bz2": "bzip2", ".zst": "Zstandard"}
"""Formats of compressed files by the endings of their names."""
MAX_NAME_BYTES = 255
"""Limit of most file systems for the name of a file."""
_BLOCK_BYTES = 1 << 14  # bytes of a compressed file that are read at once
_MAX_WINDOW = 1 << 31  # of Zstandard's format, as `zstd --ultra --long=31` writes it
# Byte order marks; the longer ones begin with others.
_MARKS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32"}
_MARKS |= {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
_FEW_LINES = 10  # that are not UTF-8 and may be damaged
_ZIP = b"PK\x03\x04"  # the beginning of an archive, such as a spreadsheet
_POINTER = b"version https://git-lfs.github.com/spec/"
# Limit of a YAML file's growth by aliases, and characters that are always allowed.
_MAX_YAML_GROWTH, _YAML_CHARACTERS = 10, 100_000
# Limit of the growth of archives and npz files, and bytes that are always allowed. Numbers hardly
# shrink: a file that grows more was made to fill a disk or the memory.
_MAX_GROWTH, _FREE_BYTES = 20, 64 << 20


def iterate_lines(
    path: str | os.PathLike,
    may_be_empty: bool = False,
    errors: str = "strict",
    keep_ends: bool = False,
) -> Iterator[str]:
    """Yields the lines of a UTF-8 file, at least one, without their line ends, in constant memory.

    Lines end only at `"\\n"` or `"\\r\\n"`. Other separators of Unicode (U+2028, a form feed, ...)
    do not end a line, because splitting there would shift one file of an aligned pair against the
    other. A byte order mark at the start is removed.

    Args:
        path: Path of a plain file, or of a compressed file whose name has an ending of
            `COMPRESSED`; `.zst` needs the extra `zstd`.
        may_be_empty: Whether a file may have no lines.
        errors: What to do about bytes that are not UTF-8, as in `bytes.decode`. A file in another
            encoding is an error nevertheless. There, no line is UTF-8 beyond ASCII, and either no
            line is ASCII, or at least ten lines and a hundredth of all lines are not.
        keep_ends: Whether each line has its `line_end`.

    Raises:
        InputError: The file is missing, unreadable, empty, not compressed despite its name, or
            not UTF-8; the message names the line of the first wrong byte, and UTF-16 or Latin-1.
    """
    path, number = os.fspath(path), 0
    num_wrong, first_wrong, has_utf8 = 0, (b"", 0), False
    with open_decompressed(path) as file:
        for number, line in enumerate(file, 1):
            if number == 1 and line == codecs.BOM_UTF8:
                number = 0
                break
            text = decode_line(line, number, path, errors)
            if errors != "strict" and not line.isascii():
                is_wrong = not _is_utf8(line)
                first_wrong = first_wrong if num_wrong or not is_wrong else (line, number)
                num_wrong, has_utf8 = num_wrong + is_wrong, has_utf8 or not is_wrong
            yield text + line_end(line) if keep_ends else text
    if num_wrong and not has_utf8 and num_wrong >= max(min(_FEW_LINES, number), number / 100):
        raise not_utf8(*first_wrong, path)
    if not number and not may_be_empty:
        raise InputError(f"{path}: the file is empty; expected one sentence per line.")


@contextlib.contextmanager
def open_decompressed(path: str) -> Iterator[Any]:
    """Opens the bytes of a text file, which may be compressed.

    Raises:
        InputError: The file is missing, unreadable, a directory, or damaged in its compression;
            also where an error occurs while it is read.
    """
    check_path(path)
    if os.path.isdir(path):
        raise InputError(f"{path}: expected a text file. Received: a directory.")
    try:
        with opened(path) as file:
            yield file
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected UTF-8 text.") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None


def check_rereadable(path: str | os.PathLike) -> None:
    """Raises `InputError` for a pipe or a device, whose content can be read only once."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        rule = f"{os.fspath(path)}: expected a file, which is read several times"
        raise InputError(f"{rule}. Received: a pipe or a device. Save its content as a file.")


@contextlib.contextmanager
def opened(path: str | os.PathLike, ending: str | None = None) -> Iterator[Any]:
    """Opens a file, which may be compressed; raises `InputError` if its compression is damaged.

    Args:
        path: Path of the file.
        ending: Its format, a key of `COMPRESSED` or empty; by default the ending of its name.
    """
    ending = os.path.splitext(path)[1] if ending is None else ending
    if ending not in COMPRESSED:
        with open(path, "rb") as file:
            yield file
        return
    file, damage = _decompressed(path, ending)
    try:
        with file:
            yield file
    except (OSError, EOFError, damage) as error:
        # EOFError means a truncated file. The system's own errors have a number.
        if getattr(error, "errno", None) is not None:
            raise
        rule = f"expected a whole {COMPRESSED[ending]} file"
        raise InputError(f"{path}: {rule}. Received: {error}") from None


def _decompressed(path, ending):
    """Returns the content of a compressed file as an open file, and the error for a damaged file.

    Modules are imported late, because a build of Python may lack some of them.
    """
    if ending == ".gz":
        return gzip.open(path, "rb"), zlib.error
    if ending == ".xz":
        import lzma

        return lzma.open(path, "rb"), lzma.LZMAError
    if ending == ".bz2":
        import bz2

        return bz2.open(path, "rb"), EOFError
    zstandard = require("zstandard", f"Zstandard, for {path},", "zstd")
    return io.BufferedReader(_ZstandardFile(path, zstandard)), zstandard.ZstdError


class _ZstandardFile(io.RawIOBase):
    """The content of a Zstandard file. The package's own file does not notice a truncated end."""

    def __init__(self, path, zstandard):
        self._file = open(path, "rb")
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        self._blocks, self._content = filter(None, self._decompressed_blocks()), memoryview(b"")

    def _decompressed_blocks(self):
        frame = None  # A file may have several frames.
        while block := self._file.read(_BLOCK_BYTES):
            while block:
                if frame is None or frame.eof:
                    frame = self._decompressor.decompressobj()
                yield frame.decompress(block)
                block = frame.unused_data
        if frame is not None and not frame.eof:
            raise EOFError("a frame ends before its end marker")

    def readable(self):
        return True

    def readinto(self, buffer):
        content = self._content or memoryview(next(self._blocks, b""))
        size = min(len(buffer), len(content))
        buffer[:size], self._content = content[:size], content[size:]
        return size

    def close(self):
        self._file.close()
        super().close()


def without_compression(name: str) -> str:
    """Returns the name or path of a file without the ending of a compressed file."""
    stem, ending = os.path.splitext(name)
    return stem if ending in COMPRESSED else name


def decode_line(line: bytes, number: int, name: str | os.PathLike, errors: str = "strict") -> str:
    """Decodes a line without its line end, and without a byte order mark in the first line.

    Raises the `InputError` of `not_utf8` for bytes that are not UTF-8. A first line in UTF-16 or
    UTF-32, or of a ZIP archive, is an error whatever `errors` says.
    """
    try:
        text = line.decode("utf-8", errors)
    except UnicodeDecodeError:
        raise not_utf8(line, number, name) from None
    if number == 1:
        if line.startswith(_ZIP) or _wide_encoding(line):
            raise not_utf8(line, number, name)
        text = text.removeprefix("\ufeff")
    return text.removesuffix("\n").removesuffix("\r")


def line_end(line: bytes) -> str:
    """Returns the line end of a line, `"\n"` or `"\r\n"`; `"\n"` for a line without an end."""
    return "\r\n" if line.endswith(b"\r\n") else "\n"


def _is_utf8(line):
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def not_utf8(line: bytes, number: int, name: str | os.PathLike) -> InputError:
    """Returns the error of a line that is not UTF-8.

    Its message names the file and the line (from 1), and the first wrong byte or the encoding that
    the text seems to have, with the command that converts it.
    """
    if number == 1 and line.startswith(_ZIP):
        rule = f"{os.fspath(name)}, line 1: expected UTF-8 text. Received: a ZIP archive"
        return InputError(f"{rule}. Save a spreadsheet (.xlsx, .ods) as CSV, unpack other files.")
    encoding = _wide_encoding(line) if number == 1 else None
    received_value = str(encoding)
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        if encoding is None:
            received_value = f"byte 0x{line[error.start]:02x} at column {error.start + 1}"
            if _is_western(line):
                received_value += ", as in Latin-1"
                encoding = "WINDOWS-1252"
    message = f"{os.fspath(name)}, line {number}: expected UTF-8 text. Received: {received_value}."
    if encoding:
        message += f" Convert the text with `iconv -f {encoding} -t UTF-8`."
    return InputError(message)


def _wide_encoding(line):
    """Returns the encoding of a first line of two or four bytes per character, or None.

    Its byte order mark tells, or zeros in the place of every second byte: no text has them.
    """
    for mark, encoding in _MARKS.items():
        if line.startswith(mark):
            return encoding
    shares = [line[start:64:2].count(0) / max(2, len(line[start:64:2])) for start in (0, 1)]
    if max(shares) <= 0.5 or min(shares) > 0.1:
        return None
    return "UTF-16LE" if shares[1] > shares[0] else "UTF-16BE"


def _is_western(line):
    """Returns whether a line seems to have one byte per character, few of them beyond ASCII.

    Letters of UTF-8 near the wrong byte mean that the line is damaged, and long runs of bytes
    beyond ASCII that the text is in another script.
    """
    is_damaged = not line.decode("utf-8", "ignore").isascii()
    return not is_damaged and not re.search(rb"[\x80-\xff]{3}|[\x81\x8d\x8f\x90\x9d]", line)


def expanded_path(path: str) -> str:
    """Returns a path with `~`, `~user`, `$NAME` and `${NAME}` replaced, as a shell does it.

    A name that the environment lacks stays as it is.
    """
    return os.path.expanduser(os.path.expandvars(path))


def check_file(path: str | os.PathLike) -> None:
    """Raises `InputError` for a file of a model that is missing, unreadable or a Git LFS pointer.

    A folder that was cloned without Git LFS has a pointer, a text of three lines, in the place of
    each large file.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        raise InputError(f"{path}: expected a file. Received: a directory.")
    try:
        with open(path, "rb") as file:
            is_pointer = file.read(len(_POINTER)) == _POINTER
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: the name has a NUL.
        raise InputError(f"{path}: no such file.") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    if is_pointer:
        rule = "expected the file itself. Received: a Git LFS pointer to it"
        raise InputError(f"{path}: {rule}. Run `git lfs pull` there, or download the file.")


@contextlib.contextmanager
def reading_errors(path: str | os.PathLike, noun: str) -> Iterator[None]:
    """Turns any exception while a file of a model is read into one line.

    Any byte of a damaged file may be wrong, so libraries and readers raise many kinds.

    Args:
        path: Path of the file; errors of `check_file` come first.
        noun: Content that the file should have.
    """
    check_file(path)
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = f"{first_line(error):.200}"
        raise InputError(f"{os.fspath(path)}: cannot be read as {noun}: {reason}.") from None


def read_checked(path: str | os.PathLike) -> bytes:
    """Returns the content of a file of a model; raises the errors of `check_file`."""
    check_file(path)
    return Path(path).read_bytes()


def read_json(path: str | os.PathLike, kind: type = dict, noun: str = "") -> Any:
    """Reads a JSON file that belongs to a model.

    Args:
        path: Path of the file.
        kind: `list`, or `dict` for an object, or `tuple` for the pairs of an object.
        noun: Content that the file should have; by default "a JSON object" or "a JSON list".

    Raises:
        InputError: The file is missing, not UTF-8, not JSON, or has another kind of content.
    """
    from keras_transformer.base.options import received  # Late: it imports Pydantic.

    noun = noun or f"a JSON {'list' if kind is list else 'object'}"
    rule = f"{os.fspath(path)}: expected {noun}"
    text = decode_text(read_checked(path), path)
    try:
        value = json.loads(text, object_pairs_hook=tuple if kind is tuple else None)
    # A list in a list may be too deep.
    except (ValueError, RecursionError) as error:
        raise InputError(f"{rule}. Received: {error}.") from None
    if not isinstance(value, kind):
        raise InputError(f"{rule}. Received: {received(value)}.")
    return value


def read_arrays(path: str | os.PathLike) -> dict[str, Any]:
    """Reads the arrays of an npz file by their names; raises `InputError` for any other file."""
    import numpy as np

    check_file(path)
    rule = f"{os.fspath(path)}: expected a whole npz file of numbers"
    if not zipfile.is_zipfile(path):
        raise InputError(f"{rule}. Received: another file, or half of one.")
    try:
        with np.load(path, allow_pickle=False) as file:
            # NumPy reads at most the size that the list of members has.
            if sum(member.file_size for member in file.zip.infolist()) > max_unpacked_bytes(path):
                raise too_large(path)
            return {name: file[name] for name in file.files}
    except InputError:
        raise
    # NumPy and zipfile raise many kinds. NumPy's text about a pickle would lead astray.
    except Exception as error:
        reason = "a pickle" if "pickle" in str(error) else f"{first_line(error):.200}"
        raise InputError(f"{rule}. Received: {reason}.") from None


def max_unpacked_bytes(path: str | os.PathLike) -> int:
    """Returns how many bytes a compressed file of a model may have unpacked."""
    return _MAX_GROWTH * os.path.getsize(path) + _FREE_BYTES


def too_large(path: str | os.PathLike) -> InputError:
    """Returns the error of a file that has more than `max_unpacked_bytes`."""
    rule = f"must be at most {_MAX_GROWTH} times as large unpacked, plus {_FREE_BYTES >> 20} MiB"
    return InputError(f"{os.fspath(path)}: {rule}. Received: more.")


def decode_text(content: bytes, name: str | os.PathLike) -> str:
    """Decodes the lines of a UTF-8 file as `decode_line` does, with "\\n" between them."""
    lines = enumerate(content.split(b"\n"), 1)
    return "\n".join(decode_line(line, number, name) for number, line in lines)


def file_digests(
    folder: str | os.PathLike, files: Iterable[str | os.PathLike] | None = None
) -> dict[str, str]:
    """Computes SHA-256 checksums of files in a folder, by default all, by their relative paths.

    Paths have `/` between names.
    """
    folder, digests = Path(folder), {}
    for path in sorted(folder.rglob("*") if files is None else map(Path, files)):
        if path.is_file():
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            digests[path.relative_to(folder).as_posix()] = digest
    return digests


def digest_of(folder: str | os.PathLike, files: Iterable[str | os.PathLike] | None = None) -> str:
    """Computes a SHA-256 checksum of the names and contents of a folder's files."""
    digest = hashlib.sha256()
    for name, content in file_digests(folder, files).items():
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0" + bytes.fromhex(content))
    return digest.hexdigest()


def read_lines(path: str | os.PathLike) -> list[str]:
    """Returns all lines of a file; see `iterate_lines`."""
    return list(iterate_lines(path))


_WITHOUT_BREAKS = str.maketrans("", "", "\n\r")


def one_line(text: str) -> str:
    """Returns a text without line breaks, so that lines stay aligned.

    A break inside the text becomes a space. At its beginning and end, `"\n"` and `"\r"` are
    removed, and all other white space stays.
    """
    inner = text.strip()
    start = text.index(inner)
    before, after = (
        outer.translate(_WITHOUT_BREAKS) for outer in (text[:start], text[start + len(inner) :])
    )
    return f"{before}{' '.join(inner.splitlines())}{after}"


class BoundedYaml:
    """Mixin of PyYAML's loaders that refuses aliases which make a document much longer.

    A few hundred bytes of aliases to aliases stand for more values than memory holds. They fill it
    as soon as a program copies, compares or shows the values.
    """

    def get_single_node(self) -> Any:
        """Returns the root of the only document, None for an empty one."""
        import yaml

        loader: Any = super()
        root = loader.get_single_node()
        if root is not None:
            limit = _MAX_YAML_GROWTH * root.end_mark.index + _YAML_CHARACTERS
            if _written_size(root, {}) > limit:
                problem = f"aliases must not make it more than {_MAX_YAML_GROWTH} times as long"
                raise yaml.MarkedYAMLError(problem=problem)
        return root


def _written_size(node, sizes):
    """Returns about how many characters a YAML node has with its aliases written out.

    A node inside itself has infinitely many. `sizes` holds the sizes of known nodes by their `id`.
    """
    if id(node) not in sizes:
        sizes[id(node)] = math.inf
        parts = node.value
        if node.id == "mapping":
            parts = itertools.chain(*parts)
        inner = (
            len(parts) if node.id == "scalar" else sum(_written_size(part, sizes) for part in parts)
        )
        sizes[id(node)] = 1 + inner
    return sizes[id(node)]


_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def escape_field(text: str) -> str:
    r"""Returns a text as a field of a TSV file, without tabs and line breaks.

    A backslash, a tab, a line feed and a carriage return become `\\`, `\t`, `\n` and `\r`.
    """
    return "".join(_ESCAPES.get(character, character) for character in text)


def unescape_field(field: str) -> str:
    """Returns the text of a field that `escape_field` wrote."""
    texts = {escape: text for text, escape in _ESCAPES.items()}
    return re.sub(r"\\[\\tnr]", lambda match: texts[match[0]], field)


def csv_row(cells: Iterable[str]) -> str:
    """Returns a row of a CSV file with its line break, which `text.tables.iterate_rows` reads."""
    row = io.StringIO()
    csv.writer(row, lineterminator="\n").writerow(cells)
    return row.getvalue()
