"""The `keras-transformer` command line: what holds for all of its commands.

stdout carries the result alone; progress and errors go to stderr. Exit code 0 on success, 2 on a
user's mistake (one line), 1 when an export does not do what its model does, 130 on Ctrl-C, 141
when whoever reads the result has gone.
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
from keras_transformer.errors import InputError, VerificationError

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
    # TensorFlow's C++ side would mix its notes on the machine with the result's progress.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    options = _parser().parse_args(arguments)
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
    except VerificationError as error:
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


def _parser():
    parser = argparse.ArgumentParser(
        prog="keras-transformer",
        description="Train, evaluate, export and use a Transformer on your own parallel text.",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add_command in (
        demo.add_command,
        train.add_command,
        translate.add_command,
        score.add_command,
        evaluate.add_command,
        export.add_command,
        serve.add_command,
        benchmark.add_command,
    ):
        add_command(commands)
    return parser
