"""Reads translation memories: sentence pairs from TMX, the exchange format of translation tools.

Source: TMX 1.4b, https://www.gala-global.org/tmx-14b (units, variants and inline elements).
"""

import collections
import dataclasses
import functools
import html.entities
import os
import warnings
from collections.abc import Iterator
from typing import NamedTuple, get_args
from xml.parsers import expat

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import received
from keras_transformer.base.reading import open_decompressed
from keras_transformer.data.pairs import InlineTags
from keras_transformer.extras.corpora.inline_codes import Segment
from keras_transformer.extras.corpora.xml_text import FORBIDDEN, xml_blocks
from keras_transformer.text.language_codes import includes
from keras_transformer.text.languages import language_pair

# So that a broken file cannot fill the memory.
_MAX_SEGMENT, _MAX_UNIT = 1 << 20, 1 << 24  # characters
_VARIANT_SIZE = 1000  # characters that a variant counts as, besides its own
_MAX_DEPTH = 256  # of elements inside each other
_MAX_MARKUP = 1 << 22  # bytes of a tag or a comment
_MAX_LANGUAGES = 1000
_CHARACTERS = html.entities.html5  # `nbsp;` and the other names of characters
# The elements of a memory, and the element that each must be in.
_OUTER = {"tu": None, "tuv": "tu", "seg": "tuv"}


@dataclasses.dataclass(frozen=True)
class TranslationMemory:
    """The sentence pairs of a TMX file in one direction, read as a stream in constant memory.

    A unit gives a pair for each of its targets. Of several sources, such as en-GB and en-US for
    `en`, the unit's `srclang` is taken, otherwise the one with exactly the code, otherwise the
    first. Units that lack one of the languages are skipped.

    Args:
        path: Path of the file, plain or compressed as for `iterate_pairs`, in the encoding that its
            byte order mark or its XML declaration names.
        languages: Codes of the source and the target: `"en-de"`, or `"en-GB,pt-BR"`. A code
            without a region includes all regions in its script, and a language includes its other
            codes: `no` has `nb-NO`, `zh-Hans` has `zh-CN`.
        inline_tags: `"drop"`: formatting inside sentences is removed with its code; a line break
            becomes a space. `"keep"`: it stays, as the tags that it stands for, or as
            `<g id="1">…</g>` and `<x id="2"/>` where its code is not a tag. Then `&`, `<` and `>`
            of the text are `&amp;`, `&lt;` and `&gt;`. A field such as `%s` or `{name}` stays text.

    Raises:
        InputError: `languages` are not two codes that differ. When the pairs are read: the file
            cannot be read, or is not well-formed XML. It has entities that are not the names of
            HTML's characters, or no pair in these languages. The message names the line.

    Warns:
        UserWarning: Units were skipped, because their texts have characters that XML forbids.
    """

    path: str | os.PathLike
    languages: str
    inline_tags: InlineTags = "drop"

    def __post_init__(self):
        codes = self._codes
        if any(map(includes, codes, reversed(codes))):
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
        return self.pairs()

    def pairs(self, lenient: bool = False) -> Iterator[tuple[str, str]]:
        """Yields pairs of a source and a target, each without tabs and line breaks.

        Args:
            lenient: Whether characters that XML forbids become U+FFFD; otherwise a unit with such
                characters in its pairs is skipped, and a warning tells the number of these units.
        """
        source, target = self._codes
        has_pairs, skipped, languages = False, 0, collections.Counter[str]()
        for unit in _Parser(self).units():
            pairs = list(unit.pairs(source, target))
            if any(FORBIDDEN in side for pair in pairs for side in pair):
                if not lenient:
                    skipped += 1
                    continue
                pairs = [
                    tuple(side.replace(FORBIDDEN, "\ufffd") for side in pair) for pair in pairs
                ]
            has_pairs = has_pairs or bool(pairs)
            yield from pairs
            if not has_pairs and len(languages) < _MAX_LANGUAGES:
                languages.update({variant.language for variant in unit.variants})
        reason = f"units with a character that XML forbids: {skipped}"
        if not has_pairs:
            names = ", ".join(received(language)[1:-1] for language, _ in languages.most_common(10))
            units = reason if skipped else f"units in {names or 'no language'}"
            rule = f"{self}: expected units with a text in {source} and one in {target}"
            raise InputError(f"{rule}. Received: {units}.")
        if skipped:
            warnings.warn(f"{self}: skipped {reason}.", stacklevel=2)  # once for all units


def _normalized(code):
    return code.strip().replace("_", "-").lower()


class _Variant(NamedTuple):
    language: str
    text: str


class _Unit(NamedTuple):
    source_language: str
    variants: list[_Variant]

    def pairs(self, source, target):
        sources = [variant for variant in self.variants if includes(source, variant.language)]
        if not sources:
            return
        preference = self.source_language, source
        best = min(sources, key=lambda variant: [variant.language != code for code in preference])
        for variant in self.variants:
            if includes(target, variant.language):
                yield best.text, variant.text


