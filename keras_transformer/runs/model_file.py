"""The file of a model, `*.keras`: loaded without running code of it, and saved whole."""

import contextlib
import io
import json
import os
import pathlib
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Iterator

from keras_transformer.base.errors import InputError
from keras_transformer.base.files import replaced_file
from keras_transformer.base.reading import check_file, reading_errors

_WEIGHTS = "model.weights.h5"  # Keras' name of the file of weights
_WEIGHTS_START = 512  # A file of HDF5 may begin there: at 0, or a power of two from 512 on.
_MAX_PARTS_BYTES = 16 << 20  # of the other files: settings of Keras
_HEADER, _SIZES = 30, 26  # bytes before a member's name, and before the sizes of name and extra
_LARGE_SIZES = 20  # bytes of a member's extra field with its sizes, for more than 4 GiB
_PADDING = 0xD935  # an extra field of zeros before a member's content, as Android has it
_COPIED_BYTES = 1 << 22
WEIGHT_DTYPES = ("float32", "float16", "bfloat16")
"""Dtypes that the weights of a file may have."""


def load_model(path: str | os.PathLike, compile: bool):
    """Loads a model from a `.keras` file, without running any code that the file may hold.

    Raises:
        InputError: The file is missing, damaged, or holds something else.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such model file.")
    check_file(path)  # Before Keras, which takes seconds.
    import keras

    from keras_transformer.base.large_variables import zero_initialized
    from keras_transformer.models import KINDS

    with reading_errors(path, "a Keras model"), _in_place(path) as model_path, zero_initialized():
        model = keras.saving.load_model(model_path, compile=compile, safe_mode=True)
    if not isinstance(model, tuple(KINDS.values())):
        names = ", ".join(kind.__name__ for kind in KINDS.values())
        raise InputError(f"{path}: expected one of {names}. Received: {type(model).__name__}.")
    return model


@contextlib.contextmanager
def _in_place(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields what Keras loads instead of a file: a folder of its parts, with a link to the weights.

    Keras would read all weights of a file into memory before it assigns the first of them. The
    library of HDF5 opens an archive where `save_model` has put the weights, as if it was their
    file. Other files of Keras are yielded as they are.
    """
    with contextlib.ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path))
        weights, *parts = sorted(archive.infolist(), key=lambda member: member.header_offset)
        size = sum(part.file_size for part in parts)
        if not _is_in_place(weights, path) or size > _MAX_PARTS_BYTES:
            yield path
            return
        if damaged := archive.testzip():  # Only this finds a wrong number.
            raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        archive.extractall(folder, parts)
        try:
            os.symlink(path.resolve(), folder / _WEIGHTS)
        except (OSError, NotImplementedError):  # a system without links
            folder = path
        yield folder


def _is_in_place(member, path):
    """Returns whether a member is the weights, stored where a file of HDF5 may begin."""
    with open(path, "rb") as file:
        file.seek(member.header_offset + _SIZES)
        name_size, extra_size = struct.unpack("<HH", file.read(4))
    start = member.header_offset + _HEADER + name_size + extra_size
    is_stored = member.compress_type == zipfile.ZIP_STORED
    return member.filename == _WEIGHTS and is_stored and start == _WEIGHTS_START


def weight_bytes(path: pathlib.Path) -> int:
    """Returns the bytes that the weights of a `.keras` file take in memory; 0 without a file."""
    return path.stat().st_size if path.is_file() else 0


def save_model(model, path: str | os.PathLike) -> None:
    """Saves a model under a temporary name, then renames it: `path` is never half a file.

    The weights lie where `_in_place` expects them; Keras would build the file in memory. No model
    has assets.
    """
    import keras

    with replaced_file(path) as temporary:
        with open(temporary, "w+b", buffering=0) as weights_file:
            weights = _WeightsFile(weights_file)
            try:
                model.save_weights(weights)
            finally:
                if weights.error is not None:
                    raise weights.error
        with open(temporary, "r+b") as file, zipfile.ZipFile(file, "w") as archive:
            _add_weights(archive, temporary)
            archive.writestr("config.json", model.to_json())
            archive.writestr("metadata.json", json.dumps({"keras_version": keras.version()}))


class _WeightsFile(io.BytesIO):  # Keras takes a path or an object of this class.
    """A file that HDF5 writes from `_WEIGHTS_START` on, with its first `error`.

    After a failed write HDF5 itself crashes, or leaves zeros there and reports nothing.
    """

    def __init__(self, file):
        super().__init__()
        self.error, self._file, self._size = None, file, 0

    def __str__(self):
        return _WEIGHTS  # Keras checks the suffix.

    def seek(self, offset, whence=os.SEEK_SET):
        return super().seek(offset + (self._size if whence == os.SEEK_END else 0))

    def readinto(self, buffer):
        return os.preadv(self._file.fileno(), [buffer], _WEIGHTS_START + self.tell())

    def write(self, content):
        start, rest = self.tell(), memoryview(content)
        self._size = max(self._size, start + len(rest))
        with self._error_kept():
            while rest:
                size = os.pwrite(self._file.fileno(), rest, _WEIGHTS_START + start)
                start, rest = start + size, rest[size:]
        return len(content)

    def truncate(self, size):
        self._size = size
        with self._error_kept():
            self._file.truncate(_WEIGHTS_START + size)
        return size

    @contextlib.contextmanager
    def _error_kept(self):
        try:
            yield
        except BaseException as error:  # an interrupt, too: it would be an error in HDF5
            self.error = self.error or error


def _add_weights(archive, path):
    """Adds the first member of an archive, whose content is in place, and gets its checksum."""
    member = zipfile.ZipInfo.from_file(path, _WEIGHTS)
    size = _WEIGHTS_START - _HEADER - len(_WEIGHTS) - _LARGE_SIZES
    member.extra = struct.pack("<HH", _PADDING, size - 4) + bytes(size - 4)
    with open(path, "rb") as content, archive.open(member, "w", force_zip64=True) as file:
        content.seek(_WEIGHTS_START)
        shutil.copyfileobj(content, file, _COPIED_BYTES)
