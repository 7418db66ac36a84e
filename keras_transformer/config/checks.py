"""Checks of options, each with one line that says what was expected and received."""

import numbers
import sys
from collections.abc import Sequence
from typing import Any

from keras_transformer.errors import InputError, did_you_mean


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
        names = [each for each in dir(keras.activations) if each not in _NO_ACTIVATIONS]
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
