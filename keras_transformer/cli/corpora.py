"""The commands `keras-transformer clean`, `synthesize`, `glossary` and `shortlist`: corpora."""

import argparse
import contextlib
import itertools
import json
import os
import re
import sys
from typing import TYPE_CHECKING, get_args

from keras_transformer.base.errors import InputError, print_lines
from keras_transformer.base.imports import import_keras
from keras_transformer.base.reading import without_compression
from keras_transformer.cli.arguments import (
    LANGUAGE_FLAGS,
    ONE_SEGMENT,
    PAIR_FILE_NAMES,
    add_declared,
    add_decoding,
    add_model,
    add_options,
    add_pair_file,
    add_progress,
    binary_stdin,
    load_translator,
    option_values,
)

if TYPE_CHECKING:
    from keras_transformer.data.pairs import InlineTags, PairFile

_GROUPS = {
    "min_characters": "rules for a pair",
    "duplicates": "rules for the corpus",
    "processes": "processes",
}


_CORPORA = (
    "a source and its target, or several pairs of files, plain or compressed (.gz, .xz, .bz2, "
    ".zst); a .tsv, .csv or .tmx file has both sides"
)


def _add_corpora(command):
    command.add_argument("corpora", nargs="+", metavar="FILE", help=_CORPORA)
    add_pair_file(command)


def _add_clean_options(command):
    from keras_transformer.extras.corpora.cleaning import CleanOptions
    from keras_transformer.extras.corpora.rules import Rule, Script

    _add_corpora(command)
    command.add_argument("--output", required=True, metavar="DIR", help="the folder to make")
    command.add_argument("--overwrite", action="store_true", help="replace an earlier output")
    held_out = "test sets, of either side: lines equal to theirs are dropped; each cell of a .tsv "
    held_out += "or .csv file is a line"
    add_options(command, ("held_out", [str], "FILE", held_out))
    command.add_argument("--json", action="store_true", help="write the report as JSON to stdout")
    add_progress(command)
    kinds = {
        "source_scripts": ([str], "NAME"),
        "target_scripts": ([str], "NAME"),
        "without": ([str], "RULE"),
        **dict.fromkeys(LANGUAGE_FLAGS, (str, "CODE")),
    }
    add_declared(command, CleanOptions, _GROUPS, kinds=kinds, flags=LANGUAGE_FLAGS)
    command.epilog = f"Rules: {', '.join(get_args(Rule))}. Scripts: {', '.join(get_args(Script))}."


def _clean(options):
    from keras_transformer.extras.corpora.cleaning import clean_corpora, summary

    values = option_values(options, "corpora", "output", "progress", "json", *PAIR_FILE_NAMES)
    corpora = _corpora_of(options)
    with _two_passes(corpora, options.progress) as progress:
        report = clean_corpora(corpora, options.output, progress=progress, **values)
    print_lines(summary(report))
    print(json.dumps(report, indent=2, ensure_ascii=False) if options.json else report["output"])


@contextlib.contextmanager
def _two_passes(corpora, is_shown):
    """Gives a function that shows a stage and bytes of text, each byte of the corpora twice."""
    from keras_transformer.base.errors import is_terminal
    from keras_transformer.cli.progress import describe, progress_bar

    is_shown = is_terminal(sys.stderr) if is_shown is None else is_shown
    paths = [path for corpus in corpora for path in corpus if path is not None]
    total = None
    if all(os.path.isfile(path) and path == without_compression(path) for path in paths):
        total = sum(map(os.path.getsize, paths)) * 2
    with progress_bar(total, is_shown) as bar:

        def progress(stage, size):
            if is_shown:
                describe(bar, stage, size)

        yield progress


def _corpora_of(options):
    own = {name: getattr(options, name) for name in PAIR_FILE_NAMES if name in options}
    return paired(options.corpora, **own)


def paired(
    paths: list[str],
    header: bool | None = None,
    languages: str | None = None,
    inline_tags: "InlineTags | None" = None,
) -> "list[tuple[str | PairFile, str | None]]":
    """Returns the corpora of a list of files: a table or TMX has both sides, others come in pairs.

    The options are about tables and translation memories; see `pair_file`.
    """
    from keras_transformer.data.pairs import is_tmx, pair_file
    from keras_transformer.text.tables import is_table

    corpora: list[tuple[str | PairFile, str | None]] = []
    paths_left = iter(paths)
    for source in paths_left:
        if is_tmx(source):
            corpora.append((pair_file(source, None, languages, inline_tags), None))
        elif is_table(source):
            corpora.append((pair_file(source, header), None))
        elif (target := next(paths_left, None)) is None:
            rule = "A source needs its target after it; a file of both is *.tsv, *.csv or *.tmx"
            raise InputError(f"{rule}. Received: {source} last.")
        else:
            corpora.append((source, target))
    # An option without a file that it belongs to is an error.
    if not any(map(is_tmx, paths)):
        pair_file(paths[0], None, languages, inline_tags)
    if not any(map(is_table, paths)):
        pair_file(paths[0], header, languages, inline_tags)
    return corpora


