"""Keeps former names of Public API for one release, with a `DeprecationWarning`."""

import functools
import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def renamed_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Makes the `__getattr__` of a module that has given public names other names.

    Args:
        module: `__name__` of the module.
        names: Module and new name of each former name, such as
            `{"Scorer": "keras_transformer.engine:Engine"}`.
    """

    def import_renamed(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new_module, new_name = names[name].split(":")
        _warn(f"{module}.{name}", f"{new_module}.{new_name}")
        return getattr(importlib.import_module(new_module), new_name)

    return import_renamed


def renamed_arguments(**names: str) -> Callable[[Function], Function]:
    """Makes a decorator of a function or an `__init__` that takes former names of its arguments.

    Args:
        **names: New name of each former name. Both are given by name.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args, **kwargs):
            for former in names.keys() & kwargs.keys():
                if names[former] in kwargs:
                    raise TypeError(
                        f"`{former}` is the former name of `{names[former]}`. Give only the latter."
                    )
                _warn(former, names[former])
                kwargs[names[former]] = kwargs.pop(former)
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


def renaming(former: str, new: str) -> str:
    """Returns the sentence about a former name, for warnings and for stderr."""
    return f"`{former}` is now `{new}`. The former name is removed in the next minor release."


def _warn(former, new):
    # At the line of the user: above `_warn` and the function that calls it.
    warnings.warn(renaming(former, new), DeprecationWarning, stacklevel=3)
