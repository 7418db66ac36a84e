"""Declares options once, with type, range, unit, meaning and default; pydantic checks them.

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

from keras_transformer.errors import InputError, InvalidFileError, did_you_mean

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
        default: Default of the field.
        meaning: Meaning and unit of the field.
        expected: Allowed values in words; by default derived from type and limits.
        **limits: Range of the field, in pydantic's names.
    """
    extra = {} if expected is None else {"json_schema_extra": {"expected": expected}}
    return pydantic.Field(default, description=meaning, **{"strict": True, **extra, **limits})


@dataclass_transform(frozen_default=True)
def declared(options: _Declared) -> _Declared:
    """Makes a class of `option` fields a frozen dataclass that raises `InputError`."""
    declared_class: Any = pydantic.dataclasses.dataclass(options, frozen=True, config=STRICT)
    validate = declared_class.__init__
    names = [field.name for field in dataclasses.fields(declared_class) if not field.kw_only]

    @functools.wraps(validate)
    def __init__(self, *args, **values):
        if len(args) > len(names):
            rule = f"{declared_class.__name__} takes at most {len(names)} values without a name."
            raise InputError(f"{rule} Received: {len(args)}.")
        with checked(declared_class):  # By name, for an error names the option.
            validate(self, **dict(zip(names, args, strict=False)), **values)

    declared_class.__init__ = __init__
    return declared_class


@dataclass_transform(frozen_default=True)
def inherited(options: _Declared) -> _Declared:
    """Makes a frozen dataclass of `option` fields for declared classes to inherit.

    It has no schema of its own, which would take pydantic milliseconds.
    """
    config = pydantic.ConfigDict(**STRICT, defer_build=True)
    inherited_class: Any = pydantic.dataclasses.dataclass(options, frozen=True, config=config)
    return inherited_class


@contextlib.contextmanager
def checked(declared: type, where: str = "") -> Iterator[None]:
    """Converts pydantic's errors about a declared class' values to an `InputError` of one line.

    With `where`, the beginning of the line, the values are from a file.
    """
    error_class = InvalidFileError if where else InputError
    try:
        yield
    except pydantic.ValidationError as error:
        # Not pydantic's own text, which would contain a value of any size.
        first = error.errors(include_url=False)[0]
        if first["type"] == "value_error":  # raised by a validator, with its own message
            raise error_class(where + str(first["ctx"]["error"])) from None
        raise error_class(_line(first, schema_of(declared), where)) from None


def validated(declared: type, values: Any, where: str) -> Any:
    """Makes a declared class of values from a file; errors begin with `where`."""
    with checked(declared, where):
        return pydantic.TypeAdapter(declared).validate_python(values)


def schema_of(declared: type) -> dict[str, Any]:
    """Returns the JSON schema of a declared class, as a dict."""
    return pydantic.TypeAdapter(declared).json_schema()


def properties(schema: dict[str, Any], *path: str | int) -> dict[str, Any]:
    """Returns the schemas of a section's options by name; `path` leads to the section."""
    section = schema
    for key in path:
        if "oneOf" in section:  # The key is a type, the tag of a member.
            is_list = key == "array"
            section = next(
                member for member in section["oneOf"] if is_list == (member.get("type") == "array")
            )
        elif isinstance(key, int):
            section = section.get("items", {})
        else:
            section = section.get("properties", {}).get(key, {})
        # A section that may be null has several schemas.
        section = next((member for member in section.get("anyOf", ()) if "$ref" in member), section)
        if "$ref" in section:
            section = schema["$defs"][section["$ref"].rpartition("/")[2]]
    return section.get("properties", {})


def expected(schema: dict[str, Any]) -> str:
    """Describes the values of an option by its schema: `"an integer of at least 1, or null"`."""
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
    preposition = "of " if limits.startswith("at") else ""
    return f"{kind} {preposition}{limits}".rstrip()


def check_keys(values: Iterable[str], known_keys: Iterable[str], section: str) -> None:
    """Raises `InputError` for an unknown key of a section, with the nearest known key."""
    for key in values:
        if key not in known_keys:
            near = did_you_mean(key, known_keys)
            raise InputError(f"unknown key `{_shown(key)}` in `{section}`.{near}")


