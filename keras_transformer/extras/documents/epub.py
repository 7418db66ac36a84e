"""E-books in EPUB: an archive of pages in XHTML, all of whose other files stay."""

import bisect
import functools
import html
import io
import posixpath
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from keras_transformer.base.errors import InputError, first_line
from keras_transformer.extras.documents.document import Document, Settings, replaced
from keras_transformer.extras.documents.encoding import decode
from keras_transformer.extras.documents.html import (
    HtmlPage,
    declared_encoding,
    known_language,
    pairs_of_blocks,
)
from keras_transformer.text.elements import MarkupTag, find_tags
from keras_transformer.text.language_codes import primary_language

if TYPE_CHECKING:
    from keras_transformer.engine.translation import Translation

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_PACKAGE_TYPE = "application/oebps-package+xml"
_ENCRYPTED_FLAG = 1
_KINDS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # All that EPUB allows.
# Of all entries together: deflated, they may have a thousandth of it.
_MAX_BYTES = 1 << 27


class Epub(Document):
    """A book, of which pages and the labels of a table of contents are translated.

    Other entries keep their bytes. Each entry keeps its place in the archive, its name, date and
    kind of compression. No entry is written to a file of its own.
    """

    forced_options = {"markup": "html"}

    def __init__(self, content: bytes, settings: Settings):
        self._settings = settings
        self._infos, self._contents, self._comment = _read(content, settings.name)
        self._packages = [self._file(path) for path in self._package_paths()]
        self._pages = [kind(self._file(path), settings) for path, kind in self._listed()]
        self.texts = [text for page in self._pages for text in page.texts]

    def has_words(self, translations):
        pairs = zip(self.texts, translations, strict=True)
        return any(translation.text != text for text, translation in pairs)

    def pairs(self, translations, states):
        return pairs_of_blocks(translations, states)

    def written(self, translations: "Sequence[Translation]") -> bytes:
        """Returns the bytes of the book with the translations of `texts`."""
        contents, position = dict(self._contents), 0
        for page in self._pages:
            stop = position + len(page.texts)
            text = page.written(translations[position:stop])
            contents[page.file.path] = page.file.encoded(text)
            position = stop
        if language := known_language(self._settings.target_language):
            for package in self._packages:
                contents[package.path] = self._in_language(package, language)
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.comment = self._comment
            for info in self._infos:
                archive.writestr(info, contents[info.filename])
        return file.getvalue()

    def _file(self, path):
        if path not in self._contents:
            raise self._error(f"an EPUB with {path}", "an archive without it")
        return _File(path, self._contents[path], self._settings.name)

    def _error(self, expected, reason):
        return InputError(f"{self._settings.name}: expected {expected}. Received: {reason}.")

    def _package_paths(self):
        container = self._file(_CONTAINER)
        paths = [
            container.value(tag, "full-path")
            for tag in container.begin_tags("rootfile")
            if container.value(tag, "media-type") == _PACKAGE_TYPE
        ]
        if not paths:
            raise self._error(f"a package in {_CONTAINER}", "none")
        return dict.fromkeys(paths)

    def _listed(self):
        """Returns the path and class of each file of the packages that is translated."""
        classes = {}
        for package in self._packages:
            for tag in package.begin_tags("item"):
                kind = _CLASSES.get(package.value(tag, "media-type"))
                if kind is not None:
                    classes.setdefault(package.path_of(package.value(tag, "href")), kind)
        if missing := [path for path in classes if path not in self._contents]:
            rule = f"listed pages that the archive lacks: {len(missing)}, such as {missing[0]}"
            warnings.warn(f"{self._settings.name}: {rule:.200}", stacklevel=2)
        pages = [(path, kind) for path, kind in classes.items() if path in self._contents]
        if _ENCRYPTION in self._contents:  # Often only fonts are.
            file = self._file(_ENCRYPTION)
            tags = file.begin_tags("cipherreference")
            encrypted = {_normalized(file.value(tag, "uri")) for tag in tags}
            for path, _ in pages:
                if path in encrypted:
                    raise self._error("a book without DRM", f"{path}, which is encrypted")
        return pages

    def _in_language(self, package, language):
        """Returns the bytes of a package that names the language of the translation."""
        source, spans = primary_language(self._settings.source_language), []
        for start, stop in package.contents("language"):
            name = primary_language(package.text[start:stop])
            # The first one is the language of the book. Others may be those of quotations.
            if not spans or name is not None and name == source:
                spans.append((start, stop))
        return package.encoded(replaced(package.text, spans, [language] * len(spans)))