def _add_synthesize_options(command):
    from keras_transformer.extras.bulk.options import BulkOptions

    add_model(command)
    back = "back-translation: the text becomes the targets, the translations become the sources"
    n_best = "hypotheses, each of which makes a pair; default: 1"
    files = "text files, compressed too; default: the lines of stdin, pairs to stdout"
    command.add_argument("files", nargs="*", metavar="FILE", default=argparse.SUPPRESS, help=files)
    output = "folder of NAME.csv and NAME.csv.scores, to make or to continue"
    add_options(
        command,
        ("back", None, None, back),
        ("n_best", int, "N", n_best),
        ("output", str, "DIR", output),
    )
    add_declared(command, BulkOptions)
    where = "where: in this process, or over a Ray cluster; default: here"
    add_options(command, ("engine", ("here", "ray"), None, where))
    add_decoding(command, ONE_SEGMENT)


def _synthesize(options):
    from keras_transformer.cli.formats import as_pairs, as_pairs_back
    from keras_transformer.cli.lines import translate_lines
    from keras_transformer.engine.engine import long_input_of_commands
    from keras_transformer.extras.bulk.corpus import translate_corpus

    with_ray = getattr(options, "engine", "here") == "ray"
    records = "back" if "back" in options else "pairs"
    for name in () if with_ray else ("workers", "ray_address"):
        if name in options:
            raise InputError(f"`{name}` needs --engine ray.")
    files = getattr(options, "files", [])
    if bool(files) != ("output" in options) or with_ray and not files:
        raise InputError("FILE and --output need each other, and --engine ray needs both.")
    if not files:
        translator, values = load_translator(options, "back", "engine", "chunk_lines")
        values.setdefault("long_input", long_input_of_commands(translator.engine))
        values.setdefault("split_sentences", False)
        format = as_pairs_back if records == "back" else as_pairs
        translate_lines(translator, binary_stdin(), sys.stdout, format, **values)
        return
    values = option_values(options, "model", "files", "output", "back", "engine")
    shared = {"records": records, "with_ray": with_ray}
    with contextlib.redirect_stdout(sys.stderr):  # Ray prints messages about itself.
        report = translate_corpus(options.model, files, options.output, **shared, **values)
    tag = {"tag": "bt"} if records == "back" else {}
    folder = os.path.abspath(options.output)
    files = sorted(name for name in os.listdir(folder) if name.endswith(".csv"))
    report["train"] = [
        {"name": corpus, "source": os.path.join(folder, file), **tag}
        for corpus, file in zip(_corpus_names(files), files, strict=True)
    ]
    print(json.dumps(report, indent=2))


def _corpus_names(files):
    """Returns a name of letters, digits and hyphens for each CSV, as a recipe takes them."""
    names: dict[str, None] = {}
    for file in files:
        name = re.sub(r"[^\w-]+", "-", file.removesuffix(".csv"))
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        names[next(each for each in itertools.chain([name], numbered) if each not in names)] = None
    return [*names]


def _add_glossary_options(command):
    _add_corpora(command)
    from keras_transformer.extras.corpora.learn_terms import MIN_PAIRS, MIN_PROBABILITY

    pairs = f"a term's words occur together in at least N pairs; default: {MIN_PAIRS}"
    probability = "minimum probability of the word, given its translation; "
    probability += f"default: {MIN_PROBABILITY}"
    add_options(command, ("min_pairs", int, "N", pairs))
    add_options(command, ("min_probability", float, "X", probability))


def _glossary(options):
    from keras_transformer.data import iterate_pairs
    from keras_transformer.extras.corpora.learn_terms import learn_terms

    pairs = (pair for corpus in _corpora_of(options) for pair in iterate_pairs(*corpus))
    for row in learn_terms(pairs, **option_values(options, "corpora", *PAIR_FILE_NAMES)):
        print(*row, sep="\t")


def _add_shortlist_options(command):
    add_model(command, "a run folder")
    _add_corpora(command)
    add_progress(command)


def _shortlist(options):
    from keras_transformer.data import iterate_pairs

    corpora = _corpora_of(options)
    pairs = (pair for corpus in corpora for pair in iterate_pairs(*corpus))
    import_keras()
    from keras_transformer.extras.corpora.learn_shortlist import make_shortlist

    with _two_passes(corpora, options.progress) as progress:
        path = make_shortlist(options.model, pairs, progress)
    print(path)


COMMANDS = {
    "clean": (_add_clean_options, _clean),
    "synthesize": (_add_synthesize_options, _synthesize),
    "glossary": (_add_glossary_options, _glossary),
    "shortlist": (_add_shortlist_options, _shortlist),
}
