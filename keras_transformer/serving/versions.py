"""The versions of a model in a folder, laid out as TensorFlow Serving wants it."""

import dataclasses
import hashlib
import os
from pathlib import Path

from keras_transformer.errors import InputError

_GRAPH = "saved_model.pb"


@dataclasses.dataclass(frozen=True)
class Version:
    """A version that is there.

    Attributes:
        number: Its number.
        folder: Absolute path of its folder.
        stamp: What changes when any of its files does.
    """

    number: int
    folder: str
    stamp: tuple


def find_versions(path):
    """The versions of a model, the highest first.

    Args:
        path: A SavedModel's folder, or a folder of such folders whose names are numbers. Folders
            with other names, or without a graph, are passed over.

    Returns:
        A list of `Version`, empty if there is none.
    """
    path = Path(os.path.abspath(path))
    if (path / _GRAPH).is_file():
        return [_version(int(path.name) if _is_number(path.name) else 1, path)]
    try:
        folders = [entry for entry in path.iterdir() if _is_number(entry.name)]
    except OSError:
        return []
    found = [_version(int(entry.name), entry) for entry in folders if (entry / _GRAPH).is_file()]
    return sorted(found, key=lambda version: version.number, reverse=True)


def folder_digest(folder):
    """SHA-256 over the names and contents of all files of a folder, as text.

    Raises:
        OSError: A file went while it was read.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode("utf-8", "surrogateescape"))
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def model_name(path):
    """The name of a model by default: that of the folder which holds its versions."""
    path = Path(os.path.abspath(path))
    inside = (path / _GRAPH).is_file() and _is_number(path.name)
    name = (path.parent if inside else path).name
    return "".join("_" if sign in "/:?#%" else sign for sign in name) or "model"


def check_model(path):
    """Raises `InputError` if there is nothing to serve at `path`."""
    if not os.path.isdir(path):
        raise InputError(f"{path}: expected a folder with a SavedModel. Received: no such folder.")
    if not find_versions(path):
        raise InputError(
            f"{path}: expected a SavedModel (saved_model.pb) or numbered folders with one each "
            f"({path}/1). Received: neither."
        )


def _is_number(name):
    # `isdecimal` alone would take digits of every script.
    return name.isascii() and name.isdecimal()


def _version(number, folder):
    stamp = []
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.stat(os.path.join(directory, name))
            except OSError:
                continue
            stamp.append((os.path.join(directory, name), status.st_size, status.st_mtime_ns))
    return Version(number, str(folder), tuple(sorted(stamp)))
