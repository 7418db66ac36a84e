"""Translates documents: their bytes, or files."""

import functools
import os
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_transformer.base.errors import InputError, check_folder, check_path
from keras_transformer.base.files import check_writable, write_output
from keras_transformer.base.options import check_choice
from keras_transformer.extras.documents.document import Document, Settings
from keras_transformer.extras.documents.encoding import decode
from keras_transformer.extras.documents.epub import Epub
from keras_transformer.extras.documents.html import HtmlPage, declared_encoding
from keras_transformer.extras.documents.markdown import Markdown
from keras_transformer.extras.documents.plain_text import PlainText
from keras_transformer.extras.documents.subtitles import Subtitles
from keras_transformer.text.languages import codes_of_sides
from keras_transformer.text.per_text import LANGUAGE_OPTIONS
from keras_transformer.text.sentences import has_letters

if TYPE_CHECKING:
    from keras_transformer.engine.translation import Translation
    from keras_transformer.engine.translator import Translator


class DocumentKind(NamedTuple):
    """A kind of documents.

    Attributes:
        suffixes: Endings of the names of its files, in lower case.
        read: Makes a `Document` of a text, or of bytes, and of `Settings`.
        declared_encoding: Returns the encoding that a document's bytes name, or None.
        has_marks: Whether `Settings.fallback_step` is needed.
        is_binary: Whether documents are read and written as bytes.
    """

    suffixes: tuple[str, ...]
    read: Callable[[Any, Settings], Document]
    declared_encoding: Callable[[bytes], str | None] = lambda content: None
    has_marks: bool = False
    is_binary: bool = False


KINDS = {
    "text": DocumentKind((".txt",), PlainText),
    "html": DocumentKind((".html", ".htm", ".xhtml"), HtmlPage, declared_encoding),
    "markdown": DocumentKind((".md", ".markdown"), Markdown, has_marks=True),
    "srt": DocumentKind((".srt",), functools.partial(Subtitles, is_webvtt=False), has_marks=True),
    "vtt": DocumentKind((".vtt",), functools.partial(Subtitles, is_webvtt=True), has_marks=True),
    "epub": DocumentKind((".epub",), Epub, is_binary=True),
}
"""Kinds of documents by their names."""


_GUIDE = "docs/howto/translate_documents.md"
_CATALOGUES = (".po", ".xlf", ".xliff")
_OFFICE = (".docx", ".doc", ".odt", ".rtf", ".pdf")


def kind_of(path: str | os.PathLike) -> str:
    """Returns the name of the kind of a file, or of a suffix.

    Raises:
        InputError: The ending of the name is unknown. Read as text, files of most other kinds
            would be destroyed.
    """
    name = os.fspath(path)
    for kind, row in KINDS.items():
        if name.lower().endswith(row.suffixes):
            return kind
    if name.lower().endswith(_OFFICE):
        rule = "documents of office programs and PDF files cannot be read"
        raise InputError(f"{name}: {rule}. Save it as HTML first.")
    if name.lower().endswith(_CATALOGUES):
        rule = "catalogues of messages (PO, XLIFF) cannot be read as documents"
        raise InputError(f"{name}: {rule}. {_GUIDE}#messages-of-programs has a short program.")
    known = ", ".join(suffix for row in KINDS.values() for suffix in row.suffixes)
    rule = f"expected a name that ends with {known}"
    raise InputError(f"{name}: {rule}; or name the kind with --document-kind, such as text.")


def decoded(content: bytes, suffix: str, name: str = "document") -> str:
    """Returns the text of a document; takes arguments of `translate_document`."""
    kind = KINDS[kind_of(suffix)]
    if kind.is_binary:
        return "\n".join(kind.read(content, Settings(name)).texts)
    return decode(content, name, kind.declared_encoding)[0]


