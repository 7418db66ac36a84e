"""The command `translate` for whole documents: files, folders, or a document on stdin."""

import io
import os
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

from keras_transformer.base.errors import (
    InputError,
    as_input_error,
    check_folder,
    print_message,
)
from keras_transformer.base.files import check_writable, write_output
from keras_transformer.cli.bilingual import BilingualFile
from keras_transformer.cli.progress import describe, progress_bar, say_beside_bar
from keras_transformer.engine.translator import Translator
from keras_transformer.text.elements import begins_page

# Of a page there may be comments of this length before its first tag.
_MAX_BEGINNING = 1 << 16
_MAX_NAMES = 5  # that a message shows of what was left out


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
    translator: Translator,
    content: bytes,
    kind: str,
    output: str | None,
    bilingual: BilingualFile | None = None,
    **options: Any,
) -> None:
    """Translates a document and writes it to a file, or to stdout; see `translate_files`."""
    _check_kind(kind)
    if output is not None:
        check_writable(output)
    if bilingual is not None:
        options["take_pairs"] = bilingual.add
    translated = _documents().translate_document(translator, content, kind, name="stdin", **options)
    _write(translated, output)
    if bilingual is not None:
        bilingual.save()


def translate_files(
    translator: Translator,
    paths: Sequence[str],
    output: str | None,
    shown: bool,
    kind: str | None = None,
    bilingual: BilingualFile | None = None,
    **options: Any,
) -> None:
    """Translates files one after the other; a file that cannot be translated stops no other.

    The last line on stderr sums up what was done.

    Args:
        translator: `Translator` of a run or an export.
        paths: Paths of files, and of folders: of the documents below them. What else is there is
            left out. Hidden files and folders, and links to folders, are not read.
        output: File for the translation of one file, or folder for the translations. These have
            the names of their files, or their paths below the folder of `paths`. None writes the
            translation of one file to stdout.
        shown: Whether a progress bar is shown.
        kind: Kind of all files; by default each name tells it. Not for folders.
        bilingual: File for the texts of the documents that were translated.
        **options: Options of `documents.translate_document`.

    Raises:
        InputError: An option or a file is at fault. Others were translated.
    """
    if kind is not None:
        _check_kind(kind)
    wrapped = options.pop("wrapped", False)
    _documents().check_translates_sentences(translator)
    translator.check_options(**options)
    summary = _Summary()
    documents = _documents_of(paths, output, kind, summary.left_out)
    outputs = _outputs(documents, output, any(map(os.path.isdir, paths)))
    paths = [path for path, _ in documents]
    if bilingual is not None:
        _check_separate(bilingual.path, [*paths, *filter(None, outputs)])
    for folder in sorted(set(map(os.path.dirname, filter(None, outputs))) - {""}):
        with as_input_error(folder):
            os.makedirs(folder, exist_ok=True)
    failures: list[InputError] = []
    with progress_bar(sum(map(_size, paths)), shown) as bar:
        for number, (path, output_path) in enumerate(zip(paths, outputs, strict=True), 1):
            progress = _Progress(bar, path, f"{number} of {len(paths)} files")
            pairs: list[tuple[str, str]] = []
            arguments = {"wrapped": wrapped, "advance": progress.advance, **options}
            arguments["take_pairs"] = pairs.extend
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
            else:
                summary.add(pairs, len(caught))
                if bilingual is not None:
                    bilingual.add(pairs, path)
            progress.end()
    if failures and len(paths) == 1:
        raise failures[0]
    if bilingual is not None:
        bilingual.save()
    print_message(summary)
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


class _Summary:
    """Counts of what was done with files, as a line.

    Attributes:
        left_out: Paths of files and folders that were not read.
    """

    def __init__(self):
        self.left_out: list[str] = []
        self._start = time.monotonic()
        self._files = self._texts = self._words = self._warnings = 0

    def add(self, pairs, num_warnings):
        """Adds a file that was translated, by its texts with their translations."""
        self._files += 1
        self._texts += len(pairs)
        self._words += sum(len(source.split()) for source, _ in pairs)
        self._warnings += num_warnings

    def __str__(self):
        seconds = f"{time.monotonic() - self._start:.1f}"
        counts = f"files: {self._files}, texts: {self._texts}, words: {self._words}"
        line = f"{counts}, seconds: {seconds}, warnings: {self._warnings}"
        return f"{line}; left out: {_some(self.left_out)}" if self.left_out else line


def _some(names):
    """Returns the first of some names, and how many more there are."""
    rest = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{rest}"


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


def _documents_of(paths, output, kind, left_out):
    """Returns the paths of documents, each with its path below the output.

    Adds to `left_out` what is in folders besides.
    """
    documents: list[tuple[str, str]] = []
    for path in paths:
        if not os.path.isdir(path):
            documents.append((path, os.path.basename(path)))
            continue
        if output is None:
            raise InputError(f"{path}: a folder needs --output DIR, a folder for translations.")
        if kind is not None:
            rule = "`document_kind` is not allowed with a folder, where names tell the kinds"
            raise InputError(f"{rule}. Received: {kind!r} for {path}.")
        folders = [os.path.realpath(folder) for folder in (path, output)]
        if os.path.commonpath(folders) in folders:
            rule = "the output must be outside of the folder, and the folder outside of the output"
            raise InputError(f"{output}: {rule}. Received: the folder {path}.")
        count, left_out_below = len(documents), []
        for file in _files_below(path, left_out_below):
            documents.append((file, os.path.relpath(file, path)))
        if len(documents) == count:
            rest = f" Left out: {_some(left_out_below)}." if left_out_below else ""
            raise InputError(f"{path}: there is no document below this folder.{rest}")
        left_out += left_out_below
    return documents


def _files_below(folder, left_out):
    """Yields the documents below a folder; adds other files, and links to folders, to a list."""
    kind_of = _documents().kind_of
    walk = os.walk(folder, onerror=lambda error: left_out.append(error.filename))
    for parent, folders, files in walk:
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (os.path.join(parent, name) for name in folders)
        left_out += filter(os.path.islink, paths)  # `os.walk` does not follow them.
        for name in sorted(name for name in files if not name.startswith(".")):
            path = os.path.join(parent, name)
            try:
                kind_of(name)
                is_document = os.path.isfile(path)  # No pipe, and no link to nothing
            except InputError:
                is_document = False
            if is_document:
                yield path
            else:
                left_out.append(path)


def _outputs(documents, output, is_folder):
    """Returns the path of each document's translation, None for stdout."""
    paths = [path for path, _ in documents]
    if output is None:
        if len(paths) > 1:
            raise InputError("Several files need --output DIR, a folder for their translations.")
        return [None]
    check_output = _documents().check_output
    is_folder = is_folder or len(paths) > 1 or os.path.isdir(output) or output.endswith(os.sep)
    outputs = [os.path.join(output, name) for _, name in documents] if is_folder else [output]
    originals, first_paths = set(map(os.path.realpath, paths)), dict[str, str]()
    for path, output_path in zip(paths, outputs, strict=True):
        if output_path in first_paths:
            rule = f"two files must not have the same name in {output}"
            raise InputError(f"{path}: {rule}. Received: {first_paths[output_path]}, too.")
        first_paths[output_path] = path
        check_output(path, output_path)
        if os.path.realpath(output_path) in originals:
            raise InputError(f"{output_path}: a translation must not replace a document.")
    return outputs


def _check_separate(path, others):
    if os.path.realpath(path) in map(os.path.realpath, others):
        rule = "the bilingual file must not replace a document or its translation"
        raise InputError(f"{path}: {rule}.")


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
