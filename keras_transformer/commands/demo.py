"""The command `keras-transformer demo`."""


def add_command(commands):
    """Adds `demo` to the subparsers of the command line."""
    command = commands.add_parser(
        "demo",
        help="the whole way on built-in data: dates in 26 locales -> 2026-11-20",
        description="Trains on built-in data, evaluates on held-out dates, exports a SavedModel "
        "and translates through it.",
    )
    command.add_argument("--output", default="demo", metavar="DIR", help="default: %(default)s")
    command.add_argument("--overwrite", action="store_true", help="replace an earlier demo")
    command.set_defaults(command=_demo)


def _demo(options):
    from keras_transformer.demo import run_demo

    print(run_demo(options.output, overwrite=options.overwrite))
