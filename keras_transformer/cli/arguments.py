"""Arguments that several commands have. `option_values` leaves out those that were not given."""

import argparse
import contextlib
import dataclasses
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, BinaryIO

from keras_transformer.base.errors import InputError, print_message
from keras_transformer.base.imports import import_keras
from keras_transformer.engine.steps.step import MARKUP

Kind = Callable | list[Callable] | tuple[str, ...]
"""The type of an option's value; `[type]` takes several values, a tuple lists all values."""
Row = tuple[str, Kind | None, str | None, str]
"""An option: name, type (None is a switch, bool one with `--no-`), metavar and help."""

_PAIR_FILE: tuple[Row, ...] = (
    (
        "header",
        bool,
        None,
        "of .tsv and .csv files: whether the first row has the names of the columns, and is "
        "skipped; default: such a row is an error",
    ),
    ("languages", str, "CODES", "of a .tmx file: of source and target, en-de or en-GB,pt-BR"),
    (
        "inline_tags",
        ("drop", "keep"),
        None,
        "of a .tmx file: drop formatting inside sentences, or keep it as tags; default: drop",
    ),
)
PAIR_FILE_NAMES = tuple(name for name, *_ in _PAIR_FILE)
"""Options of tables and translation memories."""

_SCHEMA_KINDS: dict[str, tuple[Kind | None, str]] = {
    "boolean": (None, ""),
    "integer": (int, "N"),
    "number": (float, "X"),
    "string": (str, "TEXT"),
}


def add_declared(
    command: Any,
    options_class: type,
    groups: Mapping[str, str] = MappingProxyType({}),
    names: Collection[str] | None = None,
    kinds: Mapping[str, tuple[Kind, str]] = MappingProxyType({}),
    defaults: Mapping[str, str] = MappingProxyType({}),
    flags: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Adds the options of an options class to a command.

    Args:
        command: The command's parser.
        options_class: A class of `options.option` fields.
        groups: The title of each group in `--help`, under the option that it begins with.
        names: The options to add; all by default.
        kinds: Types and metavars that differ from the declaration.
        defaults: Words for defaults that a command has instead of the declared ones.
        flags: Names on the command line that differ from the declared ones.
    """
    from keras_transformer.base.options import options_of

    group = command
    for name, schema in options_of(options_class).items():
        if name in groups:
            group = command.add_argument_group(groups[name])
        if names is not None and name not in names:
            continue
        kind, metavar = kinds.get(name) or _kind_of(schema)
        shown_default = defaults.get(name, schema["default"])
        if kind is None and shown_default is not False:
            kind = bool
        end = (
            ""
            if shown_default is None or shown_default is False or shown_default == []
            else f"; default: {shown_default}"
        )
        help = (schema["description"].rstrip(".") + end).replace("%", "%%")
        if {"type": "null"} in schema.get("anyOf", ()) and not isinstance(kind, list):
            kind = _reader(kind)
        add_options(group, (name, kind, metavar, help), flags=flags)


def _kind_of(schema):
    """Returns the type and the metavar of a schema's values."""
    (schema, *_) = schema.get("anyOf", [schema])
    if "enum" in schema:
        return tuple(schema["enum"]), None
    if schema["type"] == "array":
        kind, metavar = _SCHEMA_KINDS[schema["items"]["type"]]
        return [kind], metavar
    return _SCHEMA_KINDS[schema["type"]]


def _reader(read_value, is_list=False):
    """Returns a type of values that reads null, and a list, as recipes have them."""

    def read(text):
        if text == "null":
            return None
        parts = text.strip("[]").replace(",", " ").split()
        return [*map(read_value, parts)] if is_list else read_value(text)

    read.__name__ = read_value.__name__  # for argparse's messages
    return read


def _truth(text):
    if text not in ("true", "false"):
        raise ValueError
    return text == "true"


_truth.__name__ = "true or false"  # for argparse's messages


def add_options(group: Any, *rows: Row, flags: Mapping[str, str] = MappingProxyType({})) -> None:
    """Adds options to a parser or a group of one; `flags` have other names than their options."""
    for name, kind, metavar, meaning in rows:
        flag = flags.get(name) or "--" + name.replace("_", "-")
        default: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": name}
        if group.is_rare(name):
            flag = f"--set {name}"
            if kind is None or kind is bool:
                kind, metavar = _truth, "true|false"
            elif isinstance(kind, list):
                kind, metavar = _reader(kind[0], is_list=True), f"[{metavar},…]"
        if kind is None or kind is bool:
            action = "store_true" if kind is None else argparse.BooleanOptionalAction
            group.add_argument(flag, action=action, help=meaning, **default)
            continue
        if isinstance(kind, list):
            (kind,) = kind
            default |= {"nargs": "+", "action": "extend"}
        default |= {"choices": kind} if isinstance(kind, tuple) else {"type": kind}
        group.add_argument(flag, metavar=metavar, help=meaning, **default)


def _bias(text):
    name, _, value = text.partition("=")
    try:
        return int(name), float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected an id and a number, as in 5=-2.5, not {text!r}"
        ) from None


