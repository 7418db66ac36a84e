"""Translating a stream of any length, as its lines come."""

from keras_transformer.streaming.chunks import chunk_size, each_line
from keras_transformer.streaming.forms import FORMS
from keras_transformer.streaming.prefixes import with_prefixes
from keras_transformer.streaming.progress import Progress
from keras_transformer.streaming.reader import LineReader


def translate_lines(
    translator,
    input,
    output,
    form="text",
    target_prefixes=None,
    batch_size=32,
    progress=None,
    name="stdin",
    **options,
):
    """Translates each line of a stream, in order, in constant memory.

    Lines that are there are translated together, at most about a thousand; a line that comes
    alone is translated and written before the next one is waited for.

    Args:
        translator: `Translator`.
        input: Binary stream of UTF-8 lines.
        output: Text stream.
        form: How a translation is written: `"text"`, `"list"` (of the `n_best`, numbered) or
            `"json"`.
        target_prefixes: Path of a file with a target prefix for each line.
        batch_size: As `Translator.translate` takes it.
        progress: `Progress`; without one nothing but warnings is told.
        name: What messages call the input.
        **options: As `Translator.translate` takes them.

    Raises:
        InputError: An option is out of range, told before anything is read; or a line is at
            fault, told when the lines before it have been written.
    """
    # What is wrong with the options is no line's fault.
    translator.translate([], batch_size=batch_size, **options)
    progress = Progress(shown=False) if progress is None else progress

    def translate(pairs):
        given = dict(options)
        if target_prefixes is not None:
            given["target_prefixes"] = [prefix for _, prefix in pairs]
        return translator.translate(
            [line.text for line, _ in pairs], batch_size=batch_size, **given
        )

    chunks = read_chunks(input, chunk_size(batch_size), name)
    for pairs in with_prefixes(chunks, target_prefixes, name):
        found = each_line(translate, pairs, lambda pair: pair[0].number, name, progress.log)
        for (line, _), translation in found:
            progress.clear()
            output.write(FORMS[form](line, translation))
        output.flush()
        progress.advance([line for line, _ in pairs])


def read_chunks(input, most, name):
    """Lists of `Line`, each as soon as there is one."""
    reader = LineReader(input, name)
    while lines := reader.take(most):
        yield lines
