"""The file of a recipe, and `--set`: YAML as plain values, with one line for what is none."""

import os
import pathlib
import re
from typing import Any

from keras_transformer.declaration import received
from keras_transformer.errors import InputError


def load_yaml(path: str | os.PathLike) -> dict[str, Any]:
    """The sections of a recipe; raises `InputError` for a file that is none."""
    path = pathlib.Path(path)
    try:
        values = _yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot read the recipe: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: the recipe must be UTF-8 text.") from None
    except _NotYAML as error:
        raise InputError(f"{path}{error}.") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: a recipe must have sections such as `data:` and `model:`.")
    return values


class _NotYAML(Exception):
    """The line, where it is known, and the problem."""


def _yaml(text):
    """The value of a YAML text, with `1e-3` a number as in YAML 1.2 and not a text as in 1.1."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    number = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be read"
        raise _NotYAML(f"{line}: not valid YAML: {problem}") from None
    except (ValueError, RecursionError) as error:  # As for 2026-99-99, or 5,000 brackets.
        raise _NotYAML(f": not valid YAML: {error}") from None


def apply(values: dict[str, Any], override: str) -> None:
    """Puts the value of `section.key=value` into the sections; raises `InputError`."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise InputError(f"--set must be section.key=value. Received: {override!r}.")
    try:
        value = _yaml(text)
    except _NotYAML:
        raise InputError(
            f"--set {key}: the value must be YAML. Received: {received(text)}."
        ) from None
    for part in parts[:-1]:
        if values.get(part) is None:
            values[part] = {}
        values = values[part]
        if not isinstance(values, dict):
            raise InputError(f"--set {key}: `{part}` is a value, not a section.")
    values[parts[-1]] = value