_BATCH_SIZE = (
    "batch_size",
    int,
    "N",
    "maximum number of sentences decoded together; default: the fastest number",
)
_TOO_LONG = "a line of too many tokens: refuse it, split it at sentence ends, or truncate it (a "
_TOO_LONG += "conversation loses its oldest turns); default: split, for conversations and labels "
_TOO_LONG += "truncate, for a language model refuse"
_LONG_INPUT = ("long_input", ("refuse", "split", "truncate"), None, _TOO_LONG)
_SPLIT = "translate each sentence of a line by itself; default: "
_RUNS_WAY = "the run's: yes, unless its training sources had several sentences"
ONE_SEGMENT = "a line is one segment"
"""Words for the default of `--split-sentences` in a command that compares lines."""
_CASE = (
    "read a line in capitals in its usual case, and write its translation in capitals; default: "
)
_CASE += "the run's"
_TAG_HELP = "tag of all lines, such as bt or a domain; or a target language of an imported model, "
_TAG_HELP += "such as epo for its token >>epo<<"
_TAG = ("tag", str, "TAG", _TAG_HELP)
LANGUAGE_FLAGS = {"source_language": "--from", "target_language": "--to"}
FROM = ("source_language", str, "CODE", "language of the lines, such as en, where it is needed")
TO = ("target_language", str, "CODE", "language of the translations, for a model of several")
"""Options of models of several languages."""
_KEPT = "translate around URLs, e-mail addresses and {fields}; html: around tags as well"
_MARKUP = ("markup", MARKUP, None, _KEPT)
_TERMS = "lines of a term, a tab and its translation, or a .csv file, for all lines that have the "
_TERMS += "term"
_GLOSSARY = ("glossary", str, "FILE", _TERMS)
_BY = "constraints: the search of a run writes all terms; annotations: a model that was trained "
_BY += "with data.glossary reads them; default: annotations for such a model"
_GLOSSARY_BY = ("glossary_by", ("constraints", "annotations"), None, _BY)
_ROWS = "attention of each token to the source, rows of 4 digits in the JSON"
ALIGNMENT = ("alignment", None, None, _ROWS)


def add_model(command: Any, help: str = "a run or export folder") -> None:
    """Adds `--model`."""
    command.add_argument("--model", required=True, metavar="DIR", help=help)


def add_pair_file(command: Any) -> None:
    """Adds the options of tables and translation memories."""
    add_options(command, *_PAIR_FILE)


def add_decoding(command: Any, segments: str = _RUNS_WAY) -> None:
    """Adds every option of `Translator.translate` that concerns how texts are decoded.

    `segments` are words for the default of `--split-sentences`.
    """
    # Imported late, as in `add_declared`: pydantic takes half of the time of `--help`.
    from keras_transformer.decoding.search_options import RUN_DEFAULTS, DecodingOptions

    # Commands have an `n_best` of their own.
    names = {field.name for field in dataclasses.fields(DecodingOptions)} - {"n_best"}
    defaults = dict.fromkeys(RUN_DEFAULTS, "the run's")
    group = command.add_argument_group("decoding")
    add_declared(group, DecodingOptions, {}, names, {"logit_bias": ([_bias], "ID=X")}, defaults)
    sentences = ("split_sentences", bool, None, _SPLIT + segments), ("keep_case", bool, None, _CASE)
    rows = FROM, TO, _BATCH_SIZE, *sentences, _LONG_INPUT, _TAG, _MARKUP, _GLOSSARY, _GLOSSARY_BY
    add_options(command.add_argument_group("texts"), *rows, flags=LANGUAGE_FLAGS)


def add_sampling(command: Any, *names: str, **defaults: str) -> None:
    """Adds some options of decoding, with words for some defaults."""
    from keras_transformer.decoding.search_options import RUN_DEFAULTS, DecodingOptions

    defaults = {**dict.fromkeys(RUN_DEFAULTS, "the run's"), **defaults}
    add_declared(command, DecodingOptions, names=names, defaults=defaults)


def add_scoring(command: Any) -> None:
    """Adds every option of `Translator.score`."""
    add_sampling(command, "length_penalty")
    add_options(command, FROM, TO, _BATCH_SIZE, _TAG, ALIGNMENT, flags=LANGUAGE_FLAGS)


def add_progress(group: Any) -> None:
    """Adds `--progress` and `--no-progress`."""
    group.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="a bar on stderr; default: if stderr is a terminal and stdin is not",
    )


def option_values(options: argparse.Namespace, *command_options: str) -> dict[str, Any]:
    """The library's options that were given: all but `command_options`, the command's own."""
    values = {
        key: value
        for key, value in vars(options).items()
        if key not in ("command", *command_options)
    }
    if values.get("logit_bias") is not None:
        values["logit_bias"] = dict(values["logit_bias"])
    return values


def load_translator(
    options: argparse.Namespace, *command_options: str
) -> tuple[Any, dict[str, Any]]:
    """Loads `--model` with `--threads`; returns the `Translator` and `option_values`.

    It says which languages of the model are taken for `--from` and `--to`, if the model lacks them.
    """
    from keras_transformer.engine.translator import Translator

    values = option_values(options, "model", *command_options)
    threads = {"threads": values.pop("threads")} if "threads" in values else {}
    translator = Translator.load(options.model, **threads)
    if not LANGUAGE_FLAGS.keys().isdisjoint(values):
        for line in translator.engine.directions.approximated(*map(values.get, LANGUAGE_FLAGS)):
            print_message(line)
    return translator, values


def begin_with_model(path: str) -> None:
    """Imports Keras for a command on a model; first raises `InputError` if the path is missing."""
    from keras_transformer.engine.opening import check_exists

    check_exists(path)  # Keras takes seconds, and NumPy a while.
    from keras_transformer.base.memory import use_system_allocator
    from keras_transformer.runs.run_folder import RunFolder

    use_system_allocator(RunFolder(path).model_bytes)  # Before TensorFlow is imported
    import_keras()


@contextlib.contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Lets SIGTERM end a command with `SystemExit`, so that what it has begun ends in order."""

    def end(number, _):
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def binary_stdin() -> BinaryIO:
    """Returns stdin; raises `InputError` where the parent process has closed it."""
    if sys.stdin is None:
        raise InputError("stdin is closed: expected lines of text.")
    return sys.stdin.buffer
