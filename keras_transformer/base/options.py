"""Declares options once, with type, range, unit, meaning and default; pydantic checks them.

Error messages, `--help` and the reference of recipes are generated from the declaration.
"""

import contextlib
import dataclasses
import functools
import math
import numbers
import reprlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, dataclass_transform

import pydantic

from keras_transformer.base.errors import InputError, InvalidFileError, did_you_mean

if TYPE_CHECKING:
    import numpy as np

STRICT = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)
FLOAT32 = 2.0**127
"""Limit of numbers that a program holds in float32."""
INT32 = 2**31
"""Limit of integers that a program holds in int32."""
Int32 = Annotated[int, pydantic.Field(strict=True, ge=-INT32, lt=INT32)]

Schema = dict[str, Any]
"""JSON schema of an option."""

# Tags of a section that may be a list of sections, in the paths of pydantic's errors.
_UNION_TAGS = ("object", "array")
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
_SHOWN_CHARACTERS, _MAX_RECEIVED = 80, 300  # of a text, of a list or dict
_Class = TypeVar("_Class", bound=type)


class _Repr(reprlib.Repr):
    """Shows the beginning of a value, without making text of the rest."""

    def __init__(self):
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 3, _SHOWN_CHARACTERS, _SHOWN_CHARACTERS

    def repr_bytes(self, value, level):
        return self.repr_instance(value[: self.maxother], level)


_REPR = _Repr()


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
def options_class(fields: _Class) -> _Class:
    """Makes a class of `option` fields a frozen dataclass that raises `InputError`."""
    options: Any = pydantic.dataclasses.dataclass(fields, frozen=True, config=STRICT)
    validate = options.__init__
    names = [field.name for field in dataclasses.fields(options) if not field.kw_only]

    @functools.wraps(validate)
    def __init__(self, *args, **values):
        if len(args) > len(names):
            rule = f"{options.__name__} takes at most {len(names)} values without a name."
            raise InputError(f"{rule} Received: {len(args)}.")
        with as_input_error(options):  # By name, for an error names the option.
            validate(self, **dict(zip(names, args, strict=False)), **values)

    options.__init__ = __init__
    return options


@dataclass_transform(frozen_default=True)
def options_base(fields: _Class) -> _Class:
    """Makes a frozen dataclass of `option` fields for options classes to inherit.

    It has no schema of its own, which would take pydantic milliseconds.
    """
    config = pydantic.ConfigDict(**STRICT, defer_build=True)
    base: Any = pydantic.dataclasses.dataclass(fields, frozen=True, config=config)
    # The fields themselves are enough; pydantic 2.9 would move these defaults to a subclass' end.
    for name in {field.name for field in dataclasses.fields(base)} & vars(base).keys():
        delattr(base, name)
    return base


@contextlib.contextmanager
def as_input_error(options: type, where: str = "") -> Iterator[None]:
    """Converts pydantic's errors about the values of an options class to an `InputError`.

    With `where`, the beginning of its one line, the values are from a file.
    """
    error_class = InvalidFileError if where else InputError
    try:
        yield
    except pydantic.ValidationError as error:
        # Not pydantic's own text, which would contain a value of any size.
        first = error.errors(include_url=False)[0]
        if first["type"] == "value_error":  # raised by a validator, with its own message
            raise error_class(where + str(first["ctx"]["error"])) from None
        raise error_class(where + _message(options, first, is_file=bool(where))) from None


class CheckedOptions(pydantic.BaseModel):
    """Base class of options that are given by name; a wrong value raises `InputError`."""

    model_config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    def __init__(self, **values: Any):
        with as_input_error(type(self)):
            super().__init__(**values)


def parse_options(options: type, values: Any, where: str) -> Any:
    """Makes an options class of values from a file; errors begin with `where`."""
    with as_input_error(options, where):
        return pydantic.TypeAdapter(options).validate_python(values)


def options_of(options: type, section: str = "") -> dict[str, Schema]:
    """Returns the schemas of a class' options by name, or of the options of one of its sections.

    Args:
        options: Options class.
        section: Path of the section, such as `"data.noise"`.
    """
    prefix = f"{section}." if section else ""
    return {
        path.removeprefix(prefix): schema
        for path, schema in _schemas_by_path(options).items()
        if path.rpartition(".")[0] == section
    }


@functools.cache
def _schemas_by_path(options):
    """Returns the schemas of all options by path: `data.noise.typos`, `data.train.[].weight`."""
    schema = pydantic.TypeAdapter(options).json_schema()
    schemas: dict[str, Schema] = {}

    def add_section(section, prefix):
        for name, option_schema in section.get("properties", {}).items():
            schemas[prefix + name] = option_schema
            add_inner_sections(option_schema, f"{prefix}{name}.")

    def add_inner_sections(option_schema, prefix):
        if "$ref" in option_schema:
            add_section(schema["$defs"][option_schema["$ref"].rpartition("/")[2]], prefix)
        if "items" in option_schema:
            add_inner_sections(option_schema["items"], f"{prefix}[].")
        for member in option_schema.get("anyOf") or option_schema.get("oneOf") or ():
            add_inner_sections(member, prefix)

    add_section(schema, "")
    return schemas


def expected(schema: Schema) -> str:
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
        f"{words} {_number(schema[key])}"
        for key, words in _LIMITS.items()
        if schema.get(key) is not None
    )
    preposition = "of " if limits.startswith("at") else ""
    return f"{kind} {preposition}{limits}".rstrip()


def _number(limit):
    whole = int(limit)  # 0.0 to pydantic 2.9 is 0 to later ones.
    return _POWERS.get(limit, whole if whole == limit else limit)


