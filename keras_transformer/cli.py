"""The `keras-transformer` command line: what holds for all of its commands.

stdout carries the result alone; progress and errors go to stderr. Exit code 0 on success, 2 on a
user's mistake (one line), 1 when an export does not do what its model does or when a training's
loss is no number, 130 on Ctrl-C, 141 when whoever reads the result has gone.
"""

import argparse
import contextlib
import errno
import os
import sys
import warnings

from keras_transformer.commands import (
    benchmark,
    demo,
    evaluate,
    export,
    score,
    serve,
    train,
    translate,
)
from keras_transformer.commands.quiet import silence_tensorflow
from keras_transformer.errors import InputError, TrainingError, VerificationError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(arguments=None):
    """Runs the command line and exits."""
    sys.exit(run(arguments))


def run(arguments=None):
    """Runs the command line.

    Args:
        arguments: List of strings, `sys.argv[1:]` by default.

    Returns:
        The exit code.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser(arguments).parse_args(arguments)
    # What is left are a command's own options, most of them arguments of the library.
    if not vars(options).pop("verbose", False):
        silence_tensorflow()
    if sys.stdout is None:  # Closed by whoever started us.
        sys.stdout = open(os.devnull, "w")
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        code = _call(options)
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python would complain once more while closing stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code or _told(error)
    return code


def _call(options):
    """Calls a command and gives its exit code."""
    try:
        options.command(options)
    except InputError as error:
        return _tell(error, 2)
    except (TrainingError, VerificationError) as error:
        return _tell(error, 1)
    except OSError as error:
        return _told(error)
    except KeyboardInterrupt:
        return _tell("interrupted", 130)
    return 0


def _told(error):
    if isinstance(error, BrokenPipeError):
        return 141
    if error.errno not in _NO_ROOM:
        raise error
    return _tell(f"cannot write: {error.strerror}.", 2)


def _tell(message, code):
    with contextlib.suppress(BrokenPipeError):
        print(f"keras-transformer: {' '.join(str(message).split())}", file=sys.stderr)
    return code


def _show_warning(message, *place):
    _tell(message, None)


class _Parser(argparse.ArgumentParser):
    """A parser with the options of all commands; those of its subcommands are of its class."""

    def __init__(self, **options):
        super().__init__(**options)
        self.add_argument(
            "--verbose",
            action="store_true",
            default=argparse.SUPPRESS,
            help="show TensorFlow's messages on the machine too",
        )


def _parser(arguments):
    parser = _Parser(
        prog="keras-transformer",
        description="Train, evaluate, export and use a Transformer on your own parallel text.",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (demo, train, translate, score, evaluate, export, benchmark):
        command.add_command(commands)
    serve.add_command(commands, with_options="serve" in arguments)
    return parser
