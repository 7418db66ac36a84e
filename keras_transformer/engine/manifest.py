"""Reads and checks the manifest of an export, `export.json`, and the files that it names."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.files import check_file, file_digests
from keras_transformer.owned_folder import MANIFEST
from keras_transformer.text import Tokenizer


def load_tokenizers(folder: Path, manifest: dict) -> tuple[Tokenizer, Tokenizer]:
    """Loads the source's and the target's tokenizers that `write_tokenizers` wrote."""
    # Only the name, because a manifest must not refer to files elsewhere.
    names = (Path(manifest[f"{side}_tokenizer"]).name for side in ("source", "target"))
    source, target = (Tokenizer.load(folder / name) for name in names)
    return source, target


def open_export(
    folder: Path,
    formats: Sequence[str],
    fields: Mapping[str, Any],
    noun: str,
    files: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Reads `export.json` of an export in one of some formats, and checks its files' checksums.

    Args:
        folder: Path of the export.
        formats: Names of exporters, such as `litert`.
        fields: Required keys of the manifest, with their types.
        noun: Name of such an export in the messages.
        files: Names of the files to check, all by default.

    Raises:
        InputError: The manifest is missing, damaged or of another format, or a file has changed
            since the export.
    """
    rule = f"{os.fspath(folder)}: expected {noun} that this package exported."
    if not Path(folder).exists():
        raise InputError(f"{rule} Received: no such folder.")
    try:
        manifest = json.loads((Path(folder) / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{rule} Received: a folder without {MANIFEST}.") from None
    except (OSError, ValueError):
        check_file(Path(folder) / MANIFEST)
        raise InputError(f"{rule} Received: a {MANIFEST} that cannot be read.") from None
    names = [f"keras_transformer.{format}" for format in formats]
    if not isinstance(manifest, dict) or manifest.get("format") not in names:
        raise InputError(f'{rule} Received: a {MANIFEST} whose "format" is another.')
    for name, kind in {"files": dict, **fields}.items():
        if not isinstance(manifest.get(name), kind):
            received = f'a {MANIFEST} without "{name}" or with another type of it'
            raise InputError(f"{rule} Received: {received}.")
    described = {name: manifest["files"].get(name) for name in files or manifest["files"]}
    # LiteRT's manifest has more fields about each file.
    digests = {
        name: entry["sha256"] if isinstance(entry, dict) else entry
        for name, entry in described.items()
    }
    _check_digests(Path(folder), digests)
    return manifest


def _check_digests(folder, digests):
    """Raises `InputError` for a file that is missing or has another SHA-256 than `digests`.

    Weights of another model have the same names and shapes: nothing else would notice them.
    """
    try:
        digests_of_files = file_digests(folder, (folder / name for name in digests))
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror}.") from None
    for name, digest in digests.items():
        if digests_of_files.get(name) != digest:
            if not (is_missing := name not in digests_of_files):
                check_file(folder / name)  # A Git LFS pointer has a message of its own.
            state = "is missing" if is_missing else "is not the file that was exported"
            raise InputError(
                f"{folder}: the export is incomplete or damaged. Received: {name} {state}."
            )


def has_labels(folder: Path) -> bool:
    """Returns whether a folder's `export.json` describes a classifier."""
    try:
        return "labels" in json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False
