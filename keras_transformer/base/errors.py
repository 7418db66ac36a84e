"""Errors that end in one line for the user, and lines to stderr."""

import contextlib
import difflib
import errno
import importlib
import importlib.metadata
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_NEAR_LETTERS = 0.75
_MAX_NAMES = 2
# Two texts of n letters are compared in n² steps.
_LONGEST_NAME = 200

DISTRIBUTION = "keras-transformer-nmt"
"""The name that pip installs this package by; it is imported as `keras_transformer`."""
_PACKAGE = Path(__file__).parents[1]


class InputError(ValueError):
    """A user's mistake, described in one line: what is wrong, where, and what was expected.

    The command line prints only the message and exits with code 2; Python callers can catch it as a
    `ValueError`.

    Attributes:
        message: The line without the number of a text.
        index: Place, from 0, of the invalid text in a call's list of texts; None for other errors.
    """

    def __init__(self, message: str, index: int | None = None):
        super().__init__(message)
        self.message, self.index = message, index

    def __str__(self):
        return self.message if self.index is None else f"Text {self.index + 1}: {self.message}"


class TooLongError(InputError):
    """Texts have too many tokens; `indices` are the places of all of them in a call's list."""

    def __init__(self, message: str, indices: Sequence[int]):
        super().__init__(message, indices[0])
        self.indices = list(indices)


class InvalidFileError(InputError):
    """A file has an invalid key or value; names in the message are keys, not options."""


class NotSavedError(InputError):
    """A file for a result could not be written; `result` holds the result."""

    def __init__(self, message: str, result: dict[str, Any]):
        super().__init__(message)
        self.result = result


class VerificationError(RuntimeError):
    """An export's results differ from the trained model's; nothing was exported."""


class TrainingError(RuntimeError):
    """Training cannot continue: the loss is NaN or infinite, or another host has ended.

    The command line prints only the message and exits with code 1.
    """


@contextlib.contextmanager
def writing(path: str | os.PathLike, temporary: str | os.PathLike = "") -> Iterator[None]:
    """Names a file in the `OSError` of a write to it, such as on a full disk.

    The system names a file only where it is opened, and then by its `temporary` name. An error of
    NumPy, TensorFlow or safetensors, which has no number, becomes an input/output error.
    """
    try:
        yield
        return
    except OSError as error:
        # The name is what a caller opened: a text, or a `Path`.
        is_named = error.filename is not None and str(error.filename) != os.fspath(temporary)
        if is_named and error.filename2 is None:  # A failed copy names its source, then its target.
            raise
        number, text = error.errno or errno.EIO, error.strerror or str(error)
    except Exception as error:
        if not (hasattr(error, "error_code") or type(error).__name__ == "SafetensorError"):
            raise
        # TensorFlow: `variables/part-0; No space left on device [Op:SaveV2]`; safetensors:
        # `Error while serializing: I/O error: No space left on device (os error 28) at path "x"`
        text = re.sub(r'^.*(; |I/O error: )|( \[Op:| at path ").*$', "", first_line(error))
        number = errno.EIO
    raise OSError(number, text, os.fspath(path))


def check_path(path: str | os.PathLike) -> None:
    """Raises `InputError` for a path with a NUL character, which no system takes."""
    if "\0" in os.fspath(path):
        rule = "The path of a file must have no NUL character"
        raise InputError(f"{rule}. Received: {os.fspath(path)!r:.80}.")


@contextlib.contextmanager
def as_input_error(path: str | os.PathLike) -> Iterator[None]:
    """Turns an `OSError` into the `InputError` of an output that cannot be written."""
    if not os.fspath(path):
        raise InputError("The path of an output file must not be empty. Received: ''.")
    check_path(path)
    try:
        yield
    except OSError as error:
        raise InputError(f"{os.fspath(path)}: cannot be written: {error.strerror}.") from None


@contextlib.contextmanager
def renamed_in_errors(folder: Path, final: str) -> Iterator[None]:
    """Replaces the path of a temporary folder in an error of a file by its final path."""
    try:
        yield
    except OSError as error:
        path = Path(str(error.filename))
        if path.is_relative_to(folder):
            error.filename = os.fspath(Path(final, path.relative_to(folder)))
        raise
    except InputError as error:
        error.message = error.message.replace(os.fspath(folder), final)
        raise


