"""The command `keras-transformer import`."""

import argparse

from keras_transformer.cli.arguments import add_options, begin_with_model, option_values

_SAMPLES = "source sentences that exports are verified with, one per line; default: built-in ones"


def add_command(commands: argparse._SubParsersAction) -> None:
    """Adds `import` to the subparsers of the command line."""
    command = commands.add_parser(
        "import",
        help="make a run from a model of Marian, OPUS-MT, Hugging Face or Firefox",
        description="Makes a run folder from a model of Marian (npz), OPUS-MT, Hugging Face "
        "(model_type: marian, safetensors) or Firefox and Bergamot (bin).",
    )
    command.add_argument("folder", metavar="FOLDER", help="folder of the model")
    command.add_argument("--output", required=True, metavar="RUN", help="the run folder to make")
    command.add_argument("--overwrite", action="store_true", help="replace an earlier run")
    add_options(command, ("samples", str, "FILE", _SAMPLES))
    command.set_defaults(command=_import)


def _import(options):
    begin_with_model(options.folder)
    from keras_transformer.importing import import_run

    print(import_run(**option_values(options)))
