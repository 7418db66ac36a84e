"""Reads the YAML files of other programs, and the numbers in their YAML and JSON."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import INT32, received
from keras_transformer.base.reading import BoundedYaml

# Characters that yaml-cpp writes without escapes. YAML 1.1 refuses them or ends a line at them.
_RAW = "\x7f\x85\u2028\u2029\ufffe\uffff"
# Characters that libyaml refuses without escapes; yaml-cpp escapes them.
_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x80-\x84\x86-\x9f\ufeff]")


def files_like(folder: Path, *patterns: str) -> list[Path]:
    """Returns the files of a folder by patterns, each sorted, without the files of macOS."""
    paths = (path for pattern in patterns for path in sorted(folder.glob(pattern)))
    return [path for path in paths if not is_of_macos(path.name)]


def is_of_macos(name: str) -> bool:
    """Returns whether macOS adds files of this name to folders and archives."""
    return name in ("__MACOSX", ".DS_Store") or name.startswith("._")


def read_yaml(text: str, where: str | os.PathLike) -> dict[str, Any]:
    """Reads a YAML mapping whose values are texts, lists or mappings of them.

    Raises:
        InputError: The text is not such a mapping; the message names the line.
    """
    with yaml_loader(text, where) as loader:
        value = loader.get_single_data()
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected names and values as YAML.")
    return value


@contextlib.contextmanager
def yaml_loader(text: str, where: str | os.PathLike) -> Iterator[Any]:
    """Yields a loader of the YAML that Marian's library writes; errors name the line.

    The library writes some characters without escapes, although YAML 1.1 refuses them or ends a
    line at them. So the loader reads a text with unused characters in their places, and puts the
    characters into the names and values that it gives.
    """
    import yaml

    _check_control_characters(text, where)
    unused = (code for code in range(0xF0000, 0x110000) if chr(code) not in text)
    replacements = dict(zip(map(ord, _RAW), unused, strict=False))
    originals = {replacement: code for code, replacement in replacements.items()}
    base: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)

    class Loader(
        BoundedYaml, base
    ):  # BaseLoader: `yes` and `1` are texts, and `<<` is no merge key.
        def construct_scalar(self, node):
            return super().construct_scalar(node).translate(originals)

    try:
        yield Loader(text.translate(replacements))
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line_name = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be read"
        raise InputError(f"{where}{line_name}: not valid YAML: {problem:.200}.") from None


def _check_control_characters(text, where):
    """Raises `InputError` for a character that no YAML has without an escape."""
    if unreadable := _UNREADABLE.search(text):
        lines_before = text[: unreadable.start()].split("\n")
        place = f"U+{ord(unreadable[0]):04X} at column {len(lines_before[-1]) + 1}"
        rule = "a control character must be an escape in quotes"
        raise InputError(f"{where}, line {len(lines_before)}: {rule}. Received: {place}.")


def dropout_rate(options: Mapping[str, Any], name: str, where: Any) -> float:
    """Returns a dropout rate, 0 for none; raises `InputError` unless it is in [0, 1)."""
    rate = number(options, name, where, 0, float)
    if rate >= 1:
        rule = f"{where}: `{name}` must be below 1"
        raise InputError(f"{rule}. Received: {received(options[name])}.")
    return rate


def number(
    options: Mapping[str, Any], name: str, where: Any, default: Any = None, kind: type = int
) -> Any:
    """Returns an option as a number, `default` for none; raises `InputError` for other values."""
    value = default if options.get(name) in (None, "") else options[name]
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if 0 <= kind(value) < INT32:  # Neither NaN nor infinity.
            return kind(value)
    rule = f"{'an integer' if kind is int else 'a finite number'} of at least 0"
    raise InputError(f"{where}: `{name}` must be {rule}. Received: {received(value)}.")
