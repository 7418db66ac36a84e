"""The command `keras-transformer export`."""

import argparse
import contextlib
import json
import signal
import sys

from keras_transformer.commands.arguments import Row, add_model, add_options, given
from keras_transformer.errors import InputError

# The options by the formats that have them.
_ROWS: dict[str, tuple[Row, ...]] = {
    "saved_model, tflite, web, ctranslate2": (
        ("beam_size", int, "N", "default: the run's"),
        ("length_penalty", float, "A", "default: the run's"),
    ),
    "tflite, web": (
        ("quantize", str, "KIND", "weights as float16 or int8; default: none (float32)"),
        (
            "source_lengths",
            [int],
            "N",
            "tokens of a source that signatures are made for; default: 32 64 128, web: 32 96",
        ),
    ),
    "web": (("npm", str, "DIR", "where npm installed LiteRT.js; default: here or above"),),
    "tflite": (
        ("n_best", int, "N", "hypotheses that beam search returns; default: all"),
        ("ids_only", None, None, "leave out the file that takes text"),
    ),
}
_VERIFY = "sentences to compare with the model on; default: the run's validation source"
_SIGNATURES = "serving_default greedy beam sample score align serving_ids; default: all"
_SEARCH = ("verify_with", "beam_size", "length_penalty")
_LITERT = (*_SEARCH, "quantize", "n_best", "source_lengths", "ids_only")
# The function of `run_exports` that makes each format, and its options.
_FORMATS = {
    "saved_model": ("export_run", (*_SEARCH, "signatures")),
    "tflite": ("export_litert", _LITERT),
    "litert": ("export_litert", _LITERT),
    "web": ("export_web", (*_SEARCH, "quantize", "source_lengths", "npm")),
    "ctranslate2": ("export_ctranslate2", _SEARCH),
    "tokenizer_json": ("export_tokenizer_json", ("verify_with",)),
}


def add_command(commands: argparse._SubParsersAction) -> None:
    """Adds `export` to the subparsers of the command line."""
    command = commands.add_parser(
        "export",
        help="a SavedModel, a LiteRT or a CTranslate2 model, a page",
        description="Exports a run folder. What is exported is verified against the model.",
        options=_add_options,
    )
    command.set_defaults(command=_export)


def _add_options(command):
    add_model(command, "a run folder")
    command.add_argument("--format", required=True, choices=list(_FORMATS))
    command.add_argument("--output", required=True, metavar="DIR", help="the folder to make")
    command.add_argument("--overwrite", action="store_true", help="replace an export there")
    add_options(command, ("verify_with", str, "FILE", _VERIFY))
    for formats, rows in _ROWS.items():
        add_options(command.add_argument_group(formats), *rows)
    command.add_argument_group("saved_model").add_argument(
        "--signatures", nargs="*", metavar="NAME", default=argparse.SUPPRESS, help=_SIGNATURES
    )


def _export(options):
    from keras_transformer import run_exports

    function, allowed = _FORMATS[options.format]
    values = given(options, "model", "format", "output", "overwrite")
    for name in values:
        if name not in allowed:
            raise InputError(
                f"--{name.replace('_', '-')} does not go with --format {options.format}."
            )
    export = getattr(run_exports, function)
    with _cleaned_up_on_sigterm():
        report = export(options.model, options.output, overwrite=options.overwrite, **values)
    print(json.dumps(report, indent=2))


@contextlib.contextmanager
def _cleaned_up_on_sigterm():
    """Lets SIGTERM end the command as an exception does, which removes what is half done."""

    def end(number, _):
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