def check_keys(values: Iterable[str], known_keys: Iterable[str], section: str) -> None:
    """Raises `InputError` for an unknown key of a section, with the nearest known key."""
    for key in values:
        if key not in known_keys:
            near = did_you_mean(key, known_keys)
            raise InputError(f"unknown key `{_shown(key)}` in `{section}`.{near}")


def _shown(key):
    return f"{repr(str(key))[1:-1]:.80}"  # one line, whatever the key contains


def _message(options, error, is_file):
    """Words an error of pydantic: an unknown option, or an option with a wrong value."""
    *section, name = error["loc"] or ("",)
    section = [key for key in section if key not in _UNION_TAGS]
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden", "invalid_key"):
        near = did_you_mean(name, options_of(options, _option_path(section)))
        if not is_file:  # an argument
            return f"There is no option `{_shown(name)}`.{near}"
        where = f" in `{'.'.join(map(str, section))}`" if section else ""
        return f"unknown key `{_shown(name)}`{where}.{near}"
    path, schemas = [*section, name], _schemas_by_path(options)
    while path and _option_path(path) not in schemas:
        path.pop()  # an element of a list, or a member of a union of types
    name = f"`{'.'.join(map(str, path))}`" if path else "the recipe"
    values = expected(schemas.get(_option_path(path), {}))
    received_value = "nothing" if error["type"].startswith("missing") else received(error["input"])
    return f"{name} must be {values}. Received: {received_value}."


def _option_path(path):
    return ".".join("[]" if isinstance(key, int) else key for key in path)


def received(value: object) -> str:
    """Formats a value for an error message, truncated because it can have any size.

    No text is made of more than its beginning: the aliases of a YAML file can make a list whose
    whole text fills the memory.
    """
    try:
        text = _REPR.repr(value).replace("\n", "")  # NumPy writes several lines.
    except ValueError:  # An integer of thousands of digits.
        return "a number that is too long to show"
    return text if len(text) <= _MAX_RECEIVED else f"{text[:_MAX_RECEIVED]}..."


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
        # A float32 of NumPy would be compared with a limit in float32.
        number = value.item() if hasattr(value, "item") else value
        is_valid = number <= maximum and (number > 0 if minimum is None else number >= minimum)
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


def check_positive(or_none: bool = False, **sizes: Any) -> list[Any]:
    """Raises `InputError`, a `ValueError`, unless sizes are positive integers of 32 bits.

    Returns the sizes as Python's integers: Keras takes no integers of NumPy.
    """
    for name, size in sizes.items():
        if size is not None or not or_none:
            check(name, size, "a positive integer below 2**31", numbers.Integral, maximum=INT32 - 1)
    return [None if size is None else int(size) for size in sizes.values()]


def check_flags(**flags: Any) -> None:
    """Raises `InputError`, a `ValueError`, unless values are True or False."""
    for name, value in flags.items():
        check(name, value, "True or False", bool)


def check_divides(name: str, size: int, other_name: str, other_size: int) -> None:
    """Raises `InputError`, a `ValueError`, unless one size divides another."""
    if other_size % size:
        raise InputError(
            f"`{name}` must divide `{other_name}`. "
            f"Received: {other_name}={other_size}, {name}={size}."
        )


def check_attention(
    num_heads: int,
    num_kv_heads: int | None,
    key_dim: int | None,
    positions: str | None,
    relative_values: bool,
) -> None:
    """Raises `InputError`, a `ValueError`, where options of an attention are unknown or contradict.

    The layer, its blocks and configurations call it, the last two with what they know.
    """
    if positions is not None:
        check_choice("positions", positions, ("rotary", "relative", "alibi"))
    check_divides("num_kv_heads", num_kv_heads or num_heads, "num_heads", num_heads)
    if positions == "rotary" and (key_dim or 0) % 2:
        raise InputError(
            f"Rotary positions need heads of an even width. Received: key_dim={key_dim}."
        )
    if relative_values and positions != "relative":
        raise InputError(
            '`relative_values` needs `positions="relative"`. '
            f"Received: relative_values={relative_values}, positions={positions!r}."
        )


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raises `InputError`, a `ValueError`, unless `value` is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(
            f"`{name}` must be one of {', '.join(choices)}. Received: {name}={received(value)}."
        )


def check_ids(name: str, ids: Any, vocabulary_size: float = math.inf) -> None:
    """Raises `InputError` unless ids, an array or a list, are integers of the vocabulary.

    The range of a traced tensor is not checked, because it has no values yet.
    """
    values = values_of(ids)
    dtype = getattr(ids if values is None else values, "dtype", None)
    dtype = str(getattr(dtype, "name", dtype))
    if values is not None and not values.size:
        return
    if "int" not in dtype:
        rule = f"`{name}` must be ids, which are integers."
        raise InputError(f"{rule} Received: {name} of dtype {dtype}.")
    if values is None:
        return
    outside = values[(values < 0) | (values >= vocabulary_size)]
    if len(outside):
        end = "" if vocabulary_size == math.inf else f" to {vocabulary_size - 1}"
        rule = f"`{name}` must name ids of the vocabulary, from 0{end}"
        raise InputError(f"{rule}. Received: {received(outside[0].item())}.")


def values_of(tensor: Any) -> "np.ndarray | None":
    """Returns an array, or None for a traced tensor, which has no values yet."""
    import numpy as np  # `--help` needs no arrays.

    try:
        return np.asarray(tensor)
    except (NotImplementedError, TypeError, ValueError):
        return None
