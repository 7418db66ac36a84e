"""Markup around a translation: taken out of the source, put back into the translation.

URLs, e-mail addresses and fields become placeholders, tokens that the model copies. Tags are left
out; in the translation a tag encloses the words that attended to the words it encloses.
Whatever the model writes, every tag and placeholder of the source is in the result once.
"""

import dataclasses
import html
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import regex

from keras_transformer.text.placeholders import (
    ITEM,
    ITEM_OR_NUMBER,
    TAG,
    Placeholders,
    symbol,
)
from keras_transformer.text.splitting import UNIT

Markup = Literal["placeholders", "html"]
MARKUP = ("placeholders", "html")

_OPAQUE = r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<![A-Za-z][^>]*>|<\?.*?\?>"
_OPAQUE_NAMES = ("script", "style")
_OPAQUE += "".join(rf"|<{name}\b[^>]*>.*?</{name}\s*>" for name in _OPAQUE_NAMES)
_TAG = re.compile(f"(?is:{_OPAQUE})|(?:{TAG})")
_EMPTY = set("area base br col embed hr img input link meta source track wbr".split())
# Tags between which words are no parts of one word.
_BLOCKS = set("br dd div dl dt h1 h2 h3 h4 h5 h6 hr img li ol option p table td th tr ul".split())
_SYMBOL = regex.compile(r"<ph_\d+>")
_UNIT = regex.compile(rf"{_SYMBOL.pattern}|{UNIT}", regex.V1)
_SPECIAL = ("<s>", "</s>", "<pad>")


