"""The command `keras-transformer benchmark`."""

import json
import pathlib
import sys

from keras_transformer.errors import InputError

_FORCED_ALONE = ("preset", "vocabulary_size", "length", "steps")
_OF_BOTH = ("batch_sizes", "beam_sizes", "rounds", "threads", "engines")


def add_command(commands):
    """Adds `benchmark decode` to the subparsers of the command line."""
    benchmark = commands.add_parser(
        "benchmark",
        help="speed beside the other engines that are installed",
        description="Measures speed beside other engines, in turns on this machine.",
    )
    kinds = benchmark.add_subparsers(title="what", required=True, metavar="WHAT")
    decode = kinds.add_parser(
        "decode",
        help="decoding beside CTranslate2 and KerasHub",
        description="Decodes random sentences, each forced to the same number of steps; with "
        "--model and --source, a text with a trained run. A table on stderr, JSON on stdout.",
    )
    add, number = decode.add_argument, {"type": int, "metavar": "N"}
    add("--preset", metavar="NAME", help="default: transformer_base")
    add("--vocabulary-size", **number, help="default: 8000")
    add("--length", **number, help="tokens of a source; default: 32")
    add("--steps", **number, help="tokens of a translation; default: 32")
    by_row = "a row each, default: 1 8 32; with --model each engine takes its fastest, "
    add("--batch-sizes", **number, nargs="+", help=by_row + "default: 16 32 64 128")
    by_row = "1 is greedy search; default: 1 4; with --model one of them, default: 4"
    add("--beam-sizes", **number, nargs="+", help=by_row)
    add("--rounds", **number, help="default: 5")
    add("--threads", **number, help="default: 2")
    names = "ours, litert, litert_int8, ctranslate2, ctranslate2_in_parts, ctranslate2_int8, "
    names = f"of {names}keras_hub; default: those installed"
    add("--engines", nargs="+", metavar="NAME", help=names)
    add("--model", metavar="RUN", help="a run folder, with --source")
    add("--source", metavar="FILE", help="the text to translate with --model")
    penalty = "with --model; default: the recipe's"
    add("--length-penalty", type=float, metavar="A", help=penalty)
    add("--output", metavar="FILE", help="also write the JSON there")
    decode.set_defaults(command=_decode)


def _decode(options):
    from keras_transformer.benchmark import decode
    from keras_transformer.benchmark.table import table
    from keras_transformer.files import write_whole

    if options.output is not None and not pathlib.Path(options.output).parent.is_dir():
        # Now, not after minutes of measuring.
        raise InputError(f"{options.output}: cannot be written: no such folder.")
    given = {name: getattr(options, name) for name in (*_FORCED_ALONE, *_OF_BOTH)}
    given = {name: value for name, value in given.items() if value is not None}
    if options.model is None and options.source is None:
        if options.length_penalty is not None:
            raise InputError("--length-penalty goes with --model and --source alone.")
        report = decode.benchmark_decode(**given, log=_log)
    else:
        report = decode.benchmark_corpus(**_corpus_arguments(options, given), log=_log)
    _log(table(report))
    text = json.dumps(report, indent=2)
    print(text)
    if options.output is not None:
        try:
            write_whole(pathlib.Path(options.output), text + "\n")
        except OSError as error:
            raise InputError(f"{options.output}: cannot be written: {error.strerror}.") from None


def _corpus_arguments(options, given):
    run, source = options.model, options.source
    if run is None or source is None:
        raise InputError(
            f"--model and --source go together. Received: --model={run}, --source={source}."
        )
    for name in _FORCED_ALONE:
        if name in given:
            raise InputError(f"--{name.replace('_', '-')} does not go with --model.")
    beam_size, *others = given.pop("beam_sizes", [4])
    if others:
        received = [beam_size, *others]
        raise InputError(f"--model takes one beam size. Received: --beam-sizes={received}.")
    corpus = {"run_folder": run, "source_file": source, "beam_size": beam_size}
    return {**given, **corpus, "length_penalty": options.length_penalty}


def _log(text):
    print(text, file=sys.stderr, flush=True)
