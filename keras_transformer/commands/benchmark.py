"""The command `keras-transformer benchmark`."""

import argparse
import json
import pathlib
import sys

from keras_transformer.commands.arguments import Row, add_options, given
from keras_transformer.errors import InputError

_FORCED_ALONE = ("preset", "vocabulary_size", "length", "steps")
_ROWS: tuple[Row, ...] = (
    ("preset", str, "NAME", "default: transformer_base"),
    ("vocabulary_size", int, "N", "default: 8000"),
    ("length", int, "N", "tokens of a source; default: 32"),
    ("steps", int, "N", "tokens of a translation; default: 32"),
    (
        "batch_sizes",
        [int],
        "N",
        "a row each, default: 1 8 32; with --model each engine takes its fastest, "
        "default: 16 32 64 128",
    ),
    (
        "beam_sizes",
        [int],
        "N",
        "1 is greedy search; default: 1 4; with --model one of them, default: 4",
    ),
    ("rounds", int, "N", "default: 5"),
    ("threads", int, "N", "most that an engine may use; default: 2"),
    (
        "engines",
        [str],
        "NAME",
        "of ours, litert, litert_int8, ctranslate2, ctranslate2_int8, "
        "keras_hub; default: those installed",
    ),
    ("model", str, "RUN", "a run folder, with --source; default: a preset"),
    ("source", str, "FILE", "the text to translate with --model; default: random sentences"),
    ("length_penalty", float, "A", "with --model; default: the recipe's"),
    ("output", str, "FILE", "also write the JSON there; default: nowhere"),
)

_TRAIN_ROWS: tuple[Row, ...] = (
    ("preset", str, "NAME", "default: transformer_tiny"),
    ("layers", int, "N", "a side, instead of the preset's; so are the next three"),
    ("model_dim", int, "N", "width"),
    ("num_heads", int, "N", "heads"),
    ("intermediate_dim", int, "N", "inner width of the feed-forward sublayers"),
    ("vocabulary_size", int, "N", "learned from the two files; default: 8000"),
    ("max_length", int, "N", "longer pairs are left out, in tokens; default: 40"),
    ("batch_tokens", int, "N", "positions of a batch on each side; default: 4096"),
    ("steps", int, "N", "batches of a round; default: 20"),
    ("rounds", int, "N", "default: 3"),
    ("threads", int, "N", "most that a trainer may use; default: 2"),
    (
        "trainers",
        [str],
        "NAME",
        "of ours, keras_hub, torch, torch_compiled, each also with _bfloat16; default: those "
        "installed",
    ),
    ("output", str, "FILE", "also write the JSON there; default: nowhere"),
)


def add_command(commands: argparse._SubParsersAction) -> None:
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
        "--model and --source, a text with a trained run. Each engine's settings are tried first, "
        "and the fastest is taken. A table on stderr, JSON on stdout.",
    )
    add_options(decode, *_ROWS)
    decode.set_defaults(command=_decode)
    train = kinds.add_parser(
        "train",
        help="training beside KerasHub and PyTorch",
        description="Trains a model of the same sizes on the same text with each trainer, in "
        "turns, and counts real tokens a second. A table on stderr, JSON on stdout.",
    )
    for side in ("source", "target"):
        train.add_argument(f"--{side}", required=True, metavar="FILE", help="aligned lines")
    add_options(train, *_TRAIN_ROWS)
    train.set_defaults(command=_train)


def _decode(options):
    from keras_transformer.benchmark import decode

    output, values = _output(options), given(options, "output")
    if "model" in values or "source" in values:
        report = decode.benchmark_corpus(**_corpus_arguments(values), log=_log)
    elif "length_penalty" in values:
        raise InputError("--length-penalty goes with --model and --source alone.")
    else:
        report = decode.benchmark_decode(**values, log=_log)
    _write(decode.table(report), report, output)


def _train(options):
    from keras_transformer.benchmark import train

    output = _output(options)
    report = train.benchmark_train(**given(options, "output"), log=_log)
    _write(train.table(report), report, output)


def _output(options):
    output = getattr(options, "output", None)
    if output is not None and not pathlib.Path(output).parent.is_dir():
        # Now, not after minutes of measuring.
        raise InputError(f"{output}: cannot be written: no such folder.")
    return output


def _write(table, report, output):
    from keras_transformer.files import write_output

    _log(table)
    text = json.dumps(report, indent=2)
    print(text)
    if output is not None:
        write_output(output, text + "\n")


def _corpus_arguments(values):
    run, source = values.pop("model", None), values.pop("source", None)
    if run is None or source is None:
        raise InputError(
            f"--model and --source go together. Received: --model={run}, --source={source}."
        )
    for name in _FORCED_ALONE:
        if name in values:
            raise InputError(f"--{name.replace('_', '-')} does not go with --model.")
    beam_size, *others = values.pop("beam_sizes", [4])
    if others:
        received = [beam_size, *others]
        raise InputError(f"--model takes one beam size. Received: --beam-sizes={received}.")
    return {**values, "run_folder": run, "source_file": source, "beam_size": beam_size}


def _log(text):
    print(text, file=sys.stderr, flush=True)
