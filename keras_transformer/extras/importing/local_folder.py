"""The folder of a model of another program, and what a run records of it."""

import contextlib
import re
from pathlib import Path
from typing import NamedTuple

from keras_transformer.base.reading import BoundedYaml, file_digests
from keras_transformer.extras.foreign.settings import is_of_macos

_FRONT_MATTER = re.compile(r"\ufeff?---\s*\n(.*?)^---\s*$", re.DOTALL | re.MULTILINE)
_MAX_CARD, _MAX_LICENCE = 1 << 20, 200  # characters
# Endings of the files that readers read; a folder may hold copies for other programs.
_READ = {".bin", ".json", ".model", ".npz", ".safetensors", ".spm", ".txt", ".yml"}


class LocalModel(NamedTuple):
    """A model's folder.

    Attributes:
        folder: Path of the folder.
        name: Name that the user gave, without secrets.
        revision: Commit of a repository, or version in a list.
        checksums: SHA-256 checksums of the downloaded files; None for the files of the folder.
    """

    folder: Path
    name: str
    revision: str | None = None
    checksums: dict[str, str] | None = None

    def origin(self, model: Path | None = None) -> dict[str, str | dict[str, str] | None]:
        """Returns what a run records: name, revision, licence and checksums of files.

        Args:
            model: The folder that holds the model, by default `folder`. Its card may be in any of
                the folders between.
        """
        files = self.checksums
        if files is None:
            paths = (path for path in self.folder.rglob("*") if path.suffix in _READ)
            paths = (path for path in paths if not is_of_macos(path.name))
            files = file_digests(self.folder, sorted(paths))
        inner = (model or self.folder).relative_to(self.folder)
        folders = [self.folder / inner, *(self.folder / parent for parent in inner.parents)]
        licence = next(filter(None, map(_licence, folders)), None)
        return {"name": self.name, "revision": self.revision, "licence": licence, "files": files}


def _licence(folder):
    """Returns the field `license` in the front matter of a folder's model card, None without it.

    Where it is `other`, the licence is the field `license_name`, if there is one.
    """
    import yaml

    class Loader(BoundedYaml, yaml.BaseLoader):
        """Reads `no` as a text, as it reads the names of licences."""

    # Not every folder has a card, and not every card begins with YAML.
    with contextlib.suppress(OSError, yaml.YAMLError, ValueError, RecursionError):
        with open(folder / "README.md", encoding="utf-8", errors="replace") as file:
            matter = _FRONT_MATTER.match(file.read(_MAX_CARD))
        fields = yaml.load(matter[1], Loader) if matter else None
        if isinstance(fields, dict):
            fields = {name.lower(): value for name, value in fields.items()}
            licence = _text_of(fields.get("license"))
            name = _text_of(fields.get("license_name")) if licence == "other" else ""
            return name or licence or None
    return None


def _text_of(value):
    """Returns the texts of a field, which is one or a list, as one short line."""
    values = value if isinstance(value, list) else [value]
    texts = (text for text in values if isinstance(text, str))
    return " ".join(", ".join(texts).split())[:_MAX_LICENCE]