def has_folder(folder: str) -> bool:
    """Returns whether a folder of this package, such as `extras/web`, is there."""
    return (_PACKAGE / folder).is_dir()


def check_folder(folder: str) -> None:
    """Raises `InputError` if a folder of this package, such as `extras/web`, was deleted."""
    if not has_folder(folder):
        name = f"{_PACKAGE.name}/{folder}"
        raise InputError(f"This needs the folder {name}: install {DISTRIBUTION} again.")


def require(package: str, noun: str, extra: str) -> ModuleType:
    """Imports a module; raises the `InputError` of `missing_package` if the import fails."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise missing_package(noun, package.partition(".")[0], extra) from error


def missing_package(noun: str, package: str, extra: str) -> InputError:
    """Returns the error of a missing package, which names the extra that installs it.

    Args:
        noun: Subject of the message: the program and its purpose.
        package: Import name of the package, or several names.
        extra: Name of the extra in `setup.py`, whose packages the message names.
    """
    return InputError(f"{noun} is needed (package {package}): {installation(extra)}.")


def installation(extra: str) -> str:
    """Returns the command that installs the missing packages of an extra of `setup.py`.

    The command does not name this distribution: its name is not on the registry, where a stranger
    could register it. If no package is missing, the command names all of the extra.
    """
    if not (requirements := declared_requirements()):
        return f'pip install ".[{extra}]" in a checkout'
    needed = [
        requirement
        for requirement in requirements
        if requirement.marker is not None
        and requirement.marker.evaluate({"extra": extra})
        and not requirement.marker.evaluate({"extra": ""})
    ]
    absent = [requirement for requirement in needed if not _is_installed(requirement)]
    for requirement in needed:
        requirement.marker = None
    return " ".join(["pip install", *(f'"{requirement}"' for requirement in absent or needed)])


def declared_requirements() -> list[Any]:
    """Returns the requirements of this package's metadata; none for code that is not installed."""
    from packaging.requirements import Requirement

    try:
        return list(map(Requirement, importlib.metadata.requires(DISTRIBUTION) or ()))
    except importlib.metadata.PackageNotFoundError:
        return []


def _is_installed(requirement):
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return requirement.specifier.contains(version, prereleases=True)


def print_message(text: object) -> None:
    """Writes a message as one line of the command to stderr."""
    print_lines(f"keras-transformer: {' '.join(str(text).split())}")


def print_lines(text: object) -> None:
    """Writes lines to stderr at once; they are lost if stderr is closed or full."""
    if sys.stderr is not None:  # `print` would write to stdout instead.
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def is_terminal(stream: Any) -> bool:
    """Returns whether a person reads or types at a stream, which may be None or closed."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def first_line(error: BaseException) -> str:
    """Returns the first line of an exception's message, or its name if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def did_you_mean(name: object, known_names: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name: ` Did you mean …?`, or nothing.

    A name is near if it has all words of the unknown name, or nearly its letters: `num_layer` is
    near `num_encoder_layers` and `num_decoder_layers`, but not near `turn_layers`. A text of more
    than 200 characters is near nothing.

    Args:
        name: Unknown name.
        known_names: Known names.
    """
    name, known_names = str(name), list(known_names)
    if len(name) > _LONGEST_NAME:
        return ""
    words = name.lower().split("_")
    near = [known for known in known_names if _has_words(known.lower().split("_"), words)]
    count = max(1, len(known_names))
    near = near or difflib.get_close_matches(name, known_names, count, _NEAR_LETTERS)
    likeness = {known: difflib.SequenceMatcher(None, name, known).ratio() for known in near}
    best = max(likeness.values(), default=0.0)
    # Several may be equally near; they come in the order of the known names.
    nearest = [known for known in known_names if likeness.get(known, -1.0) == best]
    names = " or ".join(f"`{known}`" for known in nearest[:_MAX_NAMES])
    return f" Did you mean {names}?" if names else ""


def _has_words(known_words, words):
    """Returns whether a name has all words, of which some may be beginnings: `vocab`, `max_len`.

    A word may also be the plural of a known word: `beams`.
    """
    return all(
        word in known_words
        or word.removesuffix("s") in known_words
        or (len(word) > 2 and any(known_word.startswith(word) for known_word in known_words))
        for word in words
    )
