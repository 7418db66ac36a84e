"""Markup of a text: removed from the source, and put back into the translation.

URLs, e-mail addresses and fields become placeholders, tokens that the model copies. Tags are
removed; in the translation a tag encloses the words that attended to the words in the tag. The
result contains every tag and placeholder of the source once, whatever the model writes.
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
from keras_transformer.text.splitting import LETTER, UNIT

Markup = Literal["placeholders", "html"]
MARKUP = ("placeholders", "html")

_OPAQUE = r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<![A-Za-z][^>]*>|<\?.*?\?>"
_OPAQUE_NAMES = ("script", "style")
_OPAQUE += "".join(rf"|<{name}\b[^>]*>.*?</{name}\s*>" for name in _OPAQUE_NAMES)
_TAG = re.compile(f"(?is:{_OPAQUE})|(?:{TAG})")
_EMPTY = set("area base br col embed hr img input link meta source track wbr".split())
# Tags that separate words.
_BLOCKS = set("br dd div dl dt h1 h2 h3 h4 h5 h6 hr img li ol option p table td th tr ul".split())
_SYMBOL = regex.compile(r"<ph_\d+>")
_UNIT = regex.compile(rf"{_SYMBOL.pattern}|{UNIT}", regex.V1)
_LETTER = regex.compile(LETTER, regex.V1)
_SPECIAL = ("<s>", "</s>", "<pad>")


class Aligned(Protocol):
    """The fields of an `engine.Translation` that `restore` needs."""

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
    """A tag or an item, and its place: the number of characters before it, without spaces.

    A space of None is written only between an item and a word. Such an item touches a sign or the
    end of the source, and must not join the next word of the translation.
    """

    begin: str
    start: int
    space_before: bool | None
    end: str = ""
    stop: int = 0
    space_after: bool | None = False
    number: int = 0  # of a placeholder
    children: list["_Mark"] = dataclasses.field(default_factory=list)


class Protected(NamedTuple):
    """A source without markup, with its marks and the texts of its placeholders."""

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
    """Separates a source into its text and a tree of marks."""

    def __init__(self, placeholders, is_html):
        self.text, self.count, self.literals = "", 0, []
        self.is_html, self.symbols_left = is_html, placeholders.size
        self.pattern = ITEM_OR_NUMBER if placeholders.numbers else ITEM
        self.symbols: set[int] = set()  # where they begin
        self.marks: list[_Mark] = []
        self.open: list[tuple[str, _Mark, list[_Mark]]] = []

    def add(self, text):
        self.text += text
        self.count += len("".join(text.split()))

    def passage(self, text):
        """Adds text with its items; first replaces character references, which could hide items."""
        text, place = html.unescape(text) if self.is_html else text, 0
        for match in self.pattern.finditer(text):
            self.add(text[place : match.start()])
            place = match.end()
            self.item(match[0], text[place : place + 1])
        self.add(text[place:])

    def item(self, text, following):
        literal = html.escape(text, quote=False) if self.is_html else text
        mark = self._mark(literal)
        if not (mark.space_before or _LETTER.match(self.text[-1])):
            mark.space_before = None
        mark.space_after = following.isspace() or (False if _LETTER.match(following) else None)
        if len(self.literals) < self.symbols_left:
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
        if is_end and name in [name_of_tag for name_of_tag, _, _ in self.open]:
            while self.open[-1][0] != name:
                self._leave_open()
            _, mark, self.marks = self.open.pop()
            mark.end, mark.stop, mark.space_after = literal, self.count, space_after
            return
        mark = self._mark(literal)
        mark.stop, mark.space_after = self.count, space_after
        is_complete = (
            literal[1] in "!?" or literal.endswith("/>") or name in (*_EMPTY, *_OPAQUE_NAMES)
        )
        if not (is_end or is_complete):
            self.open.append((name, mark, self.marks))
            self.marks = mark.children

    def _mark(self, literal):
        has_space = not self.text or self.text[-1].isspace()
        self.marks.append(_Mark(literal, self.count, has_space))
        return self.marks[-1]

    def _leave_open(self):
        """Turns the last open tag without an end to a separate mark, its children to siblings."""
        _, mark, outside = self.open.pop()
        mark.stop = mark.start
        outside += mark.children
        mark.children, self.marks = [], outside

    def close(self) -> str:
        """Ends the source; returns the text, in which only placeholders look like placeholders."""
        while self.open:
            self._leave_open()

        def escaped(match):
            return match[0] if match.start() in self.symbols else match[0].replace("_", "-")

        # Replaced by a text of the same length, so that places stay the same.
        return _SYMBOL.sub(escaped, self.text)


def protect(source: str, markup: Markup, placeholders: Placeholders) -> Protected:
    """Removes markup from a source.

    Args:
        source: Text; with tags and character references for `"html"`.
        markup: `"placeholders"`: URLs, e-mail addresses and fields; `"html"`: tags too.
        placeholders: Placeholders of the vocabulary. Further items are removed from the text, and
            put back where the words around them are in the translation.
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
    origins: Sequence[int] | np.ndarray | None = None,
    tag: str | None = None,
) -> _Aligned:
    """Puts the markup of a source into its translation, and into the alternatives.

    Args:
        translation: Translation of `protected.text`. Without an alignment, words count as in the
            order of the source.
        protected: The source.
        origins: Places in `protected.text` of the characters that the model has read, without
            spaces, -1 for added characters; by default it has read only the text.
        tag: Token of the tag that the model has read before the text, and before each part of a
            split text.
    """
    alternatives = tuple(
        restore(alternative, protected, origins, tag) for alternative in translation.alternatives
    )
    text = _Restorer(translation, protected, origins, tag).text()
    return dataclasses.replace(translation, text=text, alternatives=alternatives)


