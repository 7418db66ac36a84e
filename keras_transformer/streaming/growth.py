"""Translations written as they grow, a line at a time."""

import os

from keras_transformer.streaming.chunks import each_line
from keras_transformer.streaming.forms import one_line
from keras_transformer.streaming.prefixes import with_prefixes
from keras_transformer.streaming.progress import Progress
from keras_transformer.streaming.translate import read_chunks

_BACK_TO_AN_EMPTY_LINE = "\r\x1b[K"


def stream_translations(
    translator,
    input,
    output,
    target_prefixes=None,
    rewrite=False,
    progress=None,
    name="stdin",
    **options,
):
    """Translates each line of a stream and writes its text while it grows.

    Args:
        translator: `Translator` of a run folder.
        input: Binary stream of UTF-8 lines.
        output: Text stream.
        target_prefixes: Path of a file with a target prefix for each line.
        rewrite: Whether `output` is a terminal, where text that changes can be written anew.
        progress: `Progress`, which tells warnings.
        name: What messages call the input.
        **options: As `Translator.stream` takes them: greedy search, or `sampling=True`.

    Raises:
        InputError: As `translate_lines`.
    """
    translator.stream("", **options)
    progress = Progress(shown=False) if progress is None else progress

    def stream(pairs):
        # One of them; refused here if at all, and not while it grows.
        (line, prefix), given = pairs[0], dict(options)
        if prefix is not None:
            given["target_prefix"] = prefix
        return [translator.stream(line.text, **given)]

    for pairs in with_prefixes(read_chunks(input, 1, name), target_prefixes, name):
        found = each_line(stream, pairs, lambda pair: pair[0].number, name, progress.log)
        for _, growing in found:
            _write_growth(growing, output, rewrite)


def _write_growth(growing, output, rewrite):
    shown = ""
    for text in growing:
        text = one_line(text)
        if rewrite and not text.startswith(shown):
            output.write(_BACK_TO_AN_EMPTY_LINE + text)
        else:
            output.write(text[len(os.path.commonprefix([shown, text])) :])
        output.flush()
        shown = text
    output.write("\n")
    output.flush()
