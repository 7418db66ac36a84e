"""The command `keras-transformer inspect`."""

import argparse
import json

from keras_transformer.commands.arguments import add_model, add_options, given

_HEADS = "as encoder.0.1,cross.3.2: kind, layer, head; shows the translation without them"
_GOLD = "gold alignments (0-0 sure, 1p2 possible): of the sentence, or of the corpus' first lines"
_OPTIONS = (
    ("target", str, "TEXT", "its translation; default: the one that the model finds"),
    ("without_heads", str, "HEADS", _HEADS),
    ("gold", str, "FILE", _GOLD),
    ("conllu", str, "FILE", "dependencies of sentences of the source language, for heads' roles"),
    ("other_positions", str, "RUN", "a run with the other kind of positions, to compare with"),
    ("beam_size", int, "N", "default: the run's"),
)


def add_command(commands: argparse._SubParsersAction) -> None:
    """Adds `inspect` to the subparsers of the command line."""
    command = commands.add_parser(
        "inspect",
        help="see inside a run: attention, alignment, positions, heads",
        description="Writes an interactive page of a sentence's attention, pictures and tables.",
    )
    add_model(command, "a run folder")
    command.add_argument("--source", required=True, metavar="TEXT", help="a sentence")
    command.add_argument("--output", required=True, metavar="DIR", help="the folder to make")
    command.add_argument("--overwrite", action="store_true", help="replace an earlier output")
    add_options(command, *_OPTIONS)
    command.add_argument(
        "--corpus",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        default=argparse.SUPPRESS,
        help="aligned files to measure the heads on; default: the run's validation text",
    )
    command.set_defaults(command=_inspect)


def _inspect(options):
    from keras_transformer.inspection import inspect_run

    values = given(options, "model", "source", "output")
    if "without_heads" in values:
        values["without_heads"] = values["without_heads"].split(",")
    report = inspect_run(options.model, options.source, options.output, **values)
    print(json.dumps(report, indent=2, ensure_ascii=False))
