"""The command `keras-transformer serve`."""

import argparse

from keras_transformer.commands.arguments import add_declared, given

# The titles of groups in `--help`, and the option that each begins with.
_GROUPS = {"name": "where", "replicas": "replicas", "max_queue": "limits"}


def add_command(commands: argparse._SubParsersAction) -> None:
    """Adds `serve` to the subparsers of the command line."""
    command = commands.add_parser(
        "serve",
        help="serve an exported SavedModel over HTTP",
        description="Serves a SavedModel with TensorFlow Serving's REST protocol, on Ray Serve.",
        options=_add_options,
    )
    command.set_defaults(command=_serve)


def _add_options(command):
    from keras_transformer.serving.options import ServerOptions

    command.add_argument(
        "--model",
        required=True,
        metavar="DIR",
        help="an exported SavedModel, or a folder of numbered ones: the highest is served, and "
        "a higher one that appears takes over",
    )
    add_declared(command, ServerOptions, _GROUPS)


def _serve(options):
    from keras_transformer.serving.options import ServerOptions
    from keras_transformer.serving.server import serve

    serve(options.model, ServerOptions(**given(options, "model")))