class Aligned(Protocol):
    """The fields of an `engine.Translation` that markup is put back with."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def text(self) -> str: ...
    @property
    def tokens(self) -> tuple[str, ...]: ...
    @property
    def source_tokens(self) -> tuple[str, ...]: ...
    @property
    def alignment(self) -> np.ndarray | None: ...
    @property
    def alternatives(self) -> tuple[Any, ...]: ...
    @property
    def parts(self) -> tuple[Any, ...]: ...


_Aligned = TypeVar("_Aligned", bound=Aligned)


@dataclasses.dataclass
class _Mark:
    """A tag, or an item, and its place: characters of the text before it, spaces not counted."""

    begin: str
    start: int
    space_before: bool
    end: str = ""
    stop: int = 0
    space_after: bool = False
    number: int = 0  # of a placeholder
    children: list["_Mark"] = dataclasses.field(default_factory=list)


class Protected(NamedTuple):
    """A source without markup, and the markup: marks, and the texts of the placeholders."""

    text: str
    marks: list[_Mark]
    literals: list[str]
    is_html: bool


class _Unit(NamedTuple):
    """A word, a sign or a placeholder of a translation."""

    text: str
    has_space: bool  # before it
    attention: np.ndarray  # to the source's tokens, sums to 1


class _Writer:
    """Takes a source apart: the text, and a tree of marks."""

    def __init__(self, placeholders, is_html):
        self.text, self.count, self.literals = "", 0, []
        self.is_html, self.left = is_html, placeholders.size
        self.pattern = ITEM_OR_NUMBER if placeholders.numbers else ITEM
        self.symbols: set[int] = set()  # where they begin
        self.marks: list[_Mark] = []
        self.open: list[tuple[str, _Mark, list[_Mark]]] = []

    def add(self, text):
        self.text += text
        self.count += len("".join(text.split()))

    def passage(self, text):
        """Adds text with its items, which character references would hide or lengthen."""
        text, place = html.unescape(text) if self.is_html else text, 0
        for match in self.pattern.finditer(text):
            self.add(text[place : match.start()])
            place = match.end()
            self.item(match[0], text[place : place + 1].isspace())
        self.add(text[place:])

    def item(self, text, space_after):
        literal = html.escape(text, quote=False) if self.is_html else text
        mark = self._mark(literal)
        mark.space_after = space_after
        if len(self.literals) < self.left:
            self.literals.append(literal)
            mark.number = len(self.literals)
            self.symbols.add(len(self.text))
            self.add(symbol(mark.number))
        mark.stop = self.count

    def tag(self, literal, space_after):
        (name,) = re.match(r"<[/!?]?([^\s/>]*)", literal.lower()).groups()
        if name in _BLOCKS and self.text and not self.text[-1].isspace():
            self.add(" ")
        is_end = literal.startswith("</")
        if is_end and name in [each for each, _, _ in self.open]:
            while self.open[-1][0] != name:
                self._leave_open()
            _, mark, self.marks = self.open.pop()
            mark.end, mark.stop, mark.space_after = literal, self.count, space_after
            return
        mark = self._mark(literal)
        mark.stop, mark.space_after = self.count, space_after
        is_whole = literal[1] in "!?" or literal.endswith("/>") or name in (*_EMPTY, *_OPAQUE_NAMES)
        if not (is_end or is_whole):
            self.open.append((name, mark, self.marks))
            self.marks = mark.children

    def _mark(self, literal):
        has_space = not self.text or self.text[-1].isspace()
        self.marks.append(_Mark(literal, self.count, has_space))
        return self.marks[-1]

    def _leave_open(self):
        """Makes the last open tag, without an end, a mark by itself, its children its siblings."""
        _, mark, outside = self.open.pop()
        mark.stop = mark.start
        outside += mark.children
        mark.children, self.marks = [], outside

    def close(self) -> str:
        """Leaves open what has no end; returns the text, in which only symbols look like some."""
        while self.open:
            self._leave_open()

        def escaped(match):
            return match[0] if match.start() in self.symbols else match[0].replace("_", "-")

        # What tags have stood in: of as many characters, so that places stay.
        return _SYMBOL.sub(escaped, self.text)


def protect(source: str, markup: Markup, placeholders: Placeholders) -> Protected:
    """Takes markup out of a source.

    Args:
        source: Text; of `"html"` with tags and character references.
        markup: `"placeholders"`: URLs, e-mail addresses and fields; `"html"`: tags as well.
        placeholders: Placeholders of the vocabulary. Further items are left out of the text, and
            stand in the translation where the words around them are.
    """
    is_html, place = markup == "html", 0
    writer = _Writer(placeholders, is_html)
    for match in _TAG.finditer(source) if is_html else ():
        writer.passage(source[place : match.start()])
        place = match.end()
        writer.tag(match[0], source[place : place + 1].isspace())
    writer.passage(source[place:])
    return Protected(writer.close(), writer.marks, writer.literals, is_html)


def restore(
    translation: _Aligned,
    protected: Protected,
    read: Sequence[int] | np.ndarray | None = None,
    tag: str | None = None,
) -> _Aligned:
    """Puts the markup of its source into a translation, and into its alternatives.

    Args:
        translation: Translation of `protected.text`; without an alignment words are taken to be in
            the order of the source.
        protected: The source.
        read: Places in `protected.text` of the characters that the model has read, -1 for those
            of others, spaces not counted; by default it has read only the text.
        tag: What the model has read before the text, and before each part of one that was split.
    """
    alternatives = tuple(restore(each, protected, read, tag) for each in translation.alternatives)
    text = _Restorer(translation, protected, read, tag).text()
    return dataclasses.replace(translation, text=text, alternatives=alternatives)


class _Restorer:
    def __init__(self, translation, protected, read, tag):
        self._protected = protected
        size = len("".join(protected.text.split()))
        places = np.arange(size) if read is None else np.asarray(read, int)
        weights, target, self._middles = _attention(translation, places, tag)
        self._units: list[_Unit] = []
        self._placed: set[int] = set()
        items = {mark.number: mark for mark in _every(protected.marks) if mark.number}
        end, text = 0, translation.text
        total = max(len("".join(text.split())), 1)
        for match in _UNIT.finditer(text):
            begin, end = end, end + len(match[0])
            has_space = text[max(match.start() - 1, 0)].isspace()
            row = weights[_between(target, begin / total, end / total)].sum(axis=0)
            if match[0].startswith("<ph_"):
                number = int(match[0][4:-1])
                if number not in items or number in self._placed:
                    continue  # The model has made it up, or written it twice.
                self._placed.add(number)
                row = self._inside(items[number])
            self._units.append(_Unit(match[0], has_space, row / max(row.sum(), 1e-9)))
        rows = [unit.attention for unit in self._units]
        self._rows = np.array(rows).reshape(len(rows), len(self._middles))

    def _inside(self, mark):
        return ((self._middles >= mark.start) & (self._middles < mark.stop)).astype(float)

    def text(self) -> str:
        """The translation with its markup."""
        self._out: list[str] = []
        self._spaced, self._owes_space = 0, False  # units whose space is written
        # A stack: marks may be nested more deeply than functions may.
        writing = [self._write(self._protected.marks, 0, len(self._units))]
        while writing:
            if (inside := next(writing[-1], None)) is None:
                writing.pop()
            else:
                writing.append(self._write(*inside))
        return "".join(self._out)

    def _write(self, marks, left, right):
        """Writes sibling marks and the units around them; yields what to write inside a mark."""
        place = left
        for start, stop, mark in self._places(marks, left, right):
            self._words(place, start)
            self._space(start, mark.space_before and start == stop)
            self._out.append(mark.begin)
            yield mark.children, start, stop
            self._out.append(mark.end)
            self._owes_space = start == stop and mark.space_after
            place = stop
        self._words(place, right)

    def _words(self, start, stop):
        for place in range(start, stop):
            self._space(place)
            text = self._units[place].text
            if text.startswith("<ph_"):
                text = self._protected.literals[int(text[4:-1]) - 1]
            elif self._protected.is_html:
                text = html.escape(text, quote=False)
            self._out.append(text)

    def _space(self, place, is_wanted=False):
        """Writes the space before a unit, once, also before the tags in front of it."""
        if place >= self._spaced and place < len(self._units):
            is_wanted |= self._units[place].has_space
            self._spaced = place + 1
        if (is_wanted or self._owes_space) and self._out and not self._out[-1].endswith(" "):
            self._out.append(" ")
        self._owes_space = False

    def _places(self, marks, left, right):
        """Ranges of units of sibling marks, which do not overlap, in their order."""
        ranges, free = [], [(left, right)]
        for order, mark in enumerate(marks):
            if mark.number in self._placed:
                continue
            if mark.end and mark.stop > mark.start and (best := self._best_range(mark, free)):
                ranges.append((*best, order))
                ((begin, end),) = [span for span in free if span[0] <= best[0] < span[1]]
                free.remove((begin, end))
                free += [span for span in ((begin, best[0]), (best[1], end)) if span[0] < span[1]]
        inside = {place for start, stop, _ in ranges for place in range(start + 1, stop)}
        taken = {order for _, _, order in ranges}
        for order, mark in enumerate(marks):
            if order not in taken and mark.number not in self._placed:
                place = self._best_place(mark, left, right, inside)
                ranges.append((place, place, order))
        return [(start, stop, marks[order]) for start, stop, order in sorted(ranges)]

    def _best_range(self, mark, free):
        """The units in a row that attend to the words in a mark more than to others, or None."""
        gains = self._rows @ self._inside(mark) - 0.5
        best, highest = None, 0.0
        for left, right in free:
            total, start = 0.0, left
            for place in range(left, right):
                if total <= 0:
                    total, start = 0.0, place
                total += gains[place]
                if total > highest + 1e-9:
                    best, highest = (start, place + 1), total
        return best

    def _best_place(self, mark, left, right, inside):
        """The place that most agrees with the words before and after a mark."""
        if not len(self._middles):
            return right
        before = self._rows[left:right] @ (self._middles < mark.start) - 0.5
        gains = np.concatenate([[0.0], np.cumsum(before)])
        gains[[place - left for place in inside]] = -np.inf
        return left + int(np.argmax(gains))


def _every(marks):
    left = list(marks)
    while left:
        yield (mark := left.pop())
        left += mark.children


def _attention(translation: Aligned, places: np.ndarray, tag: str | None) -> tuple[Any, Any, Any]:
    """Attention `(target tokens, source tokens)`, and where their middles are.

    Those of the target as shares of its characters, those of the source in characters of the text,
    whose `places` are those of the characters that the model has read.
    """
    parts = translation.parts or (translation,)
    has_alignment = all(part.alignment is not None for part in parts)
    tokens = [[x for x in part.tokens if x not in _SPECIAL] for part in parts]
    read_tokens = [_read(part.source_tokens, tag) for part in parts]
    sources = [
        [each.source_tokens[i] for i in read] for each, read in zip(parts, read_tokens, strict=True)
    ]
    target, source = _middles(sum(tokens, [])), _middles(sum(sources, []))
    if not has_alignment or not len(target) or not len(source):
        # One place for each character, in order.
        size = int(places.max(initial=-1)) + 1
        middles = (np.arange(size) + 0.5) / max(size, 1)
        return np.eye(size), middles, middles * size
    weights = np.zeros((len(target), len(source)))
    row = column = 0
    for part, each, other, read in zip(parts, tokens, sources, read_tokens, strict=True):
        places_of_words = [i for i, x in enumerate(part.tokens) if x not in _SPECIAL]
        block = np.asarray(part.alignment, float)[np.ix_(places_of_words, read)]
        weights[row : row + len(each), column : column + len(other)] = block
        row, column = row + len(each), column + len(other)
    source = places[np.minimum(source * len(places), len(places) - 1).astype(int)]
    return weights[:, source >= 0], target, source[source >= 0] + 0.5


def _read(tokens: Sequence[str], tag: str | None) -> list[int]:
    """Places of the tokens of a text, without special ones and without the tag in front of it."""
    places = [i for i, x in enumerate(tokens) if x not in _SPECIAL]
    names = [tokens[i].replace("\u2581", "") for i in places[:2]]  # a space may be by itself
    return places[names.index(f"<{tag}>") + 1 :] if f"<{tag}>" in names else places


def _middles(tokens: Sequence[str]) -> np.ndarray:
    """The middle of each token, as a share of all characters."""
    sizes = [1 if re.fullmatch("<0x..>", x) else len(x.replace("\u2581", "")) for x in tokens]
    ends = np.cumsum(sizes)
    return (ends - np.array(sizes) / 2) / max(ends[-1] if len(ends) else 0, 1)


def _between(middles, begin, end):
    """Places of the tokens of a unit: those in the middle of it, or the nearest one."""
    inside = np.flatnonzero((middles >= begin) & (middles <= end))
    if len(inside) or not len(middles):
        return inside if len(inside) else slice(0, 0)
    return [int(np.argmin(np.abs(middles - (begin + end) / 2)))]
