"""The `keras-transformer` command: parse, call one function, print the result.

stdout carries the result alone; progress and errors go to stderr. Exit code 0 on success, 2 on a
user's mistake (one line), 1 when an export does not do what its model does, 130 on Ctrl-C.
"""

import argparse
import itertools
import json
import os
import sys

from keras_transformer.benchmark.command import add_command as _add_benchmark
from keras_transformer.errors import InputError, VerificationError

_LINES_AT_ONCE = 1024


def main(arguments=None):
    """Runs the command line and exits."""
    sys.exit(run(arguments))


def run(arguments=None):
    """Runs the command line.

    Args:
        arguments: List of strings, `sys.argv[1:]` by default.

    Returns:
        The exit code.
    """
    # TensorFlow's C++ side would mix its notes on the machine with the result's progress.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
        sys.stdout.flush()
    except (InputError, VerificationError) as error:
        print(f"keras-transformer: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except BrokenPipeError:
        # The reader has gone; Python would complain once more while closing stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("keras-transformer: interrupted", file=sys.stderr)
        return 130
    return 0


def _parser():
    parser = argparse.ArgumentParser(
        prog="keras-transformer",
        description="Train, evaluate, export and use a Transformer on your own parallel text.",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_train(commands)
    _add_translate(commands)
    _add_evaluate(commands)
    _add_export(commands)
    _add_benchmark(commands)
    return parser


def _add_demo(commands):
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


def _add_train(commands):
    command = commands.add_parser(
        "train",
        help="train from a recipe",
        description="Trains as a recipe says and leaves a run folder.",
    )
    command.add_argument("recipe", metavar="RECIPE.yaml")
    command.add_argument("--output", required=True, metavar="RUN", help="the run folder to make")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="section.key=value",
        help="replace a value of the recipe; may be given more than once",
    )
    command.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    command.add_argument("--overwrite", action="store_true", help="replace a run that is there")
    command.set_defaults(command=_train)


def _train(options):
    from keras_transformer.training import Recipe, train

    recipe = Recipe.load(options.recipe, options.set)
    folder = train(recipe, options.output, resume=options.resume, overwrite=options.overwrite)
    print(folder.path)


def _add_translate(commands):
    command = commands.add_parser(
        "translate",
        help="translate stdin, a line in, a line out",
        description="Translates the lines of stdin to stdout, in their order.",
    )
    _add_model(command)
    _add_search(command)
    command.add_argument(
        "--n-best",
        type=int,
        default=1,
        metavar="N",
        help="for N > 1: N lines a sentence, `number ||| translation ||| score`",
    )
    command.set_defaults(command=_translate)


def _translate(options):
    from keras_transformer.translator import Translator

    translator = Translator.load(options.model)
    lines = enumerate(_stdin_lines())
    while chunk := list(itertools.islice(lines, _LINES_AT_ONCE)):
        translations = translator.translate(
            [text for _, text in chunk], n_best=options.n_best, **_search_options(options)
        )
        for (number, _), best in zip(chunk, translations, strict=True):
            if options.n_best == 1:
                print(_one_line(best.text))
                continue
            for each in (best, *best.alternatives):
                print(f"{number} ||| {_one_line(each.text)} ||| {each.score:.4f}")
        sys.stdout.flush()


def _stdin_lines():
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.rstrip(b"\r\n").decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"stdin, line {number}: must be UTF-8. "
                f"Received: byte 0x{line[error.start]:02x} at column {error.start + 1}."
            ) from None


def _one_line(text):
    return " ".join(text.splitlines())


def _add_evaluate(commands):
    command = commands.add_parser(
        "evaluate",
        help="BLEU and chrF of a model's translations, as JSON",
        description="Translates a source file and scores it against a reference with sacreBLEU.",
    )
    _add_model(command)
    command.add_argument("--source", required=True, metavar="FILE")
    command.add_argument("--reference", required=True, metavar="FILE")
    _add_search(command)
    command.add_argument("--save", metavar="FILE", help="also write the translations there")
    command.set_defaults(command=_evaluate)


def _evaluate(options):
    from keras_transformer.pipeline import evaluate_model

    scores = evaluate_model(
        options.model,
        options.source,
        options.reference,
        save=options.save,
        **_search_options(options),
    )
    print(json.dumps(scores, indent=2))


def _add_export(commands):
    command = commands.add_parser(
        "export",
        help="a SavedModel that takes text and gives text",
        description="Exports a run folder and verifies the export against the model.",
    )
    _add_model(command)
    command.add_argument("--format", required=True, choices=["saved_model"])
    command.add_argument("--output", required=True, metavar="DIR", help="the folder to make")
    command.add_argument("--overwrite", action="store_true", help="replace an export there")
    command.add_argument(
        "--verify-with",
        metavar="FILE",
        help="sentences to compare with the model on; default: the run's validation source",
    )
    command.add_argument("--beam-size", type=int, metavar="N", help="default: the recipe's")
    command.add_argument("--length-penalty", type=float, metavar="A", help="default: the recipe's")
    command.set_defaults(command=_export)


def _export(options):
    from keras_transformer.pipeline import export_run

    report = export_run(
        options.model,
        options.output,
        beam_size=options.beam_size,
        length_penalty=options.length_penalty,
        verify_with=options.verify_with,
        overwrite=options.overwrite,
    )
    print(json.dumps(report, indent=2))


def _add_model(command):
    command.add_argument("--model", required=True, metavar="DIR", help="a run or export folder")


def _add_search(command):
    command.add_argument("--beam-size", type=int, metavar="N", help="1 is greedy search")
    command.add_argument("--length-penalty", type=float, metavar="A", help="0 is none")
    command.add_argument("--batch-size", type=int, default=32, metavar="N", help="default: 32")


def _search_options(options):
    return {
        "beam_size": options.beam_size,
        "length_penalty": options.length_penalty,
        "batch_size": options.batch_size,
    }
