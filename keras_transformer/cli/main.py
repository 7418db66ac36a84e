"""The `keras-transformer` command line: its parser and the rules for all commands.

stdout carries only the result; progress and errors go to stderr. The exit code is 0 on success, 2
on a user's mistake (one line), 130 on Ctrl-C, and 141 when the reader of the result has gone. It
is 1 when an export differs from its model or when the training loss is NaN or infinite.
"""

import argparse
import contextlib
import errno
import functools
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

import keras_transformer
from keras_transformer.base.compilation_cache import enable_compilation_cache
from keras_transformer.base.errors import (
    InputError,
    InvalidFileError,
    TrainingError,
    VerificationError,
    did_you_mean,
    print_message,
)
from keras_transformer.base.imports import LEVEL, own_stderr, silence_tensorflow
from keras_transformer.cli.parser import Parser

# Commands by their modules, with help, description, example and page. A module's `COMMANDS` has
# functions that add a command's options to its parser, and that run it.
_COMMANDS = {
    "train": {
        "demo": (
            "train, evaluate and export on built-in data: dates in 26 locales -> 2026-11-20",
            "Trains on built-in data, evaluates on held-out dates, exports a SavedModel and "
            "translates through it.",
            "demo",
            "tutorials/quickstart.md",
        ),
        "train": (
            "train from a recipe",
            "Trains as a recipe says and makes a run folder. training/recipes has recipes to copy, "
            "and reference.yaml with all options.",
            "train recipe.yaml --output runs/en-de",
            "howto/train.md",
        ),
        "import": (
            "make a run from a model of Marian, OPUS-MT, Hugging Face, Firefox or CTranslate2",
            "Makes a run folder from a model of Marian, OPUS-MT, Hugging Face (Marian, M2M100, "
            "NLLB-200, SMaLL-100), Firefox, CTranslate2 or Argos. The model is a folder or an "
            "archive on this machine, or is downloaded by its name.",
            "import Helsinki-NLP/opus-mt-en-de --output runs/en-de",
            "howto/import.md",
        ),
    },
    "translate": {
        "translate": (
            "translate each line of stdin, or whole documents",
            "Translates the lines of stdin to stdout, in their order, as they arrive. Files "
            "and folders are translated as whole documents: translate --model runs/en-de "
            "letter.txt docs --output translated",
            "translate --model runs/en-de < in.txt > out.txt",
            "howto/decode.md",
        ),
        "chat": (
            "hold a conversation with a model that was trained on conversations",
            "Answers the lines of stdin one by one; the model reads the conversation so far. "
            "/reset begins a new conversation, Ctrl-D or Ctrl-C ends it. Replies are sampled; with "
            "--beam-size they are searched for.",
            "chat --model runs/dialogue",
            "howto/train.md",
        ),
    },
    "evaluate": {
        "score": (
            "probabilities that a model gives to translations, as JSON lines",
            "Writes a JSON object for each pair of two aligned files: the probability of the "
            "target and of each of its tokens. A language model reads the source before it.",
            "score --model runs/en-de --source test.en --target test.de",
            "howto/clean.md",
        ),
        "evaluate": (
            "BLEU and chrF of a model's translations, accuracy of labels, or perplexity, as JSON",
            "Translates a source file and scores it against a reference with sacreBLEU, or labels "
            "its lines and counts the right labels.",
            "evaluate --model runs/en-de --source test.en --reference test.de",
            "howto/evaluate.md",
        ),
        "inspect": (
            "see inside a run: sizes and origin; attention, alignment, positions, heads",
            "Shows sizes, languages, licence and origin of a run as JSON. With a sentence it "
            "writes an interactive page on the attention, with pictures and tables.",
            'inspect --model runs/en-de --text "Two dogs play." --output seen',
            "tutorials/see_inside.md",
        ),
    },
    "export": {
        "export": (
            "export a SavedModel, a web page, or a model for LiteRT, CTranslate2 or others",
            "Exports a run folder and verifies the export against the model.",
            "export --model runs/en-de --format saved_model --output exported/en-de",
            "howto/export.md",
        ),
    },
    "serve": {
        "serve": (
            "serve an export over HTTP",
            "Serves an export with TensorFlow Serving's REST protocol and the APIs of "
            "LibreTranslate and DeepL. On a cluster: "
            "serve run keras_transformer.extras.cluster:build_app model=DIR",
            "serve --model exported/en-de",
            "howto/serve.md",
        ),
    },
    "corpora": {
        "clean": (
            "drop noisy pairs from parallel corpora, with a report",
            "Writes the pairs of corpora that break no rule, in their order. A table on stderr "
            "says how many pairs each rule dropped, report.json also has examples.",
            "clean web.en web.de --output cleaned",
            "howto/clean.md",
        ),
        "synthesize": (
            "make pairs for training from text in one language: distillation, back-translation",
            "Translates text and writes it with its translations, as a CSV of sources and targets "
            "that a recipe takes. With --output it continues after an interruption.",
            "synthesize --model runs/de-en --back mono.de --output synthetic",
            "howto/synthesize.md",
        ),
        "glossary": (
            "learn words and their translations from parallel corpora",
            "Writes lines of a word, a tab and its translation, learned from parallel corpora with "
            "IBM's Model 1: a glossary for `data.glossary` of a recipe.",
            "glossary train.en train.de > terms.tsv",
            "howto/control_output.md",
        ),
        "shortlist": (
            "make a run's shortlist: the target tokens that a source token is likely to become",
            "Learns a run's shortlist from parallel corpora, such as its training texts, with "
            "IBM's Model 1. `translate --shortlist` and `export --shortlist` use it.",
            "shortlist --model runs/en-de train.en train.de",
            "howto/train.md",
        ),
    },
}
_HELP = {name: about[0] for commands in _COMMANDS.values() for name, about in commands.items()}
# Commands by what they are for, as a line without a command shows them.
_GROUPS = {
    "make a model": "demo train import shortlist export",
    "use it": "translate chat serve synthesize",
    "look into it": "evaluate score inspect",
    "corpora": "clean glossary",
}
# Options of commands with many that have a flag of their own. The others are for `--set`.
_USUAL = {
    "translate": "output document_kind wrapped bilingual json n_best stream engine workers "
    "threads beam_size length_penalty max_length sampling source_language target_language "
    "batch_size split_sentences tag markup glossary shortlist",
    "evaluate": "source reference header languages perplexity tokenize save beam_size "
    "length_penalty source_language target_language batch_size",
    "export": "verify_with languages beam_size length_penalty signatures shortlist quantize "
    "source_lengths",
    "serve": "host port name version languages allowed_hosts markup processes threads "
    "max_batch_size max_ongoing max_text_characters request_timeout",
    "clean": "header languages inline_tags held_out source_language target_language without "
    "duplicates processes",
    "synthesize": "output back n_best engine workers threads beam_size sampling top_k "
    "source_language target_language batch_size",
}
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO)
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits."""
    code: str | int | None
    try:
        code = run(arguments)
    except SystemExit as ended:
        code = ended.code
    if isinstance(code, int) and code in (130, 143):
        os._exit(code)  # After Ctrl-C or SIGTERM a thread may stay in TensorFlow for long.
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: `sys.argv[1:]` by default.

    Returns:
        The exit code.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    _open_closed_streams()
    if sys.stdout is None:
        print_message(
            "stdout is closed, but the result is written there. Add >/dev/null to discard it."
        )
        return _flush(2)
    if hasattr(sys.stdout, "reconfigure"):
        # A path may have bytes that are not UTF-8; JSON writes such a byte as the same escape.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        parser = _parser()
        name = next((word for word in arguments if not word.startswith("-")), None)
        if name is not None and name not in _HELP:
            parser.error(f"unknown command {name!r:.80}.{did_you_mean(name, _HELP)}")
        options = parser.parse_args(arguments)
        if "command" not in options:
            print(_overview(parser.prog))
            return _flush(0)
    except SystemExit as ended:  # By argparse, after a help text or a wrong option.
        sys.exit(_flush(ended.code))
    except OSError as error:
        return _flush(_exit_for_os_error(error))
    # The other options are the command's, most of them arguments of the library.
    if vars(options).pop("verbose", False):
        os.environ.setdefault(LEVEL, "0")
    else:
        silence_tensorflow()
        own_stderr()
    flags = vars(options).pop("options_of_command")
    without_cache = vars(options).pop("no_compilation_cache", False)
    with _messages_on_stderr():
        if not without_cache:
            enable_compilation_cache()
        return _flush(_call(options, flags))


def _open_closed_streams():
    """Opens /dev/null for each of stdin, stdout and stderr that the parent process has closed.

    Otherwise the next file that is opened would take the descriptor of a closed stream, and a
    library that writes to stderr would write into this file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            lowest_free = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(lowest_free, True)  # for child processes
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")


