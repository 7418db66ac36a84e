"""Turns the name of a model into a folder: a path, an archive, a URL, a hub id or a list's name."""

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from keras_transformer.base.errors import InputError, print_lines, renamed_in_errors
from keras_transformer.base.files import temporary_folder
from keras_transformer.extras.importing.fetching import hub, registries
from keras_transformer.extras.importing.fetching.archives import unpack
from keras_transformer.extras.importing.fetching.download import download, file_name, shown_url
from keras_transformer.extras.importing.local_folder import LocalModel

_TEMPORARY = "keras-transformer-import-"
_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(?:@(\S+))?", re.ASCII)


def check_name(name: str | os.PathLike) -> None:
    """Raises `InputError` for a text that can be no name of a model; see `local_model`."""
    text = os.fspath(name)
    registry, _, listed_name = text.partition(":")
    is_listed = registry in registries.REGISTRIES and listed_name
    is_url = text.startswith(("http://", "https://"))
    if not (is_listed or is_url or _HUB_ID.fullmatch(text) or os.path.exists(text)):
        rule = "give a path, a URL, ORGANIZATION/NAME of Hugging Face, firefox:en-de or argos:en-de"
        raise InputError(f"{text}: no such folder or archive; {rule}.")


@contextlib.contextmanager
def local_model(
    name: str | os.PathLike, output: str | os.PathLike | None, check: Callable[[Path], None]
) -> Iterator[LocalModel]:
    """Gives the folder of a model; what is downloaded or unpacked for it is removed at the end.

    Args:
        name: Path of a folder or an archive; a URL of an archive; `ORGANIZATION/NAME` or
            `ORGANIZATION/NAME@REVISION` of Hugging Face; `firefox:en-de`, `firefox:en-de/tiny` or
            `argos:en-de`. A path that exists comes before a name of Hugging Face.
        output: Path of an output, next to which temporary files are made; None: where the system
            has temporary files.
        check: Function of a folder that lacks the weights; raises an error before they are
            downloaded from Hugging Face.

    Raises:
        InputError: There is no such model, or it cannot be downloaded or unpacked.
    """
    check_name(name)
    text, path = os.fspath(name), Path(name)
    if os.path.isdir(path):  # `Path.is_dir` raises an error for a name that is too long.
        yield LocalModel(path, text)
        return
    start, shown_folder = Path(tempfile.gettempdir(), _TEMPORARY), tempfile.gettempdir()
    if output is not None:
        start, shown_folder = Path(os.path.realpath(output)), os.fspath(output)
        start = start.with_name(f".{start.name}.import-")
    with temporary_folder(start) as temporary, renamed_in_errors(temporary, shown_folder):
        model = None
        try:
            model = _fetched(text, path, temporary, check)
            yield model
        except InputError as error:  # It may name a temporary file.
            message = str(error)
            if model is not None:
                message = message.replace(str(model.folder), model.name)
            raise type(error)(message.replace(f"{temporary}{os.sep}", "")) from None


def _fetched(text, path, temporary, check):
    registry, _, listed_name = text.partition(":")
    if os.path.isfile(path):
        with open(path, "rb") as file:
            checksums = {path.name: hashlib.file_digest(file, "sha256").hexdigest()}
        return LocalModel(unpack(path, temporary / "model"), text, None, checksums)
    if text.startswith(("http://", "https://")):
        url = shown_url(text)
        archive = temporary / "download" / file_name(url)
        archive.parent.mkdir()
        checksums = {archive.name: download(text, archive)}
        _show(checksums)
        try:
            folder = unpack(archive, temporary / "model")
        except InputError as error:
            raise InputError(str(error).replace(str(archive), url)) from None
        return LocalModel(folder, url, None, checksums)
    if registry in registries.REGISTRIES and listed_name:
        models = registries.read_list(registry, temporary)
        model = registries.choose(registry, listed_name, models)
        print_lines(f"{registry}:{model}")
        folder, checksums = registries.fetch(model, temporary / "model")
        _show(checksums)
        return LocalModel(folder, f"{registry}:{model.name}", model.version, checksums)
    repository, revision = _HUB_ID.fullmatch(text).groups()
    folder = hub.fetch(repository, revision, check)
    return LocalModel(folder, repository, folder.name)


def _show(checksums):
    for name, digest in checksums.items():
        print_lines(f"{name}: sha256 {digest}")


def list_models(registry: str) -> list[str]:
    """Returns a line per model of the list `"firefox:"` or `"argos:"`."""
    name = registry.removesuffix(":")
    if name not in registries.REGISTRIES:
        raise InputError(f"Only firefox: and argos: have a list. Received: {registry!r}.")
    start = Path(tempfile.gettempdir(), _TEMPORARY)
    with temporary_folder(start) as folder, renamed_in_errors(folder, tempfile.gettempdir()):
        return [f"{name}:{model}" for model in registries.read_list(name, folder)]