class _File:
    """A file of XML in the archive.

    Its tags are found as those of a page are. So no declaration of an entity or a DTD has an
    effect, and the file cannot grow or name other files.
    """

    def __init__(self, path: str, content: bytes, book: str):
        self.path = path
        self.text, encoding = decode(content, f"{book}, {path}", declared_encoding)
        self.encoded = encoding.encode

    @functools.cached_property
    def _tags(self):
        return find_tags(self.text)

    def begin_tags(self, name: str) -> Iterator[MarkupTag]:
        """Yields the first tags of elements of a name, in lower case and without its prefix."""
        for tag in self._tags:
            if tag.kind in ("begin", "single") and tag.name.rpartition(":")[2] == name:
                yield tag

    def value(self, tag: MarkupTag, name: str) -> str:
        """Returns the value of an attribute, "" without one."""
        return html.unescape(tag.attribute(self.text, name))

    def contents(self, name: str) -> list[tuple[int, int]]:
        """Returns the start and stop of the contents of elements of a name."""
        tags = self.begin_tags(name)
        return [(tag.stop, tag.partner.start) for tag in tags if tag.partner is not None]

    def path_of(self, address: str) -> str:
        """Returns the name of the entry of an address in the file; it is only looked up."""
        return _normalized(address, posixpath.dirname(self.path))


def _normalized(address, folder=""):
    return posixpath.normpath(posixpath.join(folder, unquote(address)))


class _Page(HtmlPage):
    """A page in XHTML, such as a chapter or the table of contents of EPUB 3."""

    def __init__(self, file: _File, settings: Settings):
        super().__init__(file.text, settings)
        self.file = file


class _Labels(Document):
    """Labels of a table of contents in NCX; the names of the book and its authors stay."""

    def __init__(self, file: _File, settings: Settings):
        self.file = file
        labels, self._spans = file.contents("navlabel"), []
        starts = [start for start, _ in labels]
        for start, stop in file.contents("text"):
            place = bisect.bisect_right(starts, start) - 1  # of the label that began last
            if place >= 0 and stop <= labels[place][1]:
                self._spans.append((start, stop))
        self.texts = [file.text[start:stop] for start, stop in self._spans]

    def written(self, translations):
        texts = [translation.text for translation in translations]
        return replaced(self.file.text, self._spans, texts)


_CLASSES = {"application/xhtml+xml": _Page, "application/x-dtbncx+xml": _Labels}


def _read(content, name):
    """Returns the entries of an archive, their contents by name, and the archive's comment."""
    rule = f"{name}: expected an EPUB, which is a zip archive"
    contents, size_left = {}, _MAX_BYTES
    try:
        with zipfile.ZipFile(io.BytesIO(content), metadata_encoding="utf-8") as archive:
            for info in archive.infolist():
                if problem := _problem(info, contents):
                    raise InputError(f"{rule}. Received: {info.filename!r:.200}, {problem}.")
                with archive.open(info) as file:
                    # A header may say a smaller size.
                    contents[info.filename] = file.read(size_left + 1)
                size_left -= len(contents[info.filename])
                if size_left < 0:
                    limit = f"entries of at most {_MAX_BYTES >> 20} MiB together"
                    raise InputError(f"{name}: expected {limit}. Received: more.")
            return archive.infolist(), contents, archive.comment
    except InputError:
        raise
    except Exception as error:  # Zipfile raises many kinds.
        raise InputError(f"{rule}. Received: {first_line(error):.200}.") from None


def _problem(info, contents):
    if info.filename in contents:
        return "twice"
    if info.flag_bits & _ENCRYPTED_FLAG:
        return "encrypted"
    return "" if info.compress_type in _KINDS else "neither stored nor deflated"
