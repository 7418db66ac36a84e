"""Reads and checks the manifest of an export, `export.json`, and the files that it names.

An engine reads all files while it is made, and never opens its folder again: the folder may hold
another export later, or a relative path may lead elsewhere.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.base.errors import InputError
from keras_transformer.base.files import MANIFEST, SHORTLIST_FILE, check_version
from keras_transformer.base.reading import check_file, file_digests, read_json
from keras_transformer.text import Tokenizer
from keras_transformer.text.languages import (
    Languages,
    languages_of_directions,
    languages_of_tags,
)
from keras_transformer.text.shortlist import Shortlist


def tokenizer_names(manifest: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the names of the source's and the target's tokenizer files."""
    # Only the name, because a manifest must not refer to files elsewhere.
    source, target = (Path(manifest[f"{side}_tokenizer"]).name for side in ("source", "target"))
    return source, target


def load_tokenizers(folder: Path, manifest: Mapping[str, Any]) -> tuple[Tokenizer, Tokenizer]:
    """Loads the source's and the target's tokenizers that `write_tokenizers` wrote."""
    names = tokenizer_names(manifest)
    tokenizers = {name: Tokenizer.load(folder / name) for name in set(names)}
    return tokenizers[names[0]], tokenizers[names[1]]


def read_shortlist(folder: Path, manifest: Mapping[str, Any]) -> Shortlist | None:
    """Reads an export's shortlist; None for an export that searches the whole vocabulary."""
    if not manifest.get("shortlist"):
        return None
    return Shortlist.from_bytes(read_files(folder, manifest, [SHORTLIST_FILE])[SHORTLIST_FILE])


def read_languages(manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> Languages | None:
    """Returns the languages of an export's model, None if they are unknown."""
    if (values := manifest.get("language_tokens")) is not None:
        return Languages.from_dict(values, f"{MANIFEST}: `language_tokens`: ")
    if tokenizer is not None and (languages := languages_of_tags(tokenizer.tag_tokens)):
        return languages
    pair = manifest.get("languages")
    return languages_of_directions([(str(pair[0]), str(pair[1]))]) if pair else None


@contextlib.contextmanager
def opened_export(
    folder: Path, formats: Sequence[str], fields: Mapping[str, Any], noun: str
) -> Iterator[dict[str, Any]]:
    """Checks the checksums of an export's files, and gives its manifest to the block that loads it.

    Args:
        folder: Path of the export.
        formats: Names of exporters, such as `litert`.
        fields: Required keys of the manifest, with their types.
        noun: Name of such an export in the messages.

    Raises:
        InputError: See `read_manifest`; a file is missing or has changed since the export; or
            another export has replaced this one before the block ends.
    """
    manifest = read_manifest(folder, formats, fields, noun)
    names = _digests_of(manifest)
    try:
        digests = file_digests(folder, (folder / name for name in names))
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror}.") from None
    _check_digests(folder, manifest, names, digests)
    yield manifest
    # Files of two exports would make an engine that nobody has verified.
    if read_manifest(folder, formats, fields, noun) != manifest:
        problem = "another export has replaced this one while it was opened"
        raise InputError(f"{folder}: {problem}. Open it again.")


def read_files(folder: Path, manifest: Mapping[str, Any], names: Sequence[str]) -> dict[str, bytes]:
    """Reads files of an export by their names; raises `InputError` unless they are the manifest's.

    The checksum is computed from the bytes that are returned.
    """
    contents = {}
    try:
        for name in names:
            if name not in contents and (folder / name).exists():
                contents[name] = (folder / name).read_bytes()
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror}.") from None
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    _check_digests(folder, manifest, names, digests)
    return contents


def read_manifest(
    folder: Path, formats: Sequence[str], fields: Mapping[str, Any], noun: str
) -> dict[str, Any]:
    """Reads `export.json` of an export in one of some formats.

    Takes the arguments of `opened_export`; raises `InputError` if the manifest is missing, damaged
    or of another format.
    """
    rule = f"{os.fspath(folder)}: expected {noun} that this package exported."
    if not Path(folder).exists():
        raise InputError(f"{rule} Received: no such folder.")
    if not os.path.exists(Path(folder) / MANIFEST):
        raise InputError(f"{rule} Received: a folder without {MANIFEST}.")
    manifest = read_json(Path(folder) / MANIFEST)
    names = [f"keras_transformer.{format}" for format in formats]
    if manifest.get("format") not in names:
        raise InputError(f'{rule} Received: a {MANIFEST} whose "format" is another.')
    check_version(manifest.get("format_version"), folder)
    for name, kind in {"files": dict, **fields}.items():
        if not isinstance(manifest.get(name), kind):
            received = f'a {MANIFEST} without "{name}" or with another type of it'
            raise InputError(f"{rule} Received: {received}.")
    return manifest


def _digests_of(manifest):
    """Returns the SHA-256 checksums in a manifest, by the names of the files."""
    # LiteRT's manifest has more fields about each file.
    return {
        name: entry.get("sha256") if isinstance(entry, dict) else entry
        for name, entry in manifest["files"].items()
    }


def _check_digests(folder, manifest, names, digests):
    """Raises `InputError` for a file that is missing or has another SHA-256 than in the manifest.

    Weights of another model have the same names and shapes: nothing else would notice them.
    """
    expected = _digests_of(manifest)
    for name in names:
        if name not in digests or digests[name] != expected.get(name):
            if name in digests:
                check_file(folder / name)  # A Git LFS pointer has a message of its own.
            state = "is not the file that was exported" if name in digests else "is missing"
            raise InputError(
                f"{folder}: the export is incomplete or damaged. Received: {name} {state}."
            )


def has_labels(folder: Path) -> bool:
    """Returns whether a folder's `export.json` describes a classifier."""
    with contextlib.suppress(InputError):
        return "labels" in read_json(folder / MANIFEST)
    return False
