"""The command `keras-transformer export`."""

import argparse
import json

from keras_transformer.commands.arguments import add_model, given
from keras_transformer.errors import InputError

_OWN = ("command", "model", "format", "output", "overwrite")


def add_command(commands):
    """Adds `export` to the subparsers of the command line."""
    command = commands.add_parser(
        "export",
        help="a SavedModel that takes text and gives text, or a CTranslate2 model",
        description="Exports a run folder. A SavedModel is verified against the model.",
    )
    add_model(command, "a run folder")
    command.add_argument("--format", required=True, choices=["saved_model", "ctranslate2"])
    command.add_argument("--output", required=True, metavar="DIR", help="the folder to make")
    command.add_argument("--overwrite", action="store_true", help="replace an export there")
    group = command.add_argument_group("saved_model")
    group.add_argument(
        "--verify-with",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="sentences to compare with the model on; default: the run's validation source",
    )
    group.add_argument(
        "--beam-size", type=int, metavar="N", default=argparse.SUPPRESS, help="default: the run's"
    )
    group.add_argument(
        "--length-penalty",
        type=float,
        metavar="A",
        default=argparse.SUPPRESS,
        help="default: the run's",
    )
    group.add_argument(
        "--signatures",
        nargs="*",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help="serving_default greedy beam sample score align serving_ids; default: all",
    )
    command.set_defaults(command=_export)


def _export(options):
    from keras_transformer import pipeline

    values = given(options, *_OWN)
    if options.format == "ctranslate2":
        for name in values:
            raise InputError(
                f"--{name.replace('_', '-')} does not go with --format ctranslate2: such a model "
                "is told when it translates."
            )
        export = pipeline.export_ctranslate2
    else:
        export = pipeline.export_run
    report = export(options.model, options.output, overwrite=options.overwrite, **values)
    print(json.dumps(report, indent=2))
