"""The command `keras-transformer benchmark`."""

import json
import pathlib
import sys

from keras_transformer.errors import InputError

_FORCED_ALONE = ("preset", "vocabulary_size", "length", "steps")


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
    decode.add_argument("--preset", metavar="NAME", help="default: transformer_base")
    decode.add_argument("--vocabulary-size", type=int, metavar="N", help="default: 8000")
    decode.add_argument("--length", type=int, metavar="N", help="tokens of a source; default: 32")
    decode.add_argument(
        "--steps", type=int, metavar="N", help="tokens of a translation; default: 32"
    )
    decode.add_argument(
        "--batch-sizes",
        type=int,
        nargs="+",
        metavar="N",
        help="a row each, default: 1 8 32; with --model each engine takes its fastest, "
        "default: 16 32 64 128",
    )
    decode.add_argument(
        "--beam-sizes",
        type=int,
        nargs="+",
        metavar="N",
        help="1 is greedy search; default: 1 4; with --model one of them, default: 4",
    )
    decode.add_argument("--rounds", type=int, metavar="N", help="default: 5")
    decode.add_argument("--threads", type=int, metavar="N", help="default: 2")
    decode.add_argument(
        "--engines",
        nargs="+",
        metavar="NAME",
        help="of ours, litert, litert_int8, ctranslate2, ctranslate2_in_parts, ctranslate2_int8, "
        "keras_hub; default: those installed",
    )
    decode.add_argument("--model", metavar="RUN", help="a run folder, with --source")
    decode.add_argument("--source", metavar="FILE", help="the text to translate with --model")
    decode.add_argument(
        "--length-penalty", type=float, metavar="A", help="with --model; default: the recipe's"
    )
    decode.add_argument("--output", metavar="FILE", help="also write the JSON there")
    decode.set_defaults(command=_decode)


def _decode(options):
    from keras_transformer.benchmark.corpus import benchmark_corpus
    from keras_transformer.benchmark.decode import benchmark_decode
    from keras_transformer.benchmark.table import table

    if options.output is not None and not pathlib.Path(options.output).parent.is_dir():
        # Now, not after minutes of measuring.
        raise InputError(f"{options.output}: cannot be written: no such folder.")
    given = {
        name: getattr(options, name)
        for name in (*_FORCED_ALONE, "batch_sizes", "beam_sizes", "rounds", "threads", "engines")
        if getattr(options, name) is not None
    }
    if options.model is None and options.source is None:
        if options.length_penalty is not None:
            raise InputError("--length-penalty goes with --model and --source alone.")
        report = benchmark_decode(**given, log=_log)
    else:
        report = benchmark_corpus(**_corpus_arguments(options, given), log=_log)
    print(table(report), file=sys.stderr)
    text = json.dumps(report, indent=2)
    print(text)
    if options.output is not None:
        _write(options.output, text + "\n")


def _corpus_arguments(options, given):
    if options.model is None or options.source is None:
        raise InputError(
            "--model and --source go together. "
            f"Received: --model={options.model}, --source={options.source}."
        )
    for name in _FORCED_ALONE:
        if name in given:
            raise InputError(f"--{name.replace('_', '-')} does not go with --model.")
    beam_sizes = given.pop("beam_sizes", [4])
    if len(beam_sizes) > 1:
        raise InputError(f"--model takes one beam size. Received: --beam-sizes={beam_sizes}.")
    return {
        **given,
        "run_folder": options.model,
        "source_file": options.source,
        "beam_size": beam_sizes[0],
        "length_penalty": options.length_penalty,
    }


def _log(text):
    print(text, file=sys.stderr, flush=True)


def _write(path, text):
    from keras_transformer.files import write_whole

    try:
        write_whole(pathlib.Path(path), text)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}.") from None
