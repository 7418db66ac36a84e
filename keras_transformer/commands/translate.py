"""The command `keras-transformer translate`."""

import argparse
import contextlib
import json
import sys

from keras_transformer.commands.arguments import (
    add_alignment,
    add_decoding,
    add_model,
    add_progress,
    given,
)
from keras_transformer.errors import InputError

_OWN = ("command", "model", "json", "stream", "progress", "engine")
_BULK = ("input", "output", "workers", "threads", "chunk_lines", "ray_address")


def add_command(commands):
    """Adds `translate` to the subparsers of the command line."""
    command = commands.add_parser(
        "translate",
        help="translate stdin, a line in, a line out",
        description="Translates the lines of stdin to stdout, in their order, as they come.",
    )
    group = command.add_argument_group("input and output")
    add_model(group)
    group.add_argument(
        "--target-prefixes",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="what each translation begins with, a line for each line of stdin",
    )
    group.add_argument(
        "--n-best",
        type=int,
        metavar="N",
        default=argparse.SUPPRESS,
        help="for N > 1: N lines a sentence, `number ||| translation ||| score`; default: 1",
    )
    group.add_argument(
        "--json", action="store_true", help="a JSON object a line: text, tokens, probabilities"
    )
    add_alignment(group)
    group.add_argument(
        "--stream", action="store_true", help="write each translation while it grows"
    )
    add_progress(group)
    _add_bulk(command)
    add_decoding(command)
    command.set_defaults(command=_translate)


def _add_bulk(command):
    group = command.add_argument_group("files over a Ray cluster, with --engine ray")
    group.add_argument(
        "--engine",
        choices=["here", "ray"],
        default="here",
        help="where: in this process, or over a Ray cluster; default: here",
    )
    suppressed = {"default": argparse.SUPPRESS}
    group.add_argument(
        "--input", nargs="+", metavar="FILE", help="text files, .gz too", **suppressed
    )
    group.add_argument(
        "--output", metavar="DIR", help="folder to make, or to go on with", **suppressed
    )
    for name, default, help in (
        ("workers", 1, "processes that translate"),
        ("threads", 2, "threads and CPUs of a worker"),
        ("chunk-lines", 1000, "lines that a worker translates at a time"),
    ):
        group.add_argument(
            f"--{name}", type=int, metavar="N", help=f"{help}; default: {default}", **suppressed
        )
    group.add_argument(
        "--ray-address", metavar="TEXT", help="default: Ray is started here", **suppressed
    )


def _translate_files(options):
    from keras_transformer.bulk import translate_corpus

    for name in ("json", "alignment", "n_best", "stream", "progress", "target_prefixes"):
        if getattr(options, name, None) not in (None, False):
            raise InputError(f"--{name.replace('_', '-')} does not go with --engine ray.")
    values = given(options, *_OWN)
    for name in ("input", "output"):
        if name not in values:
            raise InputError(f"--engine ray needs --{name}.")
    inputs, output = values.pop("input"), values.pop("output")
    # Ray prints about its own comings and goings.
    with contextlib.redirect_stdout(sys.stderr):
        report = translate_corpus(options.model, inputs, output, **values)
    print(json.dumps(report, indent=2))


def _translate(options):
    if options.engine == "ray":
        _translate_files(options)
        return
    from keras_transformer.commands.line_stream import translate_incrementally, translate_lines
    from keras_transformer.commands.progress import Progress, size_left
    from keras_transformer.files import is_terminal
    from keras_transformer.translator import Translator

    _check_together(options)
    if sys.stdin is None:
        raise InputError("stdin is closed: expected lines of text.")
    translator = Translator.load(options.model)
    source, values = sys.stdin.buffer, given(options, *_OWN)
    if options.stream:
        with Progress(shown=False) as progress:
            translate_incrementally(
                translator,
                source,
                sys.stdout,
                rewrite=is_terminal(sys.stdout),
                progress=progress,
                **values,
            )
        return
    format = "json" if options.json else "list" if values.get("n_best", 1) > 1 else "text"
    shown = options.progress
    if shown is None:
        shown = is_terminal(sys.stderr) and not is_terminal(sys.stdin)
    with Progress(size_left(source), shown, apart=not is_terminal(sys.stdout)) as progress:
        translate_lines(translator, source, sys.stdout, format, progress=progress, **values)


def _check_together(options):
    for name in _BULK:
        if name in options:
            raise InputError(f"--{name.replace('_', '-')} goes with --engine ray alone.")
    if "alignment" in options and not options.json:
        raise InputError("--alignment is written as JSON alone: give --json with it.")
    if not options.stream:
        return
    for name in ("json", "alignment", "n_best", "batch_size", "progress"):
        if getattr(options, name, None) not in (None, False):
            raise InputError(f"--{name.replace('_', '-')} does not go with --stream.")
