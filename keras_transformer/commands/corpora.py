"""The command `keras-transformer clean`: corpora in, corpora out."""

import argparse
import json
import os
import sys
from typing import get_args

from keras_transformer.commands.arguments import add_declared, add_options, add_progress, given
from keras_transformer.errors import InputError

_GROUPS = {
    "min_characters": "rules for a pair",
    "duplicates": "rules for the corpus",
    "processes": "processes",
}


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Adds `clean` to the subparsers of the command line."""
    command = commands.add_parser(
        "clean",
        help="drop what is no translation from parallel corpora, with a report",
        description="Writes the pairs of corpora that break no rule, in their order, with a report "
        "of what was dropped by which rule, examples, and a picture of length ratios.",
        options=_add_clean_options,
    )
    command.set_defaults(command=_clean)


def _add_clean_options(command):
    from keras_transformer.clean import CleanOptions
    from keras_transformer.data.rules import Rule, Script

    command.add_argument(
        "corpora",
        nargs="+",
        metavar="FILE",
        help="a source and its target, once or more, plain or .gz; a name with .tsv has both sides",
    )
    command.add_argument("--output", required=True, metavar="DIR", help="the folder to make")
    command.add_argument("--overwrite", action="store_true", help="replace an earlier output")
    held_out = "test sets, either side: equal lines are dropped; a TSV's columns are lines"
    add_options(command, ("held_out", [str], "FILE", held_out))
    command.add_argument(
        "--models",
        nargs=2,
        metavar=("FORWARD", "BACKWARD"),
        default=argparse.SUPPRESS,
        help="runs or exports that translate to the target and back, for dual cross-entropies",
    )
    add_progress(command)
    kinds = {
        "source_scripts": ([str], "NAME"),
        "target_scripts": ([str], "NAME"),
        "without": ([str], "RULE"),
        "duplicates": (("near", "exact", "keep"), None),
    }
    add_declared(command, CleanOptions, _GROUPS, kinds=kinds)
    command.epilog = f"Rules: {', '.join(get_args(Rule))}. Scripts: {', '.join(get_args(Script))}."


def _clean(options):
    from keras_transformer.clean import clean_corpora
    from keras_transformer.commands.line_reader import describe, progress_bar
    from keras_transformer.files import is_terminal

    values = given(options, "corpora", "output", "progress")
    corpora = paired(options.corpora)
    shown = is_terminal(sys.stderr) if options.progress is None else options.progress
    paths = [path for corpus in corpora for path in corpus if path is not None]
    total = None
    if all(os.path.isfile(path) and not path.endswith(".gz") for path in paths):
        total = sum(map(os.path.getsize, paths)) * (3 if "models" in values else 2)
    with progress_bar(total, shown) as bar:

        def progress(stage, size):
            if shown:
                describe(bar, stage, size)

        report = clean_corpora(corpora, options.output, progress=progress, **values)
    print(json.dumps(report, indent=2, ensure_ascii=False))


def paired(paths: list[str]) -> list[tuple[str, str | None]]:
    """Returns the corpora of a list of files: a TSV by itself, others in twos."""
    corpora: list[tuple[str, str | None]] = []
    left = list(paths)
    while left:
        source = left.pop(0)
        if source.removesuffix(".gz").endswith(".tsv"):
            corpora.append((source, None))
        elif not left:
            rule = "A source needs its target after it; a file of both sides is named *.tsv"
            raise InputError(f"{rule}. Received: {source} last.")
        else:
            corpora.append((source, left.pop(0)))
    return corpora
