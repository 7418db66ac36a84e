"""The command `keras-transformer serve`."""

import argparse

from keras_transformer.commands.arguments import given
from keras_transformer.serving.options import ServerOptions

_OWN = ("command", "model")
_GROUPS = {
    "where": {
        "name": "the model's name in the addresses; default: its folder's",
        "host": "address to listen on, 0.0.0.0 for every network",
        "allowed_hosts": "more names of this server in the Host header, with commas between them, "
        "* for any; default: localhost and the address, any if that is not of this machine alone",
        "port": "port to listen on, 0 for a free one",
    },
    "replicas": {
        "replicas": "processes that hold the model",
        "threads": "batches that a replica works on at a time, and its threads",
        "max_batch_size": "most sentences in a batch",
        "batch_wait_ms": "most milliseconds that a sentence waits for others if a replica is free",
        "warm_up_tokens": "sources up to so many tokens are compiled before the server is ready",
        "warm_up_signatures": "signatures that are compiled then, with commas between them",
        "replica_cpus": "CPUs that Ray reserves for a replica",
        "ray_address": "a Ray cluster to join; without token authentication (RAY_AUTH_MODE=token) "
        "whoever reaches its gRPC ports can run code in it; default: one is started here",
    },
    "limits": {
        "max_queue": "most sentences that wait; more are rejected with 429",
        "max_body_bytes": "longest request; a longer one is rejected with 413",
        "max_sentences": "most sentences in a request, likewise",
        "max_text_bytes": "longest text, likewise",
        "max_answer_bytes": "longest answer; a request for a longer one is rejected with 413",
        "max_connections": "most open connections; more are rejected with 503",
        "request_timeout": "seconds until a request without an answer gets 504",
        "read_timeout": "seconds that a client has to send a request or take an answer",
        "drain_timeout": "seconds that a server told to stop has for what it accepted",
        "poll_seconds": "how often the folder is looked at for a new version",
    },
}


def add_command(commands):
    """Adds `serve` to the subparsers of the command line."""
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
    for title, options in _GROUPS.items():
        group = command.add_argument_group(title)
        for name, help in options.items():
            default = getattr(ServerOptions, name)
            kind = str if default is None else type(default)
            group.add_argument(
                "--" + name.replace("_", "-"),
                type=kind,
                metavar={str: "TEXT", int: "N", float: "X"}[kind],
                default=argparse.SUPPRESS,
                help=help if default is None else f"{help}; default: {default}",
            )
    command.set_defaults(command=_serve)


def _serve(options):
    from keras_transformer.serving.server import serve

    serve(options.model, ServerOptions(**given(options, *_OWN)))
