"""Options declared once, with type, range, unit, meaning and default, and checked by pydantic.

Error messages, `--help` and the reference of recipes are generated from the declaration.
"""

import contextlib
import dataclasses
import functools
import numbers
import reprlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeVar, dataclass_transform

import pydantic

from keras_transformer.errors import InputError, did_you_mean

STRICT = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)
FLOAT32 = 2.0**127
"""Limit of numbers that a program holds in float32."""
INT32 = 2**31
"""Limit of integers that a program holds in int32."""
Int32 = Annotated[int, pydantic.Field(strict=True, ge=-INT32, lt=INT32)]

UNION_TAGS = ("object", "array")
"""Tags of a section that may be a list of sections, in pydantic's paths."""

_TYPES = {
    "string": "text",
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "object": "a section with keys",
    "array": "a list",
    "null": "null",
}
_LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
_POWERS = {FLOAT32: "2**127", INT32: "2**31", -INT32: "-2**31"}
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80
_Declared = TypeVar("_Declared", bound=type)


def option(default: Any, meaning: str, expected: str | None = None, **limits: Any) -> Any:
    """Declares a field.

    Args:
        default: Its default.
        meaning: Its meaning and unit.
        expected: Its values in words; by default made of its type and limits.
        **limits: Its range, in pydantic's names.
    """
    extra = {} if expected is None else {"json_schema_extra": {"expected": expected}}
    return pydantic.Field(default, description=meaning, **{"strict": True, **extra, **limits})


@dataclass_transform(frozen_default=True)
def declared(options: _Declared) -> _Declared:
    """Makes a class of `option` fields a frozen dataclass that raises `InputError`."""
    made: Any = pydantic.dataclasses.dataclass(options, frozen=True, config=STRICT)
    validate = made.__init__
    names = [field.name for field in dataclasses.fields(made) if not field.kw_only]

    @functools.wraps(validate)
    def __init__(self, *args, **values):
        if len(args) > len(names):
            rule = f"{made.__name__} takes at most {len(names)} values without a name."
            raise InputError(f"{rule} Received: {len(args)}.")
        with checked(made):  # By name, for an error names the option.
            validate(self, **dict(zip(names, args, strict=False)), **values)

    made.__init__ = __init__
    return made


@dataclass_transform(frozen_default=True)
def inherited(options: _Declared) -> _Declared:
    """Makes a frozen dataclass of `option` fields for declared classes to inherit.

    Its own schema, which takes pydantic milliseconds, is not built.
    """
    config = pydantic.ConfigDict(**STRICT, defer_build=True)
    made: Any = pydantic.dataclasses.dataclass(options, frozen=True, config=config)
    return made


@contextlib.contextmanager
def checked(declared: type, where: str = "") -> Iterator[None]:
    """Turns pydantic's errors about values of a declared class into an `InputError` of one line."""
    try:
        yield
    except pydantic.ValidationError as error:
        # The input is left out: pydantic's own text would spell a value of any size.
        first = error.errors(include_url=False)[0]
        if first["type"] == "value_error":  # Raised by a validator, in its own words.
            raise InputError(where + str(first["ctx"]["error"])) from None
        raise InputError(_line(first, schema_of(declared), where)) from None


def schema_of(declared: type) -> dict[str, Any]:
    """JSON schema of a declared class, as a dict."""
    return pydantic.TypeAdapter(declared).json_schema()


def properties(schema: dict[str, Any], *path: str | int) -> dict[str, Any]:
    """Schemas of a section's options by name; `path` are the keys that lead to the section."""
    section = schema
    for key in path:
        if "oneOf" in section:  # The key is a type, the tag of a member.
            is_list = key == "array"
            section = next(x for x in section["oneOf"] if is_list == (x.get("type") == "array"))
        elif isinstance(key, int):
            section = section.get("items", {})
        else:
            section = section.get("properties", {}).get(key, {})
        # A section that may be null is one of several schemas.
        section = next((x for x in section.get("anyOf", ()) if "$ref" in x), section)
        if "$ref" in section:
            section = schema["$defs"][section["$ref"].rpartition("/")[2]]
    return section.get("properties", {})