class _Parser:
    """Parses a file block by block, with handlers of expat's events."""

    def __init__(self, memory: TranslationMemory):
        self._path, self._keeps_tags = os.fspath(memory), memory.inline_tags == "keep"
        self._has_root, self._source_language = False, ""
        self._units: list[_Unit] = []
        self._open: list[str] = []  # elements of `_OUTER`
        self._depth = 0
        self._unit = _Unit("", [])  # that is open, or the last one; likewise the next two
        self._size = 0  # of the unit, without its open segment
        self._language = ""
        self._segment: Segment | None = None  # that is open
        parser = self._parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.UseForeignDTD(True)  # Unknown entities are skipped, also without a DOCTYPE.
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._add_text
        parser.EntityDeclHandler = self._check_declared_entity
        parser.SkippedEntityHandler = self._add_entity

    def units(self):
        """Yields the units in their order."""
        size = 0
        with open_decompressed(self._path) as file:
            for text in xml_blocks(file, self._path):
                block = text.encode("utf-8")
                self._parse(block)
                size += len(block)
                if size - self._parser.CurrentByteIndex > _MAX_MARKUP + len(block):
                    rule = f"expected tags and comments of at most {_MAX_MARKUP:,} bytes"
                    raise self._error(rule, "a longer one")
                yield from self._units
                self._units.clear()
            self._parse(b"", True)
            yield from self._units

    def _parse(self, block, is_last=False):
        try:
            self._parser.Parse(block, is_last)
        except expat.ExpatError as error:
            reason = f"{expat.ErrorString(error.code)} at column {error.offset + 1}"
            raise self._error("expected well-formed XML", reason, error.lineno) from None

    def _error(self, rule, reason, line=None):
        line = self._parser.CurrentLineNumber if line is None else line
        return InputError(f"{self._path}, line {line}: {rule}. Received: {reason}.")

    def _check_declared_entity(self, name, is_parameter, value, *_):
        if is_parameter or value is None or value != _CHARACTERS.get(f"{name};"):
            self._refuse_entity(name)

    def _add_entity(self, name, is_parameter):
        if is_parameter or f"{name};" not in _CHARACTERS:
            self._refuse_entity(name)
        self._add_text(_CHARACTERS[f"{name};"])

    def _refuse_entity(self, name):
        rule = "expected no entities, which could fill the memory or read other files"
        raise self._error(rule, f"&{name[:40]};")

    def _start(self, name, attributes):
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"expected elements at most {_MAX_DEPTH} deep", "deeper ones")
        name = _local_name(name)
        attributes = {_local_name(key): value for key, value in attributes.items()}
        if not self._has_root and name != "tmx":
            raise self._error("expected a translation memory, <tmx>", f"<{name[:40]}>")
        self._has_root = True
        if name in _OUTER:
            self._open_element(name, attributes)
        elif self._segment is not None:
            self._segment.start(name, attributes)
            self._check_size()
        elif name == "header":
            self._source_language = _normalized(attributes.get("srclang", ""))

    def _open_element(self, name, attributes):
        outer, expected = self._open[-1] if self._open else None, _OUTER[name]
        if outer != expected or self._segment is not None:
            place = f"inside <{expected}>" if expected else "outside of other units"
            reason = f"<{name}> inside <{outer}>" if outer else f"<{name}> outside of units"
            raise self._error(f"expected <{name}> {place}", reason)
        self._open.append(name)
        if name == "tu":
            source_language = attributes.get("srclang", self._source_language)
            self._unit, self._size = _Unit(_normalized(source_language), []), 0
        elif name == "tuv":
            code = attributes.get("lang")
            if not code:
                raise self._error("expected <tuv> with its language, xml:lang", "none")
            self._language = _normalized(code)
        else:
            self._segment = Segment(self._keeps_tags)

    def _end(self, name):
        self._depth -= 1
        name = _local_name(name)
        if name in _OUTER:
            self._open.pop()
            if name == "seg":
                self._unit.variants.append(_Variant(self._language, self._segment.text))
                self._size += self._segment.size + len(self._language) + _VARIANT_SIZE
                self._segment = None
                self._check_size()
            elif name == "tu":
                self._units.append(self._unit)
        elif self._segment is not None:
            self._segment.end()

    def _add_text(self, text):
        if self._segment is not None:
            self._segment.add(text)
            self._check_size()

    def _check_size(self):
        size = 0 if self._segment is None else self._segment.size
        if size > _MAX_SEGMENT:
            rule = f"expected a sentence of at most {_MAX_SEGMENT:,} characters"
            raise self._error(rule, "a longer one")
        if self._size + size > _MAX_UNIT:
            rule = f"expected a unit of at most {_MAX_UNIT:,} characters"
            raise self._error(rule, "a longer one")


@functools.lru_cache(maxsize=256)
def _local_name(name):
    """Returns a name as TMX 1.4 writes it: without a prefix, and in lower case."""
    return name.rpartition(":")[2].lower()