def translate_document(
    translator: "Translator",
    content: bytes,
    suffix: str,
    name: str = "document",
    wrapped: bool = False,
    check_count: Callable[[int], None] = lambda count: None,
    advance: Callable[[float], None] = lambda share: None,
    take_pairs: Callable[[list[tuple[str, str]]], None] | None = None,
    **options: Any,
) -> bytes:
    """Translates a document; all except its text stays as it is.

    The result has the encoding, the byte order mark and the line ends of the document.

    Args:
        translator: `Translator` of a model that translates sentences.
        content: Bytes of the document: UTF-8, UTF-16 with a byte order mark, or for HTML the
            encoding that the page declares. An EPUB is an archive.
        suffix: Ending of the document's name, such as `".html"`, or a name of `KINDS`.
        name: Name of the document in messages.
        wrapped: Whether the lines of a plain text were wrapped at a column, so that a paragraph is
            a text.
        check_count: Function that is called with the number of texts before the first one is
            translated. An error that it raises ends the translation.
        advance: Function that is called with the share of the document that was translated since
            its last call.
        take_pairs: Function that is called with the texts that have letters, each with its
            translation, as people read them: without tags and marks.
        **options: Options of `Translator.translate` with one value for all texts.

    Returns:
        Bytes of the translated document.

    Raises:
        InputError: The document is not in such an encoding or of an unknown kind, an option is
            out of range, or the model translates no sentences.

    Warns:
        UserWarning: Nothing was found to translate, or a part of the document stays as it is.
    """
    check_translates_sentences(translator)
    if suffix not in KINDS:
        suffix = kind_of(suffix if "." in suffix else f".{suffix}")
    kind = KINDS[suffix]
    text: str | bytes = content
    encode: Callable[[Any], bytes] = bytes
    if not kind.is_binary:
        text, encoding = decode(content, name, kind.declared_encoding)
        encode = encoding.encode
    settings = Settings(
        name,
        *codes_of_sides(translator.engine.languages, *map(options.get, LANGUAGE_OPTIONS)),
        wrapped,
        _fallback_step(translator, options) if kind.has_marks else None,
    )
    document = kind.read(text, settings)
    check_count(len(document.texts))
    # A text without letters is no matter of the model, and neither are addresses in a text.
    options = {"copy_symbols": True, "markup": "placeholders", **options, **document.forced_options}
    try:
        prepared = translator.in_steps(document.texts, **options)
        rows: list[Translation] = []
        for texts, options_of_texts in prepared.chunks(translator.engine.lines_at_once):
            rows += translator.engine.translate(texts, **options_of_texts)
            advance(len(texts) / len(prepared.texts))
    except InputError as error:
        raise InputError(f"{name}: {error.message}") from None
    translations = prepared.after(rows)
    if not document.has_words(translations):
        message = f"{name}: nothing was found to translate; the document stays as it is"
        warnings.warn(message, stacklevel=2)
    written = encode(document.written(translations))
    if take_pairs is not None:
        pairs = document.pairs(translations, prepared.states)
        take_pairs([pair for pair in pairs if has_letters(pair[0])])
    return written


def translate_file(
    translator: "Translator",
    path: str | os.PathLike,
    output: str | os.PathLike,
    kind: str | None = None,
    **options: Any,
) -> None:
    """Translates a file; see `translate_document`, whose arguments it takes.

    Args:
        translator: `Translator` of a run or an export.
        path: Path of the file.
        output: Path of the translation, which is written completely or not at all. It must not be
            the file itself.
        kind: Name of its kind in `KINDS`; by default as the file's name says, whose ending
            must be known.
        **options: Arguments of `translate_document`.

    Raises:
        InputError: The file cannot be read or translated, or the output cannot be written.
    """
    if kind is not None:
        check_choice("kind", kind, tuple(KINDS))
    check_output(path, output)
    check_writable(output)
    suffix = kind or kind_of(path)
    content = read_document(path)
    options = {"name": os.fspath(path), **options}
    write_output(output, translate_document(translator, content, suffix, **options))


def check_translates_sentences(translator: "Translator") -> None:
    """Raises `InputError` for a model that labels, converses or continues texts."""
    engine = translator.engine
    if engine.labels is not None or engine.turns is not None or not engine.reads_sources:
        rule = "Documents need a model that translates sentences"
        raise InputError(f"{rule}. Received: {engine.noun}.")


def check_output(path: str | os.PathLike, output: str | os.PathLike) -> None:
    """Raises `InputError` if a translation would replace its document, or for no path."""
    check_path(path)
    check_path(output)
    if os.path.realpath(path) == os.path.realpath(output) or (
        os.path.exists(path) and os.path.exists(output) and os.path.samefile(path, output)
    ):
        raise InputError(f"{os.fspath(output)}: a translation must not replace its document.")


def read_document(path: str | os.PathLike) -> bytes:
    """Returns the bytes of a document; raises `InputError` if it cannot be read."""
    name = os.fspath(path)
    try:
        if stat.S_ISCHR(os.stat(path).st_mode):  # `/dev/zero` never ends.
            raise InputError(f"{name}: expected a file. Received: a device.")
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(f"{name}: no such file.") from None
    except IsADirectoryError:
        raise InputError(f"{name}: expected a file. Received: a directory.") from None
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror}.") from None


def _fallback_step(translator, options):
    """Returns a step for tags around words if the engine gives no alignments with some options."""
    if "align" in translator.engine.capabilities:
        try:
            translator.check_options(**{**options, "markup": "html"})
            return None
        except InputError:
            pass
    check_folder("extras/markup")
    from keras_transformer.extras.markup.step import MarkupStep

    return MarkupStep("html", translator.engine)
