"""The `keras-transformer` command line: its parser and the rules for all commands.

stdout carries only the result; progress and errors go to stderr. The exit code is 0 on success, 2
on a user's mistake (one line), 130 on Ctrl-C, and 141 when the reader of the result has gone. It
is 1 when an export differs from its model or when the training loss is NaN or infinite.
"""

import argparse
import contextlib
import errno
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from keras_transformer.cli import corpora, evaluate, export, serve, train, translate
from keras_transformer.engine.compilation_cache import enable_compilation_cache
from keras_transformer.errors import (
    InputError,
    InvalidFileError,
    TrainingError,
    VerificationError,
    say,
)
from keras_transformer.imports import LEVEL, own_stderr, silence_tensorflow

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO)
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits."""
    code: str | int | None
    try:
        code = run(arguments)
    except SystemExit as ended:
        code = ended.code
    if isinstance(code, int) and code in (130, 143):
        os._exit(code)  # After Ctrl-C or SIGTERM a thread may stay in TensorFlow for long.
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: `sys.argv[1:]` by default.

    Returns:
        The exit code.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    _open_closed_streams()
    if sys.stdout is None:
        say("stdout is closed, but the result is written there. Add >/dev/null to discard it.")
        return _flush(2)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as ended:  # By argparse, after a help text or a wrong option.
        sys.exit(_flush(ended.code))
    except OSError as error:
        return _flush(_exit_for_os_error(error))
    # The other options are the command's, most of them arguments of the library.
    if vars(options).pop("verbose", False):
        os.environ.setdefault(LEVEL, "0")
    else:
        silence_tensorflow()
        own_stderr()
    flags = vars(options).pop("options_of_command")
    without_cache = vars(options).pop("no_compilation_cache", False)
    with _messages_on_stderr():
        if not without_cache:
            enable_compilation_cache()
        return _flush(_call(options, flags))


def _open_closed_streams():
    """Opens /dev/null for each of stdin, stdout and stderr that the parent process has closed.

    Otherwise the next file that is opened would take the descriptor of a closed stream, and a
    library that writes to stderr would write into this file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            lowest_free = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(lowest_free, True)  # for child processes
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")


def _flush(code):
    """Flushes stdout and stderr; returns `code`, or the exit code of a failure to write stdout."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            # Otherwise Python reports the error again as it closes the stream, and exits with 120.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if stream is sys.stdout:
                code = code or _exit_for_os_error(error)
    return code


@contextlib.contextmanager
def _messages_on_stderr():
    """Shows warnings and the package's log as lines of the command."""

    class Handler(logging.Handler):
        def emit(self, record):
            say(record.getMessage())

    logger, handler = logging.getLogger("keras_transformer"), Handler()
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False  # TensorFlow's import may leave a handler of its own.
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *index: say(message)
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def _call(options, flags):
    """Calls a command; returns its exit code."""
    try:
        options.command(options)
    except (InputError, TrainingError, VerificationError) as error:
        is_mistake, message = isinstance(error, InputError), str(error)
        if is_mistake and not isinstance(error, InvalidFileError):
            message = _with_flags(message, flags)
        say(message)
        return 2 if is_mistake else 1
    except OSError as error:
        return _exit_for_os_error(error)
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return 0


def _with_flags(message, flags):
    """Replaces options in a message by their flags: `beam_size`, `sampling=True`, `markup=html`."""
    for name, flag in flags.items():
        message = message.replace(f"`{name}`", f"`{flag}`").replace(f"`{name}=True`", f"`{flag}`")
        message = message.replace(f"`{name}=", f"`{flag}=")
    return message


def _exit_for_os_error(error):
    if isinstance(error, BrokenPipeError):
        return 141
    if error.errno in _NO_PATH:
        say(f"{error.filename}: no file or folder can have this path: {error.strerror}.")
        return 2
    if error.errno not in _CANNOT_WRITE:
        raise error
    subject = "cannot write" if error.filename is None else f"{error.filename}: cannot be written"
    say(f"{subject}: {error.strerror}.")
    return 2


class _Parser(argparse.ArgumentParser):
    """A parser with the options of all commands; its subcommands have parsers of its class.

    Args:
        options: Adds a command's options to its parser, once the command is the one to run.
    """

    def __init__(self, options: Callable | None = None, **keywords: Any):
        super().__init__(**keywords)
        self._options = options
        self.add_argument(
            "--verbose",
            action="store_true",
            default=argparse.SUPPRESS,
            help="also show TensorFlow's messages about the machine",
        )
        self.add_argument(
            "--no-compilation-cache",
            action="store_true",
            default=argparse.SUPPRESS,
            help="compile again what an earlier command has compiled",
        )

    def print_help(self, file: Any = None) -> None:
        """Prints the help text; raises `OSError` where argparse would ignore it."""
        (sys.stdout if file is None else file).write(self.format_help())

    def parse_known_args(self, *arguments, **keywords):
        """Adds the options of this command, then parses."""
        add, self._options = self._options, None
        if add is not None:
            add(self)
        parsed, remaining = super().parse_known_args(*arguments, **keywords)
        if "options_of_command" not in parsed:  # The parser of the whole command line is last.
            parsed.options_of_command = {
                action.dest: next(flag for flag in action.option_strings if flag[:2] == "--")
                for action in self._actions
                if action.option_strings
            }
        return parsed, remaining


def _parser():
    parser = _Parser(
        prog="keras-transformer",
        description="Train, evaluate, export and use a Transformer on your own parallel text.",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    train.add_commands(commands)
    translate.add_commands(commands)
    evaluate.add_commands(commands)
    export.add_command(commands)
    serve.add_command(commands)
    corpora.add_commands(commands)
    return parser
