"""Versions of a model: exports in numbered folders, as TensorFlow Serving wants them."""

import os
from pathlib import Path
from typing import NamedTuple

from keras_transformer.errors import InputError
from keras_transformer.owned_folder import MANIFEST
from keras_transformer.serving.options import ServerOptions


class Version(NamedTuple):
    """A version of a model: number, absolute path of the export, sizes and times of its files.

    The path is a folder, or a LiteRT file in an export's folder.
    """

    number: int
    path: str
    stamp: tuple


def find_versions(options: ServerOptions) -> list[Version]:
    """Returns the versions that `options` allow, the highest first.

    Folders with other names than numbers, or without a manifest, are passed over. An export itself
    has the number in its name, or 1.
    """
    path = Path(os.path.abspath(options.model))
    if (export_folder(path) / MANIFEST).is_file():
        name = export_folder(path).name
        return [_version(int(name) if _is_number(name) else 1, path)]
    exports = [each.parent for each in path.glob(f"*/{MANIFEST}") if _is_number(each.parent.name)]
    found = sorted((_version(int(each.name), each) for each in exports), reverse=True)
    return [each for each in found if options.version in (None, each.number)]


def highest_version(options: ServerOptions) -> Version:
    """Returns the highest version that `options` allow; raises `InputError` if there is none."""
    for version in find_versions(options):
        return version
    rule = f"{options.model}: expected an export ({MANIFEST}) or numbered folders with one each"
    have = "no such folder" if not os.path.exists(options.model) else f"version={options.version}"
    raise InputError(f"{rule}. Received: {have}.")


def _is_number(name):
    # `isdecimal` alone would take digits of every script.
    return name.isascii() and name.isdecimal()


def _version(number, path):
    stamp = []
    for each in sorted(export_folder(path).rglob("*")):
        try:
            status = each.stat()
        except OSError:
            continue
        stamp.append((str(each), status.st_size, status.st_mtime_ns))
    return Version(number, str(path), tuple(stamp))


def export_folder(path: str | os.PathLike) -> Path:
    """Returns the folder of an export that is named by its folder or by a file in it."""
    path = Path(path)
    return path.parent if path.is_file() else path


def model_name(options: ServerOptions) -> str:
    """Returns the model's name in the addresses: by default that of the folder of its versions."""
    path = export_folder(os.path.abspath(options.model))
    inside = (path / MANIFEST).is_file() and _is_number(path.name)
    name = (path.parent if inside else path).name
    return options.name or "".join("_" if sign in "/:?#%" else sign for sign in name) or "model"
