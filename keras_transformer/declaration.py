"""Options that are declared once, with type, range, meaning and default, and checked by pydantic.

The words of an error, of `--help` and of the commented recipe come from the same declaration.
"""

import contextlib
import reprlib
from collections.abc import Iterable, Iterator
from typing import Any

import pydantic

from keras_transformer.errors import InputError, did_you_mean

STRICT = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)

_TYPES = {
    "string": "text",
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "object": "a section with keys",
    "null": "null",
}
_LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80


def option(default: Any, meaning: str, **limits: Any) -> Any:
    """A field: its default, what it means and in which unit, and its range as pydantic names it."""
    return pydantic.Field(default, description=meaning, **{"strict": True, **limits})


@contextlib.contextmanager
def checked(declared: type, where: str = "") -> Iterator[None]:
    """Turns what pydantic finds about a class's values into an `InputError` of one line."""
    try:
        yield
    except pydantic.ValidationError as error:
        # The input is left out: pydantic's own text would spell a value of any size.
        found = error.errors(include_url=False)[0]
        raise InputError(where + _line(found, schema_of(declared))) from None


def schema_of(declared: type) -> dict[str, Any]:
    """The JSON schema of a declared class, as a dict."""
    return pydantic.TypeAdapter(declared).json_schema()


def properties(schema: dict[str, Any], *path: str) -> dict[str, Any]:
    """The schemas of a section's options by name; `path` are the keys that lead to the section."""
    section = schema
    for key in path:
        section = section.get("properties", {}).get(key, {})
        section = (
            schema["$defs"][section["$ref"].rpartition("/")[2]] if "$ref" in section else section
        )
    return section.get("properties", {})


def expected(schema: dict[str, Any]) -> str:
    """The values that an option of this schema may have: `"an integer of at least 1, or null"`."""
    if "anyOf" in schema:
        return ", or ".join(expected(each) for each in schema["anyOf"])
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    limits = " and ".join(
        f"{words} {schema[key]}" for key, words in _LIMITS.items() if key in schema
    )
    least = "of " if limits.startswith("at") else ""
    return _TYPES[schema.get("type", "object")] + (f" {least}{limits}" if limits else "")


def check_keys(values: Iterable[str], known: Iterable[str], where: str, section: str = "") -> None:
    """Raises `InputError` for a key that is not known, naming the nearest that is."""
    for key in values:
        if key not in known:
            raise InputError(where + _unknown(key, known, section))


def _unknown(key, known, section):
    place = f" in `{section}`" if section else ""
    shown = repr(str(key))[1:-1]  # One line, whatever the key has in it.
    return f"unknown key `{shown:.80}`{place}.{did_you_mean(key, known, cutoff=0.0)}"


def _line(found, schema):
    *section, key = found["loc"] or ("",)
    if found["type"] in ("unexpected_keyword_argument", "extra_forbidden", "invalid_key"):
        return _unknown(key, properties(schema, *section), ".".join(section))
    # The place within a union of types follows that of the option.
    while section and key not in properties(schema, *section):
        *section, key = section
    wanted = properties(schema, *section).get(key, {})
    name = f"`{'.'.join((*section, key))}`" if key else "the recipe"
    return f"{name} must be {expected(wanted)}. Received: {received(found['input'])}."


def received(value: object) -> str:
    """A value as an error shows it: cut short, for it can be of any size."""
    try:
        return _REPR.repr(value)
    except ValueError:  # An integer of thousands of digits.
        return "a number that is too long to show"