def _is_space(space, text):
    """Returns whether a mark has a space next to a text that follows, or to a last character."""
    return space or (space is None and bool(_LETTER.match(text)))


class _Restorer:
    def __init__(self, translation, protected, origins, tag):
        self._protected = protected
        size = len("".join(protected.text.split()))
        places = np.arange(size) if origins is None else np.asarray(origins, int)
        weights, target, self._middles = _attention(translation, places, tag)
        self._units: list[_Unit] = []
        self._placed: set[int] = set()
        items = {mark.number: mark for mark in _all_marks(protected.marks) if mark.number}
        end, text = 0, translation.text
        total = max(len("".join(text.split())), 1)
        for match in _UNIT.finditer(text):
            begin, end = end, end + len(match[0])
            has_space = text[max(match.start() - 1, 0)].isspace()
            row = weights[_between(target, begin / total, end / total)].sum(axis=0)
            if match[0].startswith("<ph_"):
                number = int(match[0][4:-1])
                if number not in items or number in self._placed:
                    continue  # The model has invented it, or written it twice.
                self._placed.add(number)
                row = self._inside(items[number])
            self._units.append(_Unit(match[0], has_space, row / max(row.sum(), 1e-9)))
        rows = [unit.attention for unit in self._units]
        self._rows = np.array(rows).reshape(len(rows), len(self._middles))

    def _inside(self, mark):
        return ((self._middles >= mark.start) & (self._middles < mark.stop)).astype(float)

    def text(self) -> str:
        """Returns the translation with its markup."""
        self._out: list[str] = []
        self._spaced, self._owes_space = 0, False  # number of units whose space is written
        # A stack, because marks may be nested more deeply than function calls.
        writers = [self._write(self._protected.marks, 0, len(self._units))]
        while writers:
            if (arguments := next(writers[-1], None)) is None:
                writers.pop()
            else:
                writers.append(self._write(*arguments))
        return "".join(self._out)

    def _write(self, marks, lower, upper):
        """Writes sibling marks and the units around them; yields arguments of nested calls."""
        place = lower
        for start, stop, mark in self._places(marks, lower, upper):
            self._words(place, start)
            text_before = self._out[-1][-1:] if self._out else ""
            self._space(start, start == stop and _is_space(mark.space_before, text_before))
            self._out.append(mark.begin)
            yield mark.children, start, stop
            self._out.append(mark.end)
            text_after = self._units[stop].text if stop < len(self._units) else ""
            self._owes_space = start == stop and _is_space(mark.space_after, text_after)
            place = stop
        self._words(place, upper)

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
        """Writes the space before a unit, once, and before the tags in front of it."""
        if place >= self._spaced and place < len(self._units):
            is_wanted |= self._units[place].has_space
            self._spaced = place + 1
        if (is_wanted or self._owes_space) and self._out and not self._out[-1].endswith(" "):
            self._out.append(" ")
        self._owes_space = False

    def _places(self, marks, lower, upper):
        """Returns the ranges of units of sibling marks, in order, without overlaps."""
        ranges, free = [], [(lower, upper)]
        for order, mark in enumerate(marks):
            if mark.number in self._placed:
                continue
            if mark.end and mark.stop > mark.start and (best := self._best_range(mark, free)):
                ranges.append((*best, order))
                ((begin, end),) = [span for span in free if span[0] <= best[0] < span[1]]
                free.remove((begin, end))
                free += [span for span in ((begin, best[0]), (best[1], end)) if span[0] < span[1]]
        inside = {place for start, stop, _ in ranges for place in range(start + 1, stop)}
        placed_orders = {order for _, _, order in ranges}
        for order, mark in enumerate(marks):
            if order not in placed_orders and mark.number not in self._placed:
                place = self._best_place(mark, lower, upper, inside)
                ranges.append((place, place, order))
        return [(start, stop, marks[order]) for start, stop, order in sorted(ranges)]

    def _best_range(self, mark, free):
        """Returns the range of units that attend more to words in a mark than outside, or None."""
        gains = self._rows @ self._inside(mark) - 0.5
        best, highest = None, 0.0
        for lower, upper in free:
            total, start = 0.0, lower
            for place in range(lower, upper):
                if total <= 0:
                    total, start = 0.0, place
                total += gains[place]
                if total > highest + 1e-9:
                    best, highest = (start, place + 1), total
        return best

    def _best_place(self, mark, lower, upper, inside):
        """Returns the place that agrees best with the words before and after a mark."""
        if not len(self._middles):
            return upper
        before = self._rows[lower:upper] @ (self._middles < mark.start) - 0.5
        gains = np.concatenate([[0.0], np.cumsum(before)])
        gains[[place - lower for place in inside]] = -np.inf
        return lower + int(np.argmax(gains))


