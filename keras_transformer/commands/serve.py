"""The command `keras-transformer serve`."""

import argparse

from keras_transformer.commands.arguments import given

_OWN = ("command", "model")
# The titles of groups in `--help`, and the option that each begins with.
_GROUPS = {"name": "where", "replicas": "replicas", "max_queue": "limits"}


def add_command(commands, with_options=True):
    """Adds `serve` to the subparsers of the command line.

    Args:
        commands: The subparsers.
        with_options: Whether its options are needed, which takes pydantic to read.
    """
    command = commands.add_parser(
        "serve",
        help="serve an exported SavedModel over HTTP",
        description="Serves a SavedModel with TensorFlow Serving's REST protocol, on Ray Serve.",
    )
    command.add_argument(
        "--model",
        required=True,
        metavar="DIR",
        help="an exported SavedModel, or a folder of numbered ones: the highest is served, and "
        "a higher one that appears takes over",
    )
    if with_options:
        _add_options(command)
    command.set_defaults(command=_serve)


def _add_options(command):
    from keras_transformer.declaration import properties, schema_of
    from keras_transformer.serving.options import ServerOptions

    for name, declared in properties(schema_of(ServerOptions)).items():
        if name in _GROUPS:
            group = command.add_argument_group(_GROUPS[name])
        default, meaning = declared["default"], declared["description"]
        kind = str if default is None else type(default)
        group.add_argument(
            "--" + name.replace("_", "-"),
            type=kind,
            metavar={str: "TEXT", int: "N", float: "X"}[kind],
            default=argparse.SUPPRESS,
            help=meaning if default is None else f"{meaning}; default: {default}",
        )


def _serve(options):
    from keras_transformer.serving.options import ServerOptions
    from keras_transformer.serving.server import serve

    serve(options.model, ServerOptions(**given(options, *_OWN)))
