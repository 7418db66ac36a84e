"""Imports names and classes at their first use, and Keras, TensorFlow and LiteRT quietly.

The C++ code of these packages writes lines to stderr while it is imported. The command line hides
them. In another program a thread may write to stderr meanwhile, so nothing is hidden there: set
`TF_CPP_MIN_LOG_LEVEL=3` before its first import. `TF_CPP_MIN_LOG_LEVEL=0`, or `--verbose` of a
command, shows all lines.
"""

import contextlib
import glob
import importlib
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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


def register_with_keras(package: str, classes: Mapping[str, Sequence[str]]) -> None:
    """Registers classes with Keras, now or after its import; they are imported when it needs them.

    Args:
        package: `__name__` of the package.
        classes: Names of classes by their modules within the package.
    """

    def register() -> None:
        registered = sys.modules["keras"].saving.get_custom_objects()
        for module, names in classes.items():
            for name in names:
                registered.setdefault(
                    f"{package}>{name}", _ClassToImport(f"{package}.{module}", name)
                )

    after_import("keras", register)


class _ClassToImport:
    """Stands for a class of a module that is imported when the class is used."""

    def __init__(self, module, name):
        self._module, self._name = module, name

    def _imported(self):
        return getattr(importlib.import_module(self._module), self._name)

    def __call__(self, *args, **kwargs):
        return self._imported()(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self._imported(), name)


def after_import(name: str, function: Callable[[], None]) -> None:
    """Calls a function when the module `name` has been imported, by whomever."""
    if sys.modules.get(name) is not None:  # None hides it.
        function()
    else:
        sys.meta_path.insert(0, _Waiting(name, function))


class _Waiting(importlib.abc.MetaPathFinder):
    """Finds no module itself; it learns that one is imported because it is asked first."""

    def __init__(self, name, function):
        self._name, self._function = name, function

    def find_spec(self, name, path=None, target=None):
        if name != self._name:
            return None
        sys.meta_path.remove(self)  # Other finders find it.
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)
            return spec
        execute = spec.loader.exec_module

        def execute_and_tell(module):
            try:
                execute(module)
            except BaseException:
                sys.meta_path.insert(0, self)
                raise
            self._function()

        spec.loader.exec_module = execute_and_tell
        return spec


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