def _all_marks(marks):
    marks_to_visit = list(marks)
    while marks_to_visit:
        yield (mark := marks_to_visit.pop())
        marks_to_visit += mark.children


def _attention(translation: Aligned, places: np.ndarray, tag: str | None) -> tuple[Any, Any, Any]:
    """Returns attention `(target tokens, source tokens)`, and the tokens' middles.

    Middles of target tokens are shares of the target's characters. Middles of source tokens are
    places in the text; `places` are the places of the characters that the model has read.
    """
    parts = translation.parts or (translation,)
    has_alignment = all(part.alignment is not None for part in parts)
    tokens = [[token for token in part.tokens if token not in _SPECIAL] for part in parts]
    read_tokens = [_token_places(part.source_tokens, tag) for part in parts]
    sources = [
        [part.source_tokens[i] for i in token_places]
        for part, token_places in zip(parts, read_tokens, strict=True)
    ]
    target, source = _middles(sum(tokens, [])), _middles(sum(sources, []))
    if not has_alignment or not len(target) or not len(source):
        # Each character has its own place, in order.
        size = int(places.max(initial=-1)) + 1
        middles = (np.arange(size) + 0.5) / max(size, 1)
        return np.eye(size), middles, middles * size
    weights = np.zeros((len(target), len(source)))
    row = column = 0
    for part, target_tokens, source_tokens, token_places in zip(
        parts, tokens, sources, read_tokens, strict=True
    ):
        places_of_words = [i for i, token in enumerate(part.tokens) if token not in _SPECIAL]
        block = np.asarray(part.alignment, float)[np.ix_(places_of_words, token_places)]
        weights[row : row + len(target_tokens), column : column + len(source_tokens)] = block
        row, column = row + len(target_tokens), column + len(source_tokens)
    source = places[np.minimum(source * len(places), len(places) - 1).astype(int)]
    return weights[:, source >= 0], target, source[source >= 0] + 0.5


def _token_places(tokens: Sequence[str], tag: str | None) -> list[int]:
    """Returns the places of the tokens of a text, without special tokens and its tag."""
    places = [i for i, token in enumerate(tokens) if token not in _SPECIAL]
    names = [
        tokens[i].replace("\u2581", "") for i in places[:2]
    ]  # A space may be a separate token.
    return places[names.index(tag) + 1 :] if tag in names else places


def _middles(tokens: Sequence[str]) -> np.ndarray:
    """Returns the middle of each token, as a share of all characters."""
    sizes = [
        1 if re.fullmatch("<0x..>", token) else len(token.replace("\u2581", "")) for token in tokens
    ]
    ends = np.cumsum(sizes)
    return (ends - np.array(sizes) / 2) / max(ends[-1] if len(ends) else 0, 1)


def _between(middles, begin, end):
    """Returns the places of the tokens whose middles are in a unit, or of the nearest token."""
    inside = np.flatnonzero((middles >= begin) & (middles <= end))
    if len(inside) == 0 and len(middles):
        return np.argmin(np.abs(middles - (begin + end) / 2), keepdims=True)
    return inside
