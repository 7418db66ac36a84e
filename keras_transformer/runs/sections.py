"""The recipe of a run as readers see it: sections of YAML, and the section `decoding`."""

import os
import re
from collections.abc import Mapping
from typing import Any

import pydantic

from keras_transformer.base.errors import InputError, check_path
from keras_transformer.base.files import FORMAT_VERSION, check_version, write_whole
from keras_transformer.base.options import option, options_class, received
from keras_transformer.base.reading import BoundedYaml, decode_text
from keras_transformer.decoding.search_options import RunSearchOptions, run_search_options
from keras_transformer.text.sentences import TextRules

VERSION = "format_version"
"""Key of the version of a run's files."""
_MAX_RECIPE_BYTES = 1_000_000  # which take seconds to parse


@options_class
class DecodingSection(RunSearchOptions):
    """Defaults of `translate`, `evaluate` and `export`."""

    max_source_length: int = option(
        512,
        "Maximum number of source tokens; longer texts raise an error, are split or truncated.",
        ge=2,
    )
    max_target_length: int = option(
        256,
        "Maximum number of tokens of a translation; twice the source's number plus 10 is a "
        "further limit.",
        ge=2,
    )

    split_sentences: bool | None = option(
        None,
        "Translate each sentence of a text by itself; null: a training decides by its sources.",
    )
    copy_symbols: bool | None = option(
        None,
        "Copy texts without letters, such as `12:30`; null: a training decides by its pairs.",
    )
    keep_case: bool | None = option(
        None,
        "Read a sentence in capitals in its usual case, and write its translation in capitals; "
        "null: a training decides by its sources.",
    )

    @pydantic.model_validator(mode="after")
    def _check_lengths(self) -> "DecodingSection":
        if self.min_length > self.max_target_length:
            rule = "`decoding.min_length` must be at most `decoding.max_target_length`."
            values = f"min_length={self.min_length}, max_target_length={self.max_target_length}"
            raise InputError(f"{rule} Received: {values}.")
        return self

    @property
    def text_rules(self) -> TextRules:
        """Rules of texts that are more, or less, than a sentence."""
        return TextRules.from_fields(vars(self))

    @property
    def search_options(self) -> dict[str, Any]:
        """Search options of `translate` by their names."""
        return run_search_options(vars(self))


def read_sections(path: str | os.PathLike) -> dict[str, Any]:
    """Reads a YAML file of sections without checking them; raises `InputError` for other files.

    It may be the recipe of a run.
    """
    sections = sections_of(recipe_text(path), path)
    if VERSION in sections:
        check_version(sections.pop(VERSION), path)
    return sections


def write_sections(path: str | os.PathLike, sections: Mapping[str, Any]) -> None:
    """Writes sections as YAML, with the version of a run's files."""
    import yaml

    values = {VERSION: FORMAT_VERSION, **sections}
    write_whole(path, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def recipe_text(path: str | os.PathLike) -> str:
    """Returns the text of a recipe; raises `InputError` if it is too large or not UTF-8."""
    check_path(path)
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_RECIPE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot read the recipe: {error.strerror}.") from None
    if len(content) > _MAX_RECIPE_BYTES:
        raise InputError(f"{path}: a recipe must have at most {_MAX_RECIPE_BYTES:,} bytes.")
    return decode_text(content, path)


def sections_of(text: str, path: str | os.PathLike) -> dict[str, Any]:
    """Parses the sections of a recipe; raises `InputError` for other YAML."""
    values = parse_yaml(text, path)
    if not isinstance(values, dict):
        raise InputError(f"{path}: a recipe must have sections such as `data:` and `model:`.")
    return values


def set_value(sections: dict[str, Any], override: str) -> tuple[str, ...] | None:
    """Sets the value of `section.key=value`, with a value in YAML, in the sections of a recipe.

    Returns:
        The parts of a key whose value is the word `null`, otherwise None: `~` may mean a folder.

    Raises:
        InputError: The text is no override.
    """
    key, equals, text = override.partition("=")
    parts = tuple(key.strip().split("."))
    if not equals or not all(parts):
        raise InputError(f"--set must be section.key=value. Received: {override!r}.")
    value = parse_yaml(text, f"--set {key}={received(text)}")
    *path, name = parts
    for part in path:
        if sections.get(part) is None:
            sections[part] = {}
        sections = sections[part]
        if not isinstance(sections, dict):
            raise InputError(f"--set {key}: `{part}` is a value, not a section.")
    sections[name] = value
    return parts if text.strip() == "null" else None


def section_of(sections: dict[str, Any], name: str, where: object) -> dict[str, Any]:
    """Returns a section of a file's sections, empty if it is missing or null."""
    section = sections.get(name) or {}
    if not isinstance(section, dict):
        rule = f"`{name}` must be a section with keys"
        raise InputError(f"{where}: {rule}. Received: {received(section)}.")
    return section


def parse_yaml(text: str, where: object) -> Any:
    """Parses YAML; `1e-3` is a number and equal keys are an error, as in YAML 1.2."""
    import yaml

    class Loader(BoundedYaml, yaml.SafeLoader):
        def compose_mapping_node(self, anchor):
            node, keys = super().compose_mapping_node(anchor), {}
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and keys.setdefault(key.value, key) is not key:
                    problem = f"duplicate key {received(key.value)}"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            return node

    number = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be read"
        raise InputError(f"{where}{line}: not valid YAML: {problem:.200}.") from None
    except (AttributeError, LookupError):  # !!bool maybe
        raise InputError(f"{where}: not valid YAML: a value does not fit its tag.") from None
    except (ValueError, RecursionError) as error:  # 2026-99-99, or 5,000 brackets
        raise InputError(f"{where}: not valid YAML: {error!s:.200}.") from None
