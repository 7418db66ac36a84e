"""The command `translate` for whole documents: files, or a document on stdin."""

import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from keras_transformer.base.errors import InputError, as_input_error, check_folder
from keras_transformer.base.files import check_writable, write_output
from keras_transformer.cli.progress import describe, progress_bar, say_beside_bar
from keras_transformer.engine.translator import Translator
from keras_transformer.text.elements import begins_page

# Of a page there may be comments of this length before its first tag.
_MAX_BEGINNING = 1 << 16


def read_beginning(stream: io.BufferedIOBase) -> tuple[bytes, bool]:
    """Reads what tells whether a stream is a page of HTML.

    Returns:
        What was read, and whether a page begins with it.
    """
    content, is_page = b"", None
    while is_page is None and len(content) < _MAX_BEGINNING:
        if not (more := stream.read1(_MAX_BEGINNING)):
            break
        content += more
        codec = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        is_page = begins_page(content.decode(codec, "ignore"))
    return content, bool(is_page)


def translate_stream(
    translator: Translator, content: bytes, kind: str, output: str | None, **options: Any
) -> None:
    """Translates a document and writes it to a file, or to stdout."""
    _check_kind(kind)
    if output is not None:
        check_writable(output)
    translated = _documents().translate_document(translator, content, kind, name="stdin", **options)
    _write(translated, output)


def translate_files(
    translator: Translator,
    paths: Sequence[str],
    output: str | None,
    shown: bool,
    kind: str | None = None,
    **options: Any,
) -> None:
    """Translates files one after the other; a file that cannot be translated stops no other.

    Args:
        translator: `Translator` of a run or an export.
        paths: Paths of the files.
        output: File for the translation of one file, or folder for the translations, which have the
            names of their files; None writes the translation of one file to stdout.
        shown: Whether a progress bar is shown.
        kind: Kind of all files; by default each name tells it.
        **options: Options of `documents.translate_document`.

    Raises:
        InputError: An option or a file is at fault. Others were translated.
    """
    if kind is not None:
        _check_kind(kind)
    wrapped = options.pop("wrapped", False)
    _documents().check_translates_sentences(translator)
    translator.check_options(**options)
    outputs = _outputs(paths, output)
    failures: list[InputError] = []
    with progress_bar(sum(map(_size, paths)), shown) as bar:
        for number, (path, output_path) in enumerate(zip(paths, outputs, strict=True), 1):
            progress = _Progress(bar, path, f"{number} of {len(paths)} files")
            arguments = {"wrapped": wrapped, "advance": progress.advance, **options}
            try:
                with warnings.catch_warnings(record=True) as caught:
                    # A warning for another file is not a repetition.
                    warnings.simplefilter("always", UserWarning)
                    _translate_file(translator, path, output_path, kind, arguments)
                for warning in caught:
                    message = str(warning.message).removeprefix(f"{path}: ")
                    say_beside_bar(f"{path}: {message}")
            except InputError as error:
                failures.append(error)
                if len(paths) > 1:
                    say_beside_bar(error)
            progress.end()
    if failures and len(paths) == 1:
        raise failures[0]
    if failures:
        raise InputError(f"{len(failures)} of {len(paths)} files were not translated.")


def _documents():
    """Returns the folder of documents, which may be deleted, as a module."""
    check_folder("extras/documents")
    from keras_transformer.extras.documents import translating

    return translating


def _translate_file(translator, path, output, kind, options):
    if output is not None:
        _documents().translate_file(translator, path, output, kind, **options)
        return
    kind = kind or _documents().kind_of(path)
    content = _documents().read_document(path)
    translated = _documents().translate_document(translator, content, kind, name=path, **options)
    _write(translated, None)


class _Progress:
    """The part of a bar that one file has."""

    def __init__(self, bar, path, text):
        self._bar, self._text, self._left = bar, text, _size(path)
        self._size = self._left

    def advance(self, share):
        size = min(round(share * self._size), self._left)
        self._left -= size
        describe(self._bar, self._text, size)

    def end(self):
        describe(self._bar, self._text, self._left)


def _check_kind(kind):
    kinds = _documents().KINDS
    if kind not in kinds:
        rule = f"`document_kind` must be one of lines, {', '.join(kinds)}; lines only for stdin"
        raise InputError(f"{rule}. Received: {kind!r}.")


def _outputs(paths, output):
    """Returns the path of each file's translation; makes the folder around them."""
    if output is None:
        if len(paths) > 1:
            raise InputError("Several files need --output DIR, a folder for their translations.")
        return [None]
    check_output = _documents().check_output
    if len(paths) == 1 and not os.path.isdir(output) and not output.endswith(os.sep):
        outputs = [output]
    else:
        outputs = [os.path.join(output, os.path.basename(path)) for path in paths]
    documents, first_paths = set(map(os.path.realpath, paths)), dict[str, str]()
    for path, output_path in zip(paths, outputs, strict=True):
        if output_path in first_paths:
            rule = f"two files must not have the same name in {output}"
            raise InputError(f"{path}: {rule}. Received: {first_paths[output_path]}, too.")
        first_paths[output_path] = path
        check_output(path, output_path)
        if os.path.realpath(output_path) in documents:
            raise InputError(f"{output_path}: a translation must not replace a document.")
    if outputs != [output]:
        with as_input_error(output):
            os.makedirs(output, exist_ok=True)
    return outputs


def _write(content, output):
    if output is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        write_output(output, content)


def _size(path):
    try:
        return os.path.getsize(path)
    except OSError:  # It will be said when the file is read.
        return 0
