"""The commands `keras-transformer evaluate` and `score`: how good, and how probable."""

import argparse
import json
import sys

from keras_transformer.commands.arguments import (
    add_decoding,
    add_model,
    add_options,
    add_progress,
    add_scoring,
    given,
)


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Adds `score` and `evaluate` to the subparsers of the command line."""
    command = commands.add_parser(
        "score",
        help="how probable a model holds given translations, as JSON lines",
        description="Writes a JSON object for each pair of two aligned files: the probability of "
        "the target, and of each of its tokens; of a language model, after its source.",
        options=_add_score_options,
    )
    command.set_defaults(command=_score)

    command = commands.add_parser(
        "evaluate",
        help="BLEU and chrF of a model's translations, accuracy of labels, or perplexity, as JSON",
        description="Translates a source file and scores it against a reference with sacreBLEU; "
        "or gives its lines labels and counts the right ones.",
        options=_add_evaluate_options,
    )
    command.set_defaults(command=_evaluate)


def _add_score_options(command):
    add_model(command, "a run folder")
    command.add_argument("--source", required=True, metavar="FILE")
    command.add_argument("--target", required=True, metavar="FILE", help="aligned line by line")
    add_scoring(command)
    add_progress(command)


def _add_evaluate_options(command):
    add_model(command)
    tokenize = "how BLEU takes texts apart; none: at spaces, for tokenized text (default: 13a)"
    add_options(
        command,
        ("source", str, "FILE", "of all but a language model"),
        ("reference", str, "FILE", "aligned; default: --source has two columns, as a TSV"),
        ("perplexity", None, None, "of the references, a word and a token, instead of BLEU"),
        ("tokenize", ("13a", "none"), None, tokenize),
        ("save", str, "FILE", "also write the translations there"),
    )
    add_decoding(command)


def _score(options):
    from keras_transformer.commands.line_reader import Progress
    from keras_transformer.commands.line_stream import score_lines
    from keras_transformer.files import is_terminal
    from keras_transformer.translator import Translator

    translator = Translator.load(options.model)
    shown = is_terminal(sys.stderr) if options.progress is None else options.progress
    values = given(options, "model", "source", "target", "progress")
    with Progress(None, shown, apart=not is_terminal(sys.stdout)) as progress:
        score_lines(
            translator, options.source, options.target, sys.stdout, progress=progress, **values
        )


def _evaluate(options):
    from keras_transformer.errors import NotSavedError
    from keras_transformer.training.evaluate import evaluate_model

    values = given(options)
    values["of_references"] = values.pop("perplexity", False)
    try:
        scores = evaluate_model(**values)
    except NotSavedError as error:
        print(json.dumps(error.result, indent=2))
        raise
    print(json.dumps(scores, indent=2))
