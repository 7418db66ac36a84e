"""The commands `keras-transformer translate` and `chat`: text in, text out."""

import argparse
import contextlib
import functools
import inspect
import json
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from keras_transformer.base.errors import InputError, print_message
from keras_transformer.cli.arguments import (
    ALIGNMENT,
    LANGUAGE_FLAGS,
    add_declared,
    add_decoding,
    add_model,
    add_options,
    add_progress,
    add_sampling,
    binary_stdin,
    load_translator,
    option_values,
)

if TYPE_CHECKING:
    from keras_transformer.engine.translator import Translator

COMMAND_OPTIONS = tuple("json stream progress engine files output document_kind bilingual".split())
_TOP_P = 0.9
_RESET = "/reset"
_OF_DOCUMENTS = ("output", "wrapped")
_OF_LINES = ("json", "alignment", "n_best", "stream", "target_prefixes")
RAY_OPTIONS = ("workers", "chunk_lines", "ray_address")
_BACK_TO_AN_EMPTY_LINE = "\r\x1b[K"


def _add_translate_options(command):
    from keras_transformer.extras.bulk.options import BulkOptions

    group = command.add_argument_group("input and output")
    add_model(group)
    prefixes = "the beginning of each translation, one line for each line of stdin"
    n_best = "for N > 1: N lines for each line, `number ||| translation ||| score`; default: 1"
    add_options(
        group,
        ("target_prefixes", str, "FILE", prefixes),
        ("n_best", int, "N", n_best),
        ("json", None, None, "one JSON object per line: text, tokens, probabilities"),
        ALIGNMENT,
        ("stream", None, None, "write each translation while it is made"),
    )
    add_declared(group, BulkOptions, names=["threads"])
    add_progress(group)
    bilingual = "sources beside translations, in .tsv, .tmx or .html"
    add_options(group, ("bilingual", str, "FILE", bilingual))
    group = command.add_argument_group("whole documents")
    files = "documents, whose names tell their kind, or folders; with --engine ray, files of "
    files += "lines, plain or compressed"
    group.add_argument("files", nargs="*", metavar="FILE", default=argparse.SUPPRESS, help=files)
    output = "translation of one file, or folder for translations with the names of the files"
    kinds = "lines, text, html, markdown, srt, vtt, epub; default for files: by name, for stdin: "
    kinds += "lines, or with --markup html a page if it begins as one does"
    wrapped = "lines of a text file end at a column: a paragraph, until a blank line, is a text"
    add_options(
        group,
        ("output", str, "PATH", output),
        ("document_kind", str, "NAME", kinds),
        ("wrapped", None, None, wrapped),
    )
    group = command.add_argument_group("files over a Ray cluster, with --engine ray")
    group.add_argument(
        "--engine",
        choices=["here", "ray"],
        default="here",
        help="where: in this process, or over a Ray cluster; default: here",
    )
    add_declared(group, BulkOptions, names=RAY_OPTIONS)
    add_decoding(command)


def _add_chat_options(command):
    from keras_transformer.decoding.search_options import FILTERS

    add_model(command)
    names = ("beam_size", *FILTERS, "seed", "max_length")
    add_sampling(command, *names, beam_size="replies are sampled", top_p=str(_TOP_P))


def _translate_files(options):
    from keras_transformer.extras.bulk.corpus import translate_corpus

    names = (*_OF_LINES, "document_kind", "wrapped", "bilingual", "progress")
    _refuse(options, names, "is not allowed with --engine ray")
    values = option_values(options, "model", *COMMAND_OPTIONS)
    inputs = getattr(options, "files", [])
    for name, is_given in (("FILE", inputs), ("--output", "output" in options)):
        if not is_given:
            raise InputError(f"--engine ray needs {name}.")
    # Ray prints messages about itself to stdout.
    with contextlib.redirect_stdout(sys.stderr):
        report = translate_corpus(options.model, inputs, options.output, **values)
    print(json.dumps(report, indent=2))


def _translate(options):
    if options.engine == "ray":
        _translate_files(options)
        return
    from keras_transformer.cli.bilingual import check_bilingual
    from keras_transformer.cli.documents import read_beginning

    _refuse(options, RAY_OPTIONS, "needs --engine ray")
    if "bilingual" in options:
        check_bilingual(options.bilingual)
    first_bytes, kind = b"", getattr(options, "document_kind", None)
    is_document = bool(getattr(options, "files", [])) or kind not in (None, "lines")
    if not is_document and kind is None and getattr(options, "markup", None) == "html":
        first_bytes, is_document = read_beginning(binary_stdin())
    if is_document:
        rule = "is not allowed with whole documents"
        _refuse(options, _OF_LINES, f"{rule}: add --document-kind lines" if first_bytes else rule)
        _translate_documents(options, first_bytes)
    else:
        _refuse(options, _OF_DOCUMENTS, "needs files or --document-kind")
        _translate_lines(options, first_bytes)


