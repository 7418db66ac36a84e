"""The command `keras-transformer serve`."""

from keras_transformer.cli.arguments import add_declared, option_values

# The titles of groups in `--help`, and the option that each begins with.
_GROUPS = {
    "host": "where",
    "name": "model",
    "threads": "batches",
    "max_ongoing": "limits",
}


def _add_options(command):
    from keras_transformer.extras.serving.server_options import LocalOptions, ServerOptions

    command.add_argument(
        "--model",
        required=True,
        metavar="PATH",
        help="an export, a LiteRT file of one, or a folder of numbered exports, of which the "
        "highest is served",
    )
    kinds = {"version": (int, "N"), "languages": (str, "CODES")}
    for declaring in (LocalOptions, ServerOptions):
        names = set(declaring.model_fields) - {"model"}
        add_declared(command, declaring, _GROUPS, names, kinds)


def _serve(options):
    from keras_transformer.extras.serving import LocalOptions, ServerOptions, serve_here

    values = {"model": options.model, **option_values(options, "model")}
    local = {name: values.pop(name) for name in LocalOptions.model_fields if name in values}
    serve_here(ServerOptions(**values), LocalOptions(**local))


COMMANDS = {"serve": (_add_options, _serve)}
