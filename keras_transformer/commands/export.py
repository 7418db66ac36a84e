"""The command `keras-transformer export`."""

import argparse
import json

from keras_transformer.commands.arguments import add_model, given
from keras_transformer.errors import InputError

_SEARCH = ("verify_with", "beam_size", "length_penalty")
_LITERT = (*_SEARCH, "quantize", "n_best", "source_lengths", "ids_only")
# The options that each format has.
_OPTIONS = {
    "saved_model": (*_SEARCH, "signatures"),
    "tflite": _LITERT,
    "litert": _LITERT,
    "ctranslate2": ("verify_with",),
}
_OWN = ("command", "model", "format", "output", "overwrite")


def add_command(commands):
    """Adds `export` to the subparsers of the command line."""
    command = commands.add_parser(
        "export",
        help="a SavedModel, a LiteRT or a CTranslate2 model",
        description="Exports a run folder. What is exported is verified against the model.",
    )
    add_model(command, "a run folder")
    command.add_argument("--format", required=True, choices=list(_OPTIONS))
    command.add_argument("--output", required=True, metavar="DIR", help="the folder to make")
    command.add_argument("--overwrite", action="store_true", help="replace an export there")
    command.add_argument(
        "--verify-with",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="sentences to compare with the model on; default: the run's validation source",
    )
    group = command.add_argument_group("saved_model, tflite")
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
    command.add_argument_group("saved_model").add_argument(
        "--signatures",
        nargs="*",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help="serving_default greedy beam sample score align serving_ids; default: all",
    )
    group = command.add_argument_group("tflite")
    group.add_argument(
        "--quantize",
        metavar="KIND",
        default=argparse.SUPPRESS,
        help="weights as none (float32, the default), float16 or int8",
    )
    group.add_argument(
        "--n-best",
        type=int,
        metavar="N",
        default=argparse.SUPPRESS,
        help="hypotheses that beam search returns; default: all",
    )
    group.add_argument(
        "--source-lengths",
        type=int,
        nargs="+",
        metavar="N",
        default=argparse.SUPPRESS,
        help="tokens of a source that signatures are made for; default: 32 64 128",
    )
    group.add_argument(
        "--ids-only",
        action="store_true",
        default=argparse.SUPPRESS,
        help="leave out the file that takes text",
    )
    command.set_defaults(command=_export)


def _export(options):
    from keras_transformer import pipeline

    values = given(options, *_OWN)
    for name in values:
        if name not in _OPTIONS[options.format]:
            hint = "" if _OPTIONS[options.format] else ": such a model is told when it translates"
            raise InputError(
                f"--{name.replace('_', '-')} does not go with --format {options.format}{hint}."
            )
    export = {
        "saved_model": pipeline.export_run,
        "ctranslate2": pipeline.export_ctranslate2,
    }.get(options.format, pipeline.export_litert)
    report = export(options.model, options.output, overwrite=options.overwrite, **values)
    print(json.dumps(report, indent=2))
