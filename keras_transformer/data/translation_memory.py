"""Reads translation memories: sentence pairs from TMX, the exchange format of translation tools.

Source: TMX 1.4b, https://www.gala-global.org/tmx-14b (units, variants and inline elements).
"""

import collections
import dataclasses
import html
import os
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args
from xml.parsers import expat

from keras_transformer.errors import InputError
from keras_transformer.reading import one_line, open_decompressed, without_compression
from keras_transformer.text.languages import language_pair

InlineTags = Literal["drop", "keep"]

_BLOCK = 1 << 16  # bytes that are parsed at once
_MAX_CHARACTERS = 1 << 20  # of a segment, so that a broken file cannot fill the memory
_CODES = {"bpt", "ept", "it", "ph", "ut"}  # elements whose content is code of another format
_BREAK = re.compile(r"\s*[\t\r\n]\s*")  # with the indentation of the next line
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")


@dataclasses.dataclass(frozen=True)
class TranslationMemory:
    """The sentence pairs of a TMX file in one direction, read as a stream in constant memory.

    A unit gives a pair for each of its targets. Of several sources, such as en-GB and en-US for
    `en`, the unit's `srclang` is taken, otherwise the one with exactly the code, otherwise the
    first. Units that lack one of the languages are skipped.

    Args:
        path: Path of the file, plain or compressed as for `iterate_pairs`, in any encoding that
            its XML declaration or byte order mark names.
        languages: Codes of the source and the target: `"en-de"`, or `"en-GB,pt-BR"`. A code
            without a region includes all regions.
        inline_tags: `"drop"`: formatting inside sentences is removed with its code. `"keep"`: it
            stays, as the tags that it stands for, or as `<g id="1">…</g>` and `<x id="2"/>` where
            its code is not a tag. Then `&`, `<` and `>` of the text are `&amp;`, `&lt;` and `&gt;`.

    Raises:
        InputError: `languages` are not two codes that differ. When the pairs are read: the file
            cannot be read, is not well-formed XML (the message names the line), declares entities,
            or has no pair in these languages.
    """

    path: str | os.PathLike
    languages: str
    inline_tags: InlineTags = "drop"

    def __post_init__(self):
        codes = self._codes
        if any(map(_includes, codes, reversed(codes))):
            rule = "`languages` must be two codes that differ, such as en-de or en-GB,pt-BR"
            raise InputError(f"{rule}. Received: {self.languages!r}.")
        if self.inline_tags not in get_args(InlineTags):
            rule = f"`inline_tags` must be one of {', '.join(get_args(InlineTags))}"
            raise InputError(f"{rule}. Received: {self.inline_tags!r}.")

    @property
    def _codes(self):
        return [_normalized(code) for code in language_pair(self.languages)]

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __str__(self) -> str:
        return os.fspath(self.path)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yields pairs of a source and a target, each without tabs and line breaks."""
        source, target = self._codes
        has_pairs, languages = False, collections.Counter[str]()
        for unit in _Parser(self).units():
            for pair in unit.pairs(source, target):
                has_pairs = True
                yield pair
            if not has_pairs:
                languages.update({variant.language for variant in unit.variants})
        if not has_pairs:
            names = (f"{language:.35}" for language, _ in languages.most_common(10))
            rule = f"{self}: expected units with a text in {source} and one in {target}"
            raise InputError(f"{rule}. Received: units in {', '.join(names) or 'no language'}.")


def is_memory(path: str) -> bool:
    """Returns whether a path names a translation memory, plain or compressed."""
    return without_compression(path).endswith(".tmx")


def pair_file(
    path: str, languages: str | None = None, inline_tags: InlineTags | None = None
) -> str | TranslationMemory:
    """Returns the translation memory at a path that ends in .tmx, and any other path as it is.

    Raises:
        InputError: A memory lacks `languages`, or another file has options of a memory.
    """
    if not is_memory(path):
        if languages is not None or inline_tags is not None:
            rule = "`languages` and `inline_tags` belong to a translation memory, *.tmx"
            raise InputError(f"{rule}. Received: {path}.")
        return path
    if languages is None:
        raise InputError(f"{path}: a translation memory needs `languages`, such as en-de.")
    return TranslationMemory(path, languages, inline_tags or "drop")


def _normalized(code):
    return code.strip().replace("_", "-").lower()


def _includes(code, other_code):
    return f"{other_code}-".startswith(f"{code}-")


class _Variant(NamedTuple):
    language: str
    text: str


class _Unit(NamedTuple):
    source_language: str
    variants: list[_Variant]

    def pairs(self, source, target):
        sources = [variant for variant in self.variants if _includes(source, variant.language)]
        if not sources:
            return
        preference = self.source_language, source
        best = min(sources, key=lambda variant: [variant.language != code for code in preference])
        for variant in self.variants:
            if _includes(target, variant.language):
                yield best.text, variant.text


@dataclasses.dataclass
class _Code:
    """An inline element whose content is code of another format, while it is open."""

    name: str
    number: str
    depth: int = 0  # of the elements inside it that are open
    pieces: list[str] = dataclasses.field(default_factory=list)

    def as_markup(self):
        code = "".join(self.pieces).strip()
        if _TAG.fullmatch(code):
            return code
        number = html.escape(self.number)
        paired = {"bpt": f'<g id="{number}">', "ept": "</g>"}
        return paired.get(self.name, f'<x id="{number}"/>')


class _Parser:
    """Parses a file block by block, with handlers of expat's events."""

    def __init__(self, memory: TranslationMemory):
        self._path, self._keeps_tags = os.fspath(memory), memory.inline_tags == "keep"
        self._has_root, self._source_language = False, ""
        self._units: list[_Unit] = []
        self._unit: _Unit | None = None  # that is open; likewise the next four
        self._language = ""
        self._segment: list[str] | None = None
        self._size = 0  # of the segment in characters
        self._code: _Code | None = None
        parser = self._parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._add_text
        parser.EntityDeclHandler = self._refuse_entity
        parser.SkippedEntityHandler = self._refuse_entity

    def units(self):
        """Yields the units in their order."""
        with open_decompressed(self._path) as file:
            is_last = False
            while not is_last:
                block = file.read(_BLOCK)
                is_last = not block
                self._parse(block, is_last)
                yield from self._units
                self._units.clear()

    def _parse(self, block, is_last):
        try:
            self._parser.Parse(block, is_last)
        except expat.ExpatError as error:
            reason = f"{expat.ErrorString(error.code)} at column {error.offset + 1}"
            raise self._error("expected well-formed XML", reason, error.lineno) from None
        except InputError:  # a ValueError, of a handler
            raise
        except (LookupError, ValueError) as error:
            raise self._error("expected an encoding such as UTF-8", f"{error}") from None

    def _error(self, rule, received, line=None):
        line = self._parser.CurrentLineNumber if line is None else line
        return InputError(f"{self._path}, line {line}: {rule}. Received: {received}.")

    def _refuse_entity(self, name, *_):
        rule = "expected no entities, which could fill the memory or read other files"
        raise self._error(rule, f"&{name:.80};")

    def _start(self, name, attributes):
        if not self._has_root and name != "tmx":
            raise self._error("expected a translation memory, <tmx>", f"<{name:.80}>")
        self._has_root = True
        if self._code is not None:
            self._code.depth += 1
        elif self._segment is not None:
            self._start_inline(name, attributes)
        elif name == "header":
            self._source_language = _normalized(attributes.get("srclang", ""))
        elif name == "tu":
            source_language = attributes.get("srclang", self._source_language)
            self._unit = _Unit(_normalized(source_language), [])
        elif name == "tuv":
            code = attributes.get("xml:lang", attributes.get("lang"))
            if not code:
                raise self._error("expected <tuv> with its language, xml:lang", "none")
            self._language = _normalized(code)
        elif name == "seg" and self._unit is not None:
            self._segment, self._size = [], 0

    def _start_inline(self, name, attributes):
        number = attributes.get("i", attributes.get("x", ""))
        if name in _CODES:
            self._code = _Code(name, number)
        elif self._keeps_tags:  # <hi>, which has text
            self._segment.append(f'<g id="{html.escape(number)}">')

    def _end(self, name):
        if self._code is not None and self._code.depth:
            self._code.depth -= 1
        elif self._code is not None:
            if self._keeps_tags:
                self._segment.append(self._code.as_markup())
            self._code = None
        elif self._segment is not None and name == "seg":
            text = one_line(_BREAK.sub(" ", "".join(self._segment))).strip()
            self._unit.variants.append(_Variant(self._language, text))
            self._segment = None
        elif self._segment is not None:
            self._segment.extend(["</g>"] if self._keeps_tags else [])
        elif name == "tu":
            self._units.append(self._unit)
            self._unit = None

    def _add_text(self, text):
        if self._segment is None:
            return
        self._size += len(text)
        if self._size > _MAX_CHARACTERS:
            rule = f"expected a sentence of at most {_MAX_CHARACTERS:,} characters"
            raise self._error(rule, "a longer one")
        if self._code is not None:
            self._code.pieces.append(text)
        else:
            self._segment.append(html.escape(text, quote=False) if self._keeps_tags else text)
