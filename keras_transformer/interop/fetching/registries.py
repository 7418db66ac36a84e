"""Published lists of models: Firefox's and Argos Translate's."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.errors import InputError, did_you_mean, writing
from keras_transformer.interop.fetching.archives import LimitedStream, unpack
from keras_transformer.interop.fetching.download import download, shown_url
from keras_transformer.reading import file_digests, opened

FIREFOX_LIST = (
    "https://firefox.settings.services.mozilla.com/v1/buckets/main/collections/"
    "translations-models-v2/records"
)
FIREFOX_FILES = "https://firefox-settings-attachments.cdn.mozilla.net/"
ARGOS_LIST = "https://raw.githubusercontent.com/argosopentech/argospm-index/main/index.json"
_FIREFOX_MAJOR = 3  # Other major versions are for other engines.
_PAIR = ("srcvocab", "trgvocab")  # of languages without a vocabulary for both
_FIREFOX_KINDS = ("model", "vocab", *_PAIR, "lex")
_ZSTANDARD = b"\x28\xb5\x2f\xfd"


class ListedFile(NamedTuple):
    """File of a list: its version, name, address, and checksums of it and of what is in it."""

    version: tuple[int, ...]
    name: str
    url: str
    sha256: str | None = None
    content_sha256: str | None = None
    bytes: int = 0


class ListedModel(NamedTuple):
    """Model of a list.

    Attributes:
        direction: Languages, as `en-de`.
        variant: Firefox's architecture, such as `tiny`; otherwise empty.
        files: Files by their kind, such as `model`, `vocab`, `lex`.
        is_released: False for a model that only test versions of the browser have.
    """

    direction: str
    variant: str
    files: dict[str, ListedFile]
    is_released: bool = True

    @property
    def name(self) -> str:
        """The direction, with the variant if there is one, as `en-de/tiny`."""
        return f"{self.direction}/{self.variant}" if self.variant else self.direction

    @property
    def version(self) -> str:
        """Version of the file with the weights."""
        return ".".join(map(str, self.files["model"].version))

    def __str__(self):
        megabytes = sum(file.bytes for file in self.files.values()) / 1e6
        size = f" {megabytes:.0f} MB" if megabytes else ""
        return f"{self.name} {self.version}{size}"


def _firefox_models(content):
    """Returns the models of Firefox's records; records that lack a field are skipped."""
    files: dict[tuple[str, str], dict[str, ListedFile]] = {}
    restricted = set()
    for record in content["data"]:
        try:
            direction = f"{record['sourceLanguage']}-{record['targetLanguage']}"
            key, kind = (direction, record.get("architecture") or ""), record["fileType"]
            attachment = record["attachment"]
            file = ListedFile(
                _version(record["version"]),
                Path(record["name"]).name,
                FIREFOX_FILES + attachment["location"].lstrip("/"),
                attachment.get("hash"),
                record.get("decompressedHash"),
                int(attachment.get("size", 0)),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
        of_model = files.setdefault(key, {})
        if file.version[0] != _FIREFOX_MAJOR or kind not in _FIREFOX_KINDS:
            continue
        if kind not in of_model or of_model[kind].version < file.version:
            of_model[kind] = file
            if kind == "model":
                (restricted.add if record.get("filter_expression") else restricted.discard)(key)
    for of_model in files.values():
        for kind in _PAIR if "vocab" in of_model else ():
            of_model.pop(kind, None)
    return [
        ListedModel(*key, of_model, key not in restricted)
        for key, of_model in files.items()
        if {"model", "vocab"} <= of_model.keys() or {"model", *_PAIR} <= of_model.keys()
    ]


def _argos_models(content):
    """Returns the models of Argos' list; other packages are skipped."""
    models = []
    for package in content:
        if package.get("type", "translate") != "translate":
            continue
        direction = f"{package['from_code']}-{package['to_code']}"
        links = [link for link in package["links"] if link.startswith(("https:", "http:"))]
        file = ListedFile(_version(package["package_version"]), "model.argosmodel", links[0])
        models.append(ListedModel(direction, "", {"model": file}))
    return models


def _version(text):
    return tuple(int(number) for number in re.findall("[0-9]+", text)) or (0,)


_LISTS: dict[str, tuple[Callable[[], str], Callable[[Any], list[ListedModel]]]] = {
    "firefox": (lambda: FIREFOX_LIST, _firefox_models),
    "argos": (lambda: os.environ.get("ARGOS_PACKAGES_INDEX", ARGOS_LIST), _argos_models),
}
REGISTRIES = tuple(_LISTS)


def read_list(registry: str, folder: Path) -> list[ListedModel]:
    """Downloads the list of a registry, a key of `REGISTRIES`, into a folder."""
    url, models_of = _LISTS[registry]
    path = folder / f"{registry}.json"
    download(url(), path)
    try:
        models = models_of(json.loads(path.read_text(encoding="utf-8")))
        return sorted(models, key=lambda model: (model.direction, model.variant))
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        rule = "expected a list of models"
        problem = f"{shown_url(url())}: {rule}. Received: {type(error).__name__} {error!s:.100}"
        raise InputError(f"{problem}.") from None


def choose(registry: str, name: str, models: list[ListedModel]) -> ListedModel:
    """Returns the newest model of a direction: `en-de`, or `en-de/tiny` with its variant."""
    direction, _, variant = name.partition("/")
    of_direction = [model for model in models if model.direction == direction]
    fitting = [model for model in of_direction if variant in ("", model.variant)]
    if fitting:  # Of two models of one version the first, as `base` is before `tiny`.
        return max(fitting, key=lambda model: (model.is_released, model.files["model"].version))
    if of_direction:
        advice = f"Its models are {', '.join(model.variant for model in of_direction)}."
    else:
        near = did_you_mean(direction, {model.direction for model in models})
        advice = f"`keras-transformer import {registry}: --list` shows all directions.{near}"
    raise InputError(f"{registry}:{name}: the list has no such model. {advice}")


def fetch(model: ListedModel, folder: Path) -> tuple[Path, dict[str, str]]:
    """Downloads the files of a model into a new folder.

    Returns:
        The folder of the model, and SHA-256 checksums of the files that were downloaded.
    """
    files, checksums = folder / "files", {}
    files.mkdir(parents=True)
    for file in model.files.values():
        downloaded, path = folder / file.name, files / file.name
        checksums[file.name] = download(file.url, downloaded)
        _check(file.url, file.sha256, checksums[file.name])
        with open(downloaded, "rb") as start:
            ending = ".zst" if start.read(4) == _ZSTANDARD else ""
        with opened(downloaded, ending) as content, writing(path), open(path, "xb") as output:
            shutil.copyfileobj(LimitedStream(content, downloaded), output, 1 << 20)
        _check(file.url, file.content_sha256, file_digests(files, [path])[file.name])
    if path.suffix == ".argosmodel":
        return unpack(path, folder / "unpacked"), checksums
    return files, checksums


def _check(url, expected_digest, digest):
    if expected_digest and digest != expected_digest:
        rule = f"the SHA-256 checksum must be {expected_digest}, as in the list"
        raise InputError(f"{shown_url(url)}: {rule}. Received: {digest}. Try again.")
