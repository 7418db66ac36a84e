"""Published lists of models: Firefox's and Argos Translate's."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.base.errors import InputError, did_you_mean, writing
from keras_transformer.base.reading import file_digests, opened
from keras_transformer.extras.importing.fetching.archives import LimitedStream, unpack
from keras_transformer.extras.importing.fetching.download import download, is_file_name, shown_url

FIREFOX_LIST = (
    "https://firefox.settings.services.mozilla.com/v1/buckets/main/collections/"
    "translations-models-v2/records"
)
FIREFOX_FILES = "https://firefox-settings-attachments.cdn.mozilla.net/"
ARGOS_LIST = "https://raw.githubusercontent.com/argosopentech/argospm-index/main/index.json"
_FIREFOX_MAJOR = 3  # Other major versions are for other engines.
_PAIR = ("srcvocab", "trgvocab")  # of languages without a vocabulary for both
_FIREFOX_KINDS = ("model", "vocab", *_PAIR, "lex")
_MAX_TEXT = 500
# Errors of a record with a missing field, or with a field of another type.
_WRONG = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_ZSTANDARD = b"\x28\xb5\x2f\xfd"


class ListedFile(NamedTuple):
    """File of a list: its version, name, address, and checksums of it and of what is in it."""

    version: tuple[int, ...]
    name: str
    url: str
    sha256: str = ""
    content_sha256: str = ""
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
    """Returns the models of Firefox's records."""
    files: dict[tuple[str, str], dict[str, ListedFile]] = {}
    restricted = set()
    for key, kind, file, is_restricted in _readable(content["data"], _firefox_file):
        of_model = files.setdefault(key, {})
        if file.version[0] != _FIREFOX_MAJOR or kind not in _FIREFOX_KINDS:
            continue
        if kind not in of_model or of_model[kind].version < file.version:
            of_model[kind] = file
            if kind == "model":
                (restricted.add if is_restricted else restricted.discard)(key)
    for of_model in files.values():
        for kind in _PAIR if "vocab" in of_model else ():
            of_model.pop(kind, None)
    return [
        ListedModel(*key, of_model, key not in restricted)
        for key, of_model in files.items()
        if {"model", "vocab"} <= of_model.keys() or {"model", *_PAIR} <= of_model.keys()
        if len({file.name for file in of_model.values()}) == len(of_model)
    ]


def _firefox_file(record):
    """Returns direction and variant, kind, file, and whether only test versions have it."""
    attachment = record["attachment"]
    file = ListedFile(
        _version(record["version"]),
        _text(Path(record["name"]).name),
        FIREFOX_FILES + _text(attachment["location"]).lstrip("/"),
        _text(attachment.get("hash") or ""),
        _text(record.get("decompressedHash") or ""),
        int(attachment.get("size", 0)),
    )
    direction = f"{_text(record['sourceLanguage'])}-{_text(record['targetLanguage'])}"
    if not is_file_name(file.name):
        raise ValueError("the name of a file was expected")
    key = direction, _text(record.get("architecture") or "")
    return key, _text(record["fileType"]), file, bool(record.get("filter_expression"))


def _argos_models(content):
    """Returns the models of Argos' list; other packages are skipped."""
    return list(_readable(content, _argos_model))


def _argos_model(package):
    if package.get("type", "translate") != "translate":
        raise ValueError("no package of a model")
    direction = f"{_text(package['from_code'])}-{_text(package['to_code'])}"
    links = [str(link) for link in package["links"]]
    links = [link for link in links if link.startswith(("https:", "http:"))]
    file = ListedFile(_version(package["package_version"]), "model.argosmodel", links[0])
    return ListedModel(direction, "", {"model": file})


def _readable(records, read):
    """Yields the results of a function of each record, except records that it cannot read.

    Others write the lists: one wrong record must not hide the models of the others.
    """
    if not isinstance(records, list):
        raise TypeError(f"a list was expected, not a {type(records).__name__}")
    for record in records:
        try:
            result = read(record)
        except _WRONG:
            continue
        yield result


def _text(value):
    if not isinstance(value, str) or len(value) > _MAX_TEXT or not value.isprintable():
        raise ValueError("a short text was expected")
    return value


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
    except (*_WRONG, RecursionError) as error:
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
    downloads, files, checksums = folder / "downloads", folder / "files", {}
    for new_folder in (downloads, files):
        new_folder.mkdir(parents=True)
    for file in model.files.values():
        downloaded, path = downloads / file.name, files / file.name
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
