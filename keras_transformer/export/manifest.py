"""What an export says: `export.json`, digests of its files, its tokenizers, a line a phase."""

import contextlib
import dataclasses
import importlib.metadata
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.errors import InputError
from keras_transformer.export.readme import readme
from keras_transformer.owned_folder import MANIFEST, OwnedFolder

_logger = logging.getLogger(__name__)  # which the command line shows

if TYPE_CHECKING:
    from keras_transformer.decoding import ModelEngine


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """What an export wrote and how it was checked.

    Attributes:
        folder: Path of the folder.
        manifest: The content of its `export.json`: options, sizes, operations, versions.
        verification: The content of its `verification.json`.
        seconds: Time that export and verification took.
    """

    folder: str
    manifest: dict
    verification: dict
    seconds: float


def check_tensorflow(what: str) -> None:
    """Raises `InputError` on another backend of Keras, where `what` cannot be exported."""
    import keras

    if (backend := keras.backend.backend()) != "tensorflow":
        rule = f"A {what} is exported on Keras' TensorFlow backend."
        raise InputError(f"{rule} Received: backend={backend!r}.")


def common_fields(kind: str, version: int, engine: "ModelEngine", packages: Iterable[str]) -> dict:
    """The fields that the manifests of all formats have, with the versions of some packages."""
    import keras_transformer

    return {
        "format": f"keras_transformer.{kind}",
        "format_version": version,
        "kind": engine.model.config.kind,
        "max_source_length": engine.max_source_length,
        "max_target_length": engine.max_target_length,
        "source_vocabulary_size": engine.source_tokenizer.vocabulary_size,
        "target_vocabulary_size": engine.target_tokenizer.vocabulary_size,
        **({"turns": list(engine.turns)} if engine.turns else {}),
        **({"whole_words": True} if engine.source_tokenizer.whole_words else {}),
        "versions": {
            "keras_transformer": keras_transformer.__version__,
            **{name: importlib.metadata.version(name) for name in packages},
        },
    }


def write_tokenizers(engine: "ModelEngine", folder: Path) -> dict[str, str]:
    """Writes the SentencePiece models, one where both sides share it; gives the manifest's keys."""
    source, target = engine.source_tokenizer, engine.target_tokenizer
    if source == target:
        source.save(folder / "tokenizer.model")
        return dict.fromkeys(("source_tokenizer", "target_tokenizer"), "tokenizer.model")
    source.save(folder / "source_tokenizer.model")
    target.save(folder / "target_tokenizer.model")
    return {f"{side}_tokenizer": f"{side}_tokenizer.model" for side in ("source", "target")}


@contextlib.contextmanager
def staged_export(
    output: str | os.PathLike, overwrite: bool
) -> Iterator[tuple[Path, Callable[[dict, Callable[[], dict]], ExportReport]]]:
    """`OwnedFolder.staged`, and a function that ends the export there.

    It writes the manifest and the README, calls a function that verifies, and writes what that
    found.
    """
    start = time.perf_counter()
    with OwnedFolder(output).staged(overwrite) as folder:

        def finish(manifest, verify):
            _write_json(folder / MANIFEST, manifest)
            (folder / "README.md").write_text(readme(manifest), encoding="utf-8")
            verification = verify()
            _write_json(folder / "verification.json", verification)
            seconds = time.perf_counter() - start
            return ExportReport(os.fspath(output), manifest, verification, seconds)

        yield folder, finish


def _write_json(path, content):
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_manifest(
    folder: Path, kinds: tuple[str, ...], wanted: Iterable[str], expected: str, what: str
) -> dict:
    """Reads `export.json` of one of some formats, such as `litert`, with the `wanted` keys.

    Raises `InputError` if it is missing (then there is `what`), damaged, of another format or lacks
    a key; the message begins with `expected`.
    """
    try:
        manifest = json.loads((Path(folder) / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{expected} Received: {what}.") from None
    except (OSError, ValueError):
        raise InputError(f"{expected} Received: a {MANIFEST} that cannot be read.") from None
    formats = [f"keras_transformer.{kind}" for kind in kinds]
    if not isinstance(manifest, dict) or manifest.get("format") not in formats:
        raise InputError(f'{expected} Received: a {MANIFEST} whose "format" is another.')
    if missing := [name for name in wanted if name not in manifest]:
        raise InputError(f'{expected} Received: a {MANIFEST} without "{missing[0]}".')
    return manifest


def is_classifier(folder: Path) -> bool:
    """Whether `export.json` of a folder says that it is an exported classifier."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return manifest["format"] == "keras_transformer.classifier"
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextlib.contextmanager
def phase(what: str) -> Iterator[None]:
    """Logs what was done in the context, and the seconds that it took."""
    start = time.perf_counter()
    yield
    _logger.info("%s: %.1f s", what, time.perf_counter() - start)