def _flush(code):
    """Flushes stdout and stderr; returns `code`, or the exit code of a failure to write stdout."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            # Otherwise Python reports the error again as it closes the stream, and exits with 120.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if stream is sys.stdout:
                code = code or _exit_for_os_error(error)
    return code


@contextlib.contextmanager
def _messages_on_stderr():
    """Shows warnings and the package's log as lines of the command."""

    class Handler(logging.Handler):
        def emit(self, record):
            print_message(record.getMessage())

    logger, handler = logging.getLogger("keras_transformer"), Handler()
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False  # TensorFlow's import may leave a handler of its own.
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *index: print_message(message)
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def _call(options, flags):
    """Calls a command; returns its exit code."""
    try:
        options.command(options)
    except (InputError, TrainingError, VerificationError) as error:
        is_mistake, message = isinstance(error, InputError), str(error)
        if is_mistake and not isinstance(error, InvalidFileError):
            message = _with_flags(message, flags)
        print_message(message)
        return 2 if is_mistake else 1
    except OSError as error:
        return _exit_for_os_error(error)
    except KeyboardInterrupt:
        print_message("interrupted")
        return 130
    return 0


def _with_flags(message, flags):
    """Replaces options in a message by their flags: `beam_size`, `sampling=True`, `markup=html`."""
    for name, flag in flags.items():
        switch = f"{flag}=true" if flag.startswith("--set ") else flag
        message = message.replace(f"`{name}`", f"`{flag}`").replace(f"`{name}=True`", f"`{switch}`")
        message = message.replace(f"`{name}=", f"`{flag}=")
    return message


