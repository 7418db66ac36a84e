"""The command `keras-transformer serve`."""

import argparse

from keras_transformer.commands.arguments import add_declared, declared_options, given

# The titles of groups in `--help`, and the option that each begins with.
_GROUPS = {
    "host": "where",
    "name": "model",
    "replicas": "processes and batches",
    "max_queue": "limits",
}


def add_command(commands: argparse._SubParsersAction, with_options: bool = True) -> None:
    """Adds `serve` to the subparsers of the command line.

    Args:
        commands: The subparsers.
        with_options: Whether its options are needed.
    """
    command = commands.add_parser(
        "serve",
        help="serve an export over HTTP",
        description="Serves an export with TensorFlow Serving's REST protocol, on a Ray Serve of "
        "its own. On a cluster: serve run keras_transformer.serving:build_app model=DIR",
    )
    command.add_argument(
        "--model",
        required=True,
        metavar="DIR",
        help="an export, or a folder of numbered ones: the highest is served, and a higher one "
        "that appears takes over",
    )
    if with_options:
        path = "serving/options.py"
        kinds = {"replicas": (str, "N|auto"), "version": (int, "N")}
        for name in ("LocalOptions", "ServerOptions"):
            add_declared(command, declared_options(path, name), _GROUPS, kinds)
    command.set_defaults(command=_serve)


def _serve(options):
    from keras_transformer.serving.local import main_options, serve

    serve(*main_options({"model": options.model, **given(options, "model")}))
