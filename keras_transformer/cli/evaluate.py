"""The commands `keras-transformer score`, `evaluate` and `inspect`: measures of a model."""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from keras_transformer.base.errors import InputError
from keras_transformer.cli.arguments import (
    FROM,
    LANGUAGE_FLAGS,
    ONE_SEGMENT,
    PAIR_FILE_NAMES,
    TO,
    add_decoding,
    add_model,
    add_options,
    add_pair_file,
    add_progress,
    add_scoring,
    begin_with_model,
    load_translator,
    option_values,
)

if TYPE_CHECKING:
    from keras_transformer.cli.lines import Line
    from keras_transformer.engine.translation import Translation
    from keras_transformer.engine.translator import Translator

_HEADS = "heads to switch off, as encoder.0.1,cross.3.2: kind, layer, head; shows the "
_HEADS += "translation without them"
_INSPECT = (
    ("source", str, "TEXT", "a sentence; default: write sizes, languages, licence and origin only"),
    ("output", str, "DIR", "the folder to make, with --text"),
    ("target", str, "TEXT", "the sentence's translation; default: the model's own"),
    ("without_heads", str, "HEADS", _HEADS),
    ("other_positions", str, "RUN", "a run with the other kind of positions, to compare with"),
    ("beam_size", int, "N", "beam size of the model's own translation; default: the run's"),
)
# Elsewhere sources and targets are files.
_INSPECT_FLAGS = {"source": "--text", "target": "--translation", "corpus": "--pairs"}
_INSPECT_FLAGS |= LANGUAGE_FLAGS


def _add_score_options(command):
    add_model(command, "a run folder")
    command.add_argument("--source", required=True, metavar="FILE", help="source sentences")
    command.add_argument(
        "--target", required=True, metavar="FILE", help="their translations, one per line"
    )
    rows = "write source, target and cross-entropy in nats per token between tabs instead of JSON"
    add_options(command, ("tsv", None, None, rows))
    add_scoring(command)
    add_progress(command)


def _add_evaluate_options(command):
    add_model(command)
    from typing import get_args

    from keras_transformer.engine.scores import BleuTokenizer

    reference = "their translations by people, one per line; not needed if --source is a .tsv, "
    reference += ".csv or .tmx file with both sides"
    perplexity = "measure the perplexity of the references, per word and per token, instead of BLEU"
    tokenize = "sacreBLEU's tokenizer of BLEU; none: spaces, for tokenized text; the default "
    tokenize += "depends on the script of the references: zh for Chinese, char for other scripts "
    tokenize += "without spaces between words, otherwise 13a"
    add_options(
        command,
        ("source", str, "FILE", "sentences to translate, one per line; a language model has none"),
        ("reference", str, "FILE", reference),
    )
    add_pair_file(command)
    add_options(
        command,
        ("perplexity", None, None, perplexity),
        ("tokenize", get_args(BleuTokenizer), None, tokenize),
        ("save", str, "FILE", "also write the translations to this file"),
    )
    add_decoding(command, ONE_SEGMENT)


def _add_inspect_options(command):
    add_model(command, "a run folder")
    add_options(command, *_INSPECT, FROM, TO, flags=_INSPECT_FLAGS)
    overwrite = "replace an earlier output"
    command.add_argument(
        "--overwrite", action="store_true", default=argparse.SUPPRESS, help=overwrite
    )
    command.add_argument(
        "--pairs",
        dest="corpus",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        default=argparse.SUPPRESS,
        help="aligned files to measure the heads on; default: the run's samples.tsv",
    )


def _score(options):
    from keras_transformer.base.errors import is_terminal
    from keras_transformer.cli.formats import as_scored_json, as_scored_row
    from keras_transformer.cli.progress import progress_bar

    paths = options.source, options.target
    translator, values = load_translator(options, "source", "target", "progress", "tsv")
    format = as_scored_row if "tsv" in options else as_scored_json
    shown = is_terminal(sys.stderr) if options.progress is None else options.progress
    with progress_bar(None, shown) as bar:
        score_lines(translator, *paths, sys.stdout, format, bar=bar, **values)


