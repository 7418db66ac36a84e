"""Writes sources beside their translations, for a person who revises the translations."""

import contextlib
import html
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO

import keras_transformer
from keras_transformer.base.errors import InputError, as_input_error, writing
from keras_transformer.base.files import check_writable, is_replaced, replaced_file
from keras_transformer.base.reading import one_line
from keras_transformer.text.language_codes import writing_direction
from keras_transformer.text.languages import language_pair

Codes = tuple[str | None, str | None]
"""Codes of the source's and of the target's language, None for an unknown language."""
# https://www.w3.org/TR/xml/#charsets
_FORBIDDEN_IN_XML = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_STYLE = (
    "table { border-collapse: collapse; table-layout: fixed; width: 100% } "
    "th, td { border: 1px solid #bbb; padding: 0.3em 0.6em; text-align: start; "
    "vertical-align: top; width: 50%; overflow-wrap: break-word }"
)


class _Layout:
    """The text of a file, in parts: how it begins, a heading per document, and a row per text.

    Args:
        name: Path of the file.
        codes: Codes of the languages.
    """

    begin = end = ""

    def __init__(self, name: str, codes: Codes):
        pass

    def heading(self, document: str) -> str:
        return ""

    def row(self, source: str, translation: str, document: str | None) -> str:
        raise NotImplementedError


class _Table(_Layout):
    """A row per text: the source, a tab and the translation."""

    def row(self, source: str, translation: str, document: str | None) -> str:
        return f"{source}\t{translation}\n"


class _Memory(_Layout):
    """A translation memory in TMX 1.4: a unit per text, with the name of its document.

    Source: TMX 1.4b, https://www.gala-global.org/tmx-14b.
    """

    def __init__(self, name: str, codes: Codes):
        if None in codes:
            rule = f"{name}: a translation memory names both languages, and one is unknown here"
            advice = "Give --from and --to where the model takes them, or write .tsv or .html"
            raise InputError(f"{rule}. {advice}.")
        self._codes = language_pair(",".join(map(str, codes)))
        version = keras_transformer.__version__
        self.begin = (
            '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4">\n'
            f'<header creationtool="keras-transformer" creationtoolversion="{version}" '
            'segtype="paragraph" o-tmf="keras-transformer" adminlang="en" '
            f'srclang="{self._codes[0]}" datatype="plaintext"/>\n<body>\n'
        )
        self.end = "</body>\n</tmx>\n"

    def row(self, source: str, translation: str, document: str | None) -> str:
        unit = "" if document is None else f'<prop type="x-document">{_xml(document)}</prop>'
        for code, text in zip(self._codes, (source, translation), strict=True):
            unit += f'<tuv xml:lang="{code}"><seg>{_xml(text)}</seg></tuv>'
        return f"<tu>{unit}</tu>\n"


class _Page(_Layout):
    """A page with two columns, and a heading per document."""

    def __init__(self, name: str, codes: Codes):
        self._attributes = [*map(_language_attributes, codes)]
        self.begin = (
            f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
            f"<title>{html.escape(os.path.basename(name))}</title>\n<style>{_STYLE}</style>\n"
            "<table>\n<tr><th>Source</th><th>Translation</th></tr>\n"
        )
        self.end = "</table>\n</html>\n"

    def heading(self, document: str) -> str:
        return f'<tr><th colspan="2">{html.escape(document)}</th></tr>\n'

    def row(self, source: str, translation: str, document: str | None) -> str:
        cells = zip(self._attributes, (source, translation), strict=True)
        return f"<tr>{''.join(f'<td{end}>{html.escape(text)}</td>' for end, text in cells)}</tr>\n"


_FORMATS: dict[str, type[_Layout]] = {".tsv": _Table, ".tmx": _Memory, ".html": _Page}


def _language_attributes(code):
    """Returns the attributes of a cell in a language; ` lang=""` is an unknown language."""
    if code is None or not code.replace("-", "").isalnum():  # The model's own name of it.
        return ' lang="" dir="auto"'
    return f' lang="{code}" dir="{writing_direction(code) or "auto"}"'


def _xml(text):
    return html.escape(_FORBIDDEN_IN_XML.sub("\ufffd", text), quote=False)


def check_bilingual(path: str) -> None:
    """Raises `InputError` unless the suffix of a path names a format."""
    if _suffix(path) not in _FORMATS:
        rule = f"`bilingual` must be a file that ends with {', '.join(_FORMATS)}"
        raise InputError(f"{rule}. Received: {path!r:.80}.")


def _suffix(path):
    return os.path.splitext(path)[1].lower()


class BilingualFile:
    """Texts beside their translations, which become a file only when `save` is called.

    Args:
        path: Path of the file, whose suffix names the format.
        codes: Codes of the languages.
        draft: Open binary file without a name, which holds the content until then.
    """

    def __init__(self, path: str, codes: Codes, draft: IO[bytes]):
        self.path, self._draft = path, draft
        self._format = _FORMATS[_suffix(path)](path, codes)
        self._write(self._format.begin)

    def add(self, pairs: Iterable[tuple[str, str]], document: str | None = None) -> None:
        """Adds texts with their translations, and the name of their document if they have one."""
        heading = "" if document is None else self._format.heading(document)
        rows = (
            self._format.row(_in_one_line(source), _in_one_line(translation), document)
            for source, translation in pairs
        )
        self._write("".join([heading, *rows]))

    def save(self) -> None:
        """Writes the file, completely or not at all; nothing can be added after that."""
        self._write(self._format.end)
        with as_input_error(self.path), contextlib.ExitStack() as stack:
            self._draft.seek(0)
            target = self.path
            if is_replaced(target):
                target = os.fspath(stack.enter_context(replaced_file(os.path.realpath(target))))
            with open(target, "wb") as file:
                shutil.copyfileobj(self._draft, file)

    def _write(self, text):
        # A path may have bytes that are not UTF-8.
        with as_input_error(self.path), writing(self.path):
            self._draft.write(text.encode("utf-8", "backslashreplace"))


def _in_one_line(text):
    return one_line(text).replace("\t", " ").strip()


@contextlib.contextmanager
def bilingual_file(path: str, codes: Codes) -> Iterator[BilingualFile]:
    """Gives a `BilingualFile`; what is not saved is lost at the end.

    Raises:
        InputError: The file cannot be written there, or its format needs a language's code.
    """
    check_writable(path)
    with as_input_error(path):
        # Next to the file, whose disk has room for it, where `/tmp` may be small.
        draft = tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(path)))
    try:
        yield BilingualFile(path, codes, draft)
    finally:
        with contextlib.suppress(OSError):  # On a full disk; what was saved is elsewhere.
            draft.close()