def expected(schema: dict[str, Any]) -> str:
    """Values that an option of this schema may have: `"an integer of at least 1, or null"`."""
    if "expected" in schema:
        return schema["expected"]
    if union := schema.get("anyOf") or schema.get("oneOf"):
        return ", or ".join(expected(member) for member in union)
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    kind = _TYPES[schema.get("type", "object")]
    if schema.get("type") == "integer" and schema.get("minimum") == 1:
        kind, schema = "a positive integer", {**schema, "minimum": None}
    limits = " and ".join(
        f"{words} {_POWERS.get(schema[key], schema[key])}"
        for key, words in _LIMITS.items()
        if schema.get(key) is not None
    )
    least = "of " if limits.startswith("at") else ""
    return f"{kind} {least}{limits}".rstrip()


def check_keys(values: Iterable[str], known: Iterable[str], section: str) -> None:
    """Raises `InputError` for an unknown key of a section, naming the nearest known one."""
    for key in values:
        if key not in known:
            near = did_you_mean(key, known)
            raise InputError(f"unknown key `{_shown(key)}` in `{section}`.{near}")


def _shown(key):
    return f"{repr(str(key))[1:-1]:.80}"  # One line, whatever the key has in it.


def _line(first, schema, where):
    *section, key = first["loc"] or ("",)
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden", "invalid_key"):
        known, place = properties(schema, *section), _place(section)
        if not where:  # An argument.
            return f"There is no option `{_shown(key)}`.{did_you_mean(key, known)}"
        place = f" in `{place}`" if place else ""
        near = did_you_mean(key, known)
        return f"{where}unknown key `{_shown(key)}`{place}.{near}"
    # The place within a union of types follows that of the option.
    while section and key not in properties(schema, *section):
        *section, key = section
    wanted = properties(schema, *section).get(key, {})
    name = f"`{_place((*section, key))}`" if key else "the recipe"
    received_value = "nothing" if first["type"].startswith("missing") else received(first["input"])
    return f"{where}{name} must be {expected(wanted)}. Received: {received_value}."


def _place(path):
    return ".".join(str(key) for key in path if key not in UNION_TAGS)


def received(value: object) -> str:
    """A value for an error message, cut short because it can be of any size."""
    try:
        return _REPR.repr(value)
    except ValueError:  # An integer of thousands of digits.
        return "a number that is too long to show"


def check(
    name: str,
    value: Any,
    rule: str,
    kind: Any,
    least: float | None = None,
    most: float = sys.float_info.max,
) -> None:
    """Raises `InputError`, a `ValueError`, unless `value` is of a kind and, if a number, in range.

    Without `least` it must be positive.
    """
    # A bool is an int to Python, but no number to a reader.
    known = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if known and kind is not bool:
        known = value <= most and (value > 0 if least is None else value >= least)
    if not known:
        raise InputError(f"`{name}` must be {rule}. Received: {name}={value!r}.")


# `glu` halves the width, `threshold` needs arguments; the others are no activations.
_NO_ACTIVATIONS = ("glu", "threshold", "get", "serialize", "deserialize")


def check_activation(name: object) -> None:
    """Raises `ValueError` unless it is the name of a Keras activation of one argument."""
    # Late: what has no model needs no Keras.
    import keras

    try:
        known = isinstance(name, str) and callable(keras.activations.get(name))
    except ValueError:
        known = False
    if not known or name in _NO_ACTIVATIONS:
        names = [name for name in dir(keras.activations) if name not in _NO_ACTIVATIONS]
        raise ValueError(
            f"`activation` must be the name of a Keras activation. Received: activation={name!r}."
            + did_you_mean(name, names)
        )


def check_rate(name: str, value: object) -> None:
    """Raises `ValueError` unless `value` is a probability below one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError(f"`{name}` must be in [0, 1). Received: {name}={value!r}.")


def check_positive(or_none: bool = False, **sizes: Any) -> None:
    """Raises `InputError`, a `ValueError`, for a size that is no positive integer of 32 bits."""
    for name, size in sizes.items():
        if size is not None or not or_none:
            check(name, size, "a positive integer", numbers.Integral, most=2**31 - 1)


def check_divides(name: str, size: int, other: str, whole: int) -> None:
    """Raises `InputError`, a `ValueError`, unless one size divides another."""
    if whole % size:
        raise InputError(
            f"`{name}` must divide `{other}`. Received: {other}={whole}, {name}={size}."
        )


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raises `InputError`, a `ValueError`, unless `value` is one of `choices`."""
    if value not in choices:
        raise InputError(
            f"`{name}` must be one of {', '.join(choices)}. Received: {name}={value!r}."
        )
