"""Imports a package's names at their first use, and Keras, TensorFlow and LiteRT quietly.

The C++ code of these packages writes lines to stderr while it is imported. The command line hides
them. In another program a thread may write to stderr meanwhile, so nothing is hidden there: set
`TF_CPP_MIN_LOG_LEVEL=3` before its first import. `TF_CPP_MIN_LOG_LEVEL=0`, or `--verbose` of a
command, shows all lines.
"""

import contextlib
import glob
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
"""Environment variable with the lowest level of TensorFlow's messages to show."""

_owns_stderr = False


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


def silence_tensorflow() -> bool:
    """Silences TensorFlow in this process and its children, unless the user chose a level.

    Returns:
        True if TensorFlow is silent.
    """
    # Errors of a GPU are shown. On the CPU, errors raise exceptions anyway, and TensorFlow logs an
    # error for each function that it reads from the compilation cache.
    return os.environ.setdefault(LEVEL, "2" if _has_gpu() else "3") in ("2", "3")


def own_stderr() -> None:
    """Lets imports hide what is written to stderr; for a program without other threads."""
    global _owns_stderr
    _owns_stderr = True


def import_keras() -> ModuleType:
    """Imports Keras with its backend, quietly."""
    return _import("keras")


def import_tensorflow() -> ModuleType:
    """Imports TensorFlow, quietly."""
    return _import("tensorflow")


def _import(name):
    """Imports a package that may load TensorFlow; shows its lines on stderr if the import fails.

    TensorFlow's C++ libraries write lines before they read the environment variable.
    """
    if name in sys.modules or "tensorflow" in sys.modules:
        return importlib.import_module(name)
    with stderr_kept_back(is_wrong=_has_unusable_gpu):
        return importlib.import_module(name)


@contextlib.contextmanager
def stderr_kept_back(is_wrong: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Hides what the process writes to stderr, and shows it after an exception but Ctrl-C.

    It hides nothing without `own_stderr`, or if the user chose to see TensorFlow's messages.

    Args:
        is_wrong: Function that is called at the end; True shows the lines too.
    """
    import tempfile  # Late: a command starts sooner.

    with contextlib.ExitStack() as stack:
        try:
            stderr = os.dup(2) if silence_tensorflow() and _owns_stderr else None
        except OSError:  # stderr is closed.
            stderr = None
        if stderr is None:
            yield
            return
        stack.callback(os.close, stderr)
        lines = stack.enter_context(tempfile.TemporaryFile())
        os.dup2(lines.fileno(), 2)
        is_shown = True
        try:
            yield
            is_shown = is_wrong()
        except KeyboardInterrupt:
            is_shown = False
            raise
        finally:
            os.dup2(stderr, 2)
            if is_shown:
                lines.seek(0)
                os.write(2, lines.read())


def _has_gpu():
    return bool(glob.glob("/dev/nvidia[0-9]*"))


def _has_unusable_gpu():
    """Returns whether TensorFlow is loaded and cannot use the machine's GPU."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or not _has_gpu():
        return False
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and not tensorflow.config.list_physical_devices("GPU")