def score_lines(
    translator: "Translator",
    source: str | os.PathLike,
    target: str | os.PathLike,
    output: TextIO,
    format: Callable[["Line", "Translation | None"], str],
    batch_size: int = 32,
    bar: Any = None,
    **options: Any,
) -> None:
    """Writes the probability that a model gives each target line after its source line.

    Takes the paths of two aligned files, the options of `Translator.score`, and the other arguments
    of `lines.translate_lines`. A pair of too many tokens has None instead of a score, and a
    warning.
    """
    from keras_transformer.base.errors import TooLongError
    from keras_transformer.cli.lines import Line, chunk_size, write_results
    from keras_transformer.data import iterate_pairs

    def score(lines):
        fitting, first = list(range(len(lines))), None
        while True:
            pairs = [(lines[index].text, lines[index].target) for index in fitting]
            sides = [side[0] for side in pairs], [side[1] for side in pairs]
            try:
                scored = translator.score(*sides, batch_size=batch_size, **options)
                break
            except TooLongError as error:  # of the sources, then of the targets
                first = first or f"Line {lines[fitting[error.index]].number}: {error.message}"
                long = {fitting[index] for index in error.indices}
                fitting = [index for index in fitting if index not in long]
            except InputError as error:
                index = error.index
                raise InputError(error.message, None if index is None else fitting[index]) from None
        if first is not None:
            count = len(lines) - len(fitting)
            warnings.warn(f"{count} of {len(lines)} pairs have no score. {first}", stacklevel=2)
        results = dict(zip(fitting, scored, strict=True))
        return [results.get(index) for index in range(len(lines))]

    score([])  # Options are checked first: a wrong option is not a line's fault.
    pairs = enumerate(iterate_pairs(source, target), 1)
    lines = [Line(number, text, len(text.encode()) + 1, other) for number, (text, other) in pairs]
    limit = chunk_size(batch_size)
    chunks = (lines[start : start + limit] for start in range(0, len(lines), limit))
    write_results(score, chunks, format, output, f"{source} and {target}", bar)


def _evaluate(options):
    begin_with_model(options.model)
    from keras_transformer.base.errors import NotSavedError, is_terminal, print_lines
    from keras_transformer.engine.evaluation import evaluate_model

    # A person waits for minutes; a program needs no line.
    tell = {"tell": print_lines} if is_terminal(sys.stderr) else {}
    try:
        scores = evaluate_model(**_with_pair_file(option_values(options)), **tell)
    except NotSavedError as error:
        print(json.dumps(error.result, indent=2))
        raise
    print(json.dumps(scores, indent=2))


def _with_pair_file(values):
    """Replaces the path of a table or a translation memory and its options by the file."""
    from keras_transformer.data.pairs import pair_file

    own = {name: values.pop(name) for name in PAIR_FILE_NAMES if name in values}
    if own or "source" in values:
        values["source"] = pair_file(values.get("source", ""), **own)
    return values


def _inspect(options):
    values = option_values(options, "model")
    if values and not {"source", "output"} <= values.keys():
        flags = (_INSPECT_FLAGS.get(name, "--" + name.replace("_", "-")) for name in values)
        raise InputError(
            "--text and --output need each other, and other options need both. "
            f"Received: {', '.join(sorted(flags))}."
        )
    begin_with_model(options.model)
    from keras_transformer.extras.analysis.report import describe_run, inspect_run

    if "without_heads" in values:
        values["without_heads"] = values["without_heads"].split(",")
    report = inspect_run(options.model, **values) if values else describe_run(options.model)
    print(json.dumps(report, indent=2, ensure_ascii=False))


COMMANDS = {
    "score": (_add_score_options, _score),
    "evaluate": (_add_evaluate_options, _evaluate),
    "inspect": (_add_inspect_options, _inspect),
}
