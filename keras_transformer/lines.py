"""Text files, read strictly: a wrong byte is an error with a line number, never a guess."""

import gzip
import os
import zlib

from keras_transformer.errors import InputError


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
