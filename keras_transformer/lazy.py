"""Names of a package that are imported with their first use."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Makes the `__getattr__` and the `__dir__` of a package.

    Args:
        package: `__name__` of the package.
        modules: Module within the package of each name.
    """

    def import_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    def list_names() -> list[str]:
        return [*vars(sys.modules[package]), *modules]

    return import_name, list_names