def _exit_for_os_error(error):
    if isinstance(error, BrokenPipeError):
        return 141
    if error.errno in _NO_PATH:
        print_message(f"{error.filename}: no file or folder can have this path: {error.strerror}.")
        return 2
    if error.errno not in _CANNOT_WRITE:
        raise error
    subject = "cannot write" if error.filename is None else f"{error.filename}: cannot be written"
    print_message(f"{subject}: {error.strerror}.")
    return 2


def _parser():
    parser = Parser(
        prog="keras-transformer",
        description="Train, evaluate, export and use a Transformer on your own parallel text.",
    )
    version = f"{parser.prog} {keras_transformer.__version__}"
    parser.add_argument("--version", action="version", version=version, help="show the version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for module, commands_of_module in _COMMANDS.items():
        for name, (help, description, example, page) in commands_of_module.items():
            commands.add_parser(
                name,
                help=help,
                description=description,
                options=functools.partial(_add_command, module, name),
                usual=_USUAL.get(name, "").split(),
                usage=argparse.SUPPRESS,  # The example shows it.
                example=f"{parser.prog} {example}",
                page=page,
            )
    return parser


def _overview(program):
    """Returns the commands in groups, and where their options are."""
    rows = [f"example: {program} demo    options of a command: {program} COMMAND --help"]
    for group, names in _GROUPS.items():
        rows += ["", group, *(f"  {name:<11} {_HELP[name]}" for name in names.split())]
    return "\n".join(rows)


def _add_command(module, name, parser):
    """Imports the module of a command, and adds the command's options to its parser."""
    add_options, command = _commands_of(module)[name]
    add_options(parser)
    parser.set_defaults(command=command)


def _commands_of(module):
    match module:
        case "train":
            from keras_transformer.cli.train import COMMANDS
        case "translate":
            from keras_transformer.cli.translate import COMMANDS
        case "evaluate":
            from keras_transformer.cli.evaluate import COMMANDS
        case "export":
            from keras_transformer.cli.export import COMMANDS
        case "serve":
            from keras_transformer.cli.serve import COMMANDS
        case "corpora":
            from keras_transformer.cli.corpora import COMMANDS
    return COMMANDS