def _shown(key):
    return f"{repr(str(key))[1:-1]:.80}"  # one line, whatever the key contains


def _line(first, schema, where):
    *section, key = first["loc"] or ("",)
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden", "invalid_key"):
        known_options, index = properties(schema, *section), _index(section)
        if not where:  # an argument
            return f"There is no option `{_shown(key)}`.{did_you_mean(key, known_options)}"
        index = f" in `{index}`" if index else ""
        near = did_you_mean(key, known_options)
        return f"{where}unknown key `{_shown(key)}`{index}.{near}"
    # The option's path precedes the path within a union of types.
    while section and key not in properties(schema, *section):
        *section, key = section
    option_schema = properties(schema, *section).get(key, {})
    name = f"`{_index((*section, key))}`" if key else "the recipe"
    received_value = "nothing" if first["type"].startswith("missing") else received(first["input"])
    return f"{where}{name} must be {expected(option_schema)}. Received: {received_value}."


def _index(path):
    return ".".join(str(key) for key in path if key not in UNION_TAGS)


def received(value: object) -> str:
    """Formats a value for an error message, truncated because it can have any size."""
    try:
        return _REPR.repr(value).replace("\n", "")  # NumPy writes several lines.
    except ValueError:  # An integer of thousands of digits.
        return "a number that is too long to show"


def check(
    name: str,
    value: Any,
    rule: str,
    kind: Any,
    minimum: float | None = None,
    maximum: float = sys.float_info.max,
) -> None:
    """Raises `InputError`, a `ValueError`, unless `value` is of a kind and, if a number, in range.

    Without `minimum` it must be positive.
    """
    # A bool is an int to Python, but not a number to a reader.
    is_valid = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if is_valid and kind is not bool:
        is_valid = value <= maximum and (value > 0 if minimum is None else value >= minimum)
    if not is_valid:
        raise InputError(f"`{name}` must be {rule}. Received: {name}={received(value)}.")


# `glu` halves the width, `threshold` needs arguments; the others are not activations.
_NO_ACTIVATIONS = ("glu", "threshold", "get", "serialize", "deserialize")


def check_activation(name: object) -> None:
    """Raises `ValueError` unless `name` is a Keras activation of one argument."""
    # Imported here, because programs without a model need no Keras.
    import keras

    try:
        is_activation = isinstance(name, str) and callable(keras.activations.get(name))
    except ValueError:
        is_activation = False
    if not is_activation or name in _NO_ACTIVATIONS:
        names = [name for name in dir(keras.activations) if name not in _NO_ACTIVATIONS]
        raise ValueError(
            "`activation` must be the name of a Keras activation. "
            f"Received: activation={received(name)}.{did_you_mean(name, names)}"
        )


def check_rate(name: str, value: object) -> None:
    """Raises `ValueError` unless `value` is a probability below one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError(f"`{name}` must be in [0, 1). Received: {name}={received(value)}.")


def check_positive(or_none: bool = False, **sizes: Any) -> None:
    """Raises `InputError`, a `ValueError`, unless sizes are positive integers of 32 bits."""
    for name, size in sizes.items():
        if size is not None or not or_none:
            check(name, size, "a positive integer", numbers.Integral, maximum=2**31 - 1)


def check_divides(name: str, size: int, other_name: str, other_size: int) -> None:
    """Raises `InputError`, a `ValueError`, unless one size divides another."""
    if other_size % size:
        raise InputError(
            f"`{name}` must divide `{other_name}`. "
            f"Received: {other_name}={other_size}, {name}={size}."
        )


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raises `InputError`, a `ValueError`, unless `value` is one of `choices`."""
    if value not in choices:
        raise InputError(
            f"`{name}` must be one of {', '.join(choices)}. Received: {name}={received(value)}."
        )


def check_ids(name: str, ids: Iterable[int], vocabulary_size: int) -> None:
    """Raises `InputError` unless all ids are in the vocabulary."""
    for id in ids:
        if not 0 <= id < vocabulary_size:
            rule = f"`{name}` must name ids of the vocabulary, from 0 to {vocabulary_size - 1}"
            raise InputError(f"{rule}. Received: {received(id)}.")