def _translate_lines(options, first_bytes):
    """Translates the lines of stdin, of which some bytes may have been read."""
    from keras_transformer.base.errors import is_terminal
    from keras_transformer.cli.formats import as_json, as_list, as_text
    from keras_transformer.cli.lines import translate_lines
    from keras_transformer.cli.progress import progress_bar, size_left
    from keras_transformer.engine.engine import long_input_of_commands
    from keras_transformer.engine.steps.text_steps import STEP_OPTIONS
    from keras_transformer.engine.translator import Translator

    if getattr(options, "alignment", False) and "json" not in options:
        raise InputError("`alignment` is written only as JSON: add `json`.")
    if "stream" in options:
        streamed = inspect.signature(Translator.stream).parameters
        names = [name for name in STEP_OPTIONS if name not in streamed]
        names += ["json", "alignment", "n_best", "batch_size", "progress", "bilingual"]
        _refuse(options, names, "is not allowed with --stream")
    source = binary_stdin()
    translator, values = load_translator(options, *COMMAND_OPTIONS)
    values.setdefault("long_input", long_input_of_commands(translator.engine))
    if "stream" in options:
        rewrite = is_terminal(sys.stdout)
        translate_incrementally(translator, source, sys.stdout, rewrite=rewrite, **values)
        return
    format, count = as_text, values.get("n_best", 1)
    if count > 1:
        format = functools.partial(as_list, count=count)
    if "json" in options:
        format = as_json
    shown = options.progress
    if shown is None:
        shown = is_terminal(sys.stderr) and not is_terminal(sys.stdin)
    left = size_left(source)
    size = None if left is None else left + len(first_bytes)
    with _bilingual_file(options, translator) as bilingual:
        if bilingual is not None:
            format = functools.partial(_with_pair, bilingual, format)
        with progress_bar(size, shown) as bar:
            translate_lines(
                translator, source, sys.stdout, format, bar=bar, first_bytes=first_bytes, **values
            )
        if bilingual is not None:
            bilingual.save()


def _bilingual_file(options, translator):
    """Returns the context of `bilingual.bilingual_file`, or of None without `--bilingual`."""
    from keras_transformer.cli.bilingual import bilingual_file
    from keras_transformer.text.languages import codes_of_sides

    if "bilingual" not in options:
        return contextlib.nullcontext()
    named = (getattr(options, name, None) for name in LANGUAGE_FLAGS)
    return bilingual_file(options.bilingual, codes_of_sides(translator.engine.languages, *named))


def _with_pair(bilingual, format, line, translation):
    """Formats a line, and adds it with its translation to a bilingual file."""
    if line.text.strip():
        bilingual.add([(line.text, translation.text)])
    return format(line, translation)


def _translate_documents(options, first_bytes):
    """Translates files, or the document on stdin, of which some bytes may have been read."""
    from keras_transformer.base.errors import is_terminal
    from keras_transformer.cli.documents import translate_files, translate_stream
    from keras_transformer.engine.engine import long_input_of_commands

    files = getattr(options, "files", [])
    source = None if files else binary_stdin()
    translator, values = load_translator(options, *COMMAND_OPTIONS)
    values.setdefault("long_input", long_input_of_commands(translator.engine))
    output, kind = getattr(options, "output", None), getattr(options, "document_kind", None)
    shown = options.progress
    if shown is None:
        shown = is_terminal(sys.stderr)
    with _bilingual_file(options, translator) as bilingual:
        if source is None:
            translate_files(translator, files, output, shown, kind, bilingual, **values)
        else:
            content, kind = first_bytes + source.read(), kind or "html"
            translate_stream(translator, content, kind, output, bilingual, **values)


def translate_incrementally(
    translator: "Translator",
    input: BinaryIO,
    output: TextIO,
    target_prefixes: str | os.PathLike | None = None,
    rewrite: bool = False,
    **options: Any,
) -> None:
    """Translates each line of a stream and writes its text token by token.

    Takes the arguments of `lines.translate_lines`, the options of `Translator.stream`, and
    `rewrite`: `output` is a terminal, where text that changes can be written again.
    """
    from keras_transformer.cli.lines import read_chunks, translated_lines, with_prefixes

    def stream(lines):
        if target_prefixes is not None:
            options["target_prefix"] = lines[0].target
        return [translator.stream(lines[0].text, **options)]

    translator.stream("", **options)  # A wrong option is not the first line's fault.
    for lines in with_prefixes(read_chunks(input, 1), target_prefixes):
        for (line,), (texts,) in translated_lines(stream, lines, "stdin"):
            write_growing(texts, output, rewrite, line.end)


def write_growing(
    texts: Iterable[str], output: TextIO, rewrite: bool = False, end: str = "\n"
) -> None:
    """Writes a text as it grows, on one line; `rewrite` as of `translate_incrementally`."""
    from keras_transformer.base.reading import one_line

    shown = line = ""
    for line in map(one_line, texts):
        text = line.rstrip()  # A line break at the end becomes a space when the text goes on.
        if rewrite and not text.startswith(shown):
            output.write(_BACK_TO_AN_EMPTY_LINE + text)
        else:
            output.write(text[len(os.path.commonprefix([shown, text])) :])
        output.flush()
        shown = text
    output.write(line[len(shown) :] + end)
    output.flush()


def _refuse(options, names, rule):
    for name in names:
        value = getattr(options, name, None)
        if value is not None and value is not False:  # `0 == False`
            raise InputError(f"`{name}` {rule}.")


def _chat(options):
    from keras_transformer.base.errors import is_terminal
    from keras_transformer.cli.lines import read_chunks
    from keras_transformer.engine.conversation import Conversation

    source = binary_stdin()
    translator, values = load_translator(options)
    if "beam_size" not in values:
        values = {"sampling": True, "top_p": _TOP_P, **values}
    conversation = Conversation(translator, **values)
    typed, shown = is_terminal(sys.stdin), is_terminal(sys.stdout)
    prompt = "> " if typed and shown else ""
    print(prompt, end="", flush=True)
    for (line,) in read_chunks(source, 1):
        message = line.text.strip()
        if message == _RESET:
            conversation.history.clear()
        elif message:
            try:
                write_growing(conversation.reply(message), sys.stdout, rewrite=shown)
            except InputError as error:
                print_message(error.message)  # Of this message only.
        print(prompt, end="", flush=True)
    print("\n" if prompt else "", end="")


COMMANDS = {"translate": (_add_translate_options, _translate), "chat": (_add_chat_options, _chat)}
