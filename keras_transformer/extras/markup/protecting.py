"""Markup of a source: removes tags and items from the texts that a model reads.

URLs, e-mail addresses and fields become placeholders, tokens that the model copies. Without such
tokens they become stand-ins, such as `X1`, which models copy like the name of a product. Tags are
removed. Blocks of HTML, such as paragraphs and table cells, are separate texts, and so are values
of attributes that people read. `restore` puts the markup into the translations.
"""

import dataclasses
import html
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import regex

from keras_transformer.engine.steps.step import Markup
from keras_transformer.extras.markup.token_positions import positions_before
from keras_transformer.text.elements import SEPARATORS, MarkupTag, find_tags, unescape
from keras_transformer.text.patterns import CLOSING_MARK, ITEM, ITEM_OR_NUMBER, LETTER
from keras_transformer.text.sentences import has_letters
from keras_transformer.text.symbols import PLACEHOLDER, Placeholders, symbol

STAND_IN = re.compile(r"X[1-9]\d{0,3}(?!\d)")
"""A word that stands for an item in a text."""
_LETTER = regex.compile(LETTER, regex.V1)
# No person reads it as a word of the sentence.
_UNREAD = re.compile(r"<svg\b|<[^<>]*></[^<>]*>\Z", re.IGNORECASE)
# What follows no space where an item was removed.
_AFTER_GAP = regex.compile(rf"\s|{CLOSING_MARK}|[\"'](?=\s|{CLOSING_MARK}|$)", regex.V1)
# White space around a text, which stays as it is written.
_SPACE = r"(?:[\s\x1c-\x1f]|&(?:nbsp|#160|#[xX][aA]0);)"
_SPACES, _SPACES_AT_END = regex.compile(rf"{_SPACE}*+"), regex.compile(rf"(?r){_SPACE}*+")
_WORD = re.compile(r"\w")
_HTML_SPACES = re.compile(r"[ \t\n\f\r]+")


@dataclasses.dataclass(slots=True)
class Value:
    """The value of an attribute in a tag inside a sentence.

    Attributes:
        text: The source's value, and its translation when the text of the value is restored.
    """

    text: str


class SourcePart(NamedTuple):
    """A tag or an item, and its position in the text.

    Attributes:
        literal: Its characters in the source.
        start: Offset in the text.
        stop: End of what replaces it in the text: a placeholder, a stand-in, or the space of a
            `<br>` that has no space around it. Otherwise `start`.
        is_item: False for a tag.
        pieces: The same characters with the values of attributes that are translated.
    """

    literal: str
    start: int
    stop: int
    is_item: bool = False
    pieces: tuple[str | Value, ...] = ()

    @property
    def written(self) -> str:
        """Its characters, with the translations of its attributes."""
        pieces = (piece if isinstance(piece, str) else piece.text for piece in self.pieces)
        return "".join(pieces) if self.pieces else self.literal


@dataclasses.dataclass(slots=True)
class Span:
    """Part of the source that an element encloses, or the index of a single tag or item.

    Attributes:
        first: Index of its first part in `source_parts`; None if it is in an earlier text.
        last: Index of the end tag; None if it is in a later text, and for a single part.
        start: Offset of its content in the text.
        stop: Offset of the end of its content.
        is_element: False for a single tag or item.
        min_words: Least number of words of a translation for it and the elements in it.
        has_text: Whether it has words or signs.
        children: Spans in it.
    """

    first: int | None
    last: int | None
    start: int
    stop: int
    is_element: bool = False
    min_words: int = 0
    has_text: bool = False
    children: list["Span"] = dataclasses.field(default_factory=list)


class Protected(NamedTuple):
    """A text without markup, and the markup.

    Attributes:
        text: The text, with all spaces of the source.
        spans: The spans that are in no other span.
        source_parts: All tags and items in order.
        literals: Items of the placeholders in the text, in the order of their numbers.
        is_html: Whether signs such as `<` are escaped.
        before: Part of the source between the text and an earlier text.
        after: Part of the source after the last text.
        quote: Quotation mark around the value of an attribute, "" for another text.
        value: Value of an attribute in a later text: its translation is written there.
    """

    text: str
    spans: list[Span]
    source_parts: list[SourcePart]
    literals: list[str]
    is_html: bool
    before: str = ""
    after: str = ""
    quote: str = ""
    value: Value | None = None

    @property
    def text_to_read(self) -> str:
        """The text as a person would write it, for the model; only spaces are others.

        A removed item leaves no space before a mark or another space. In HTML, line breaks and
        tabs are spaces.
        """
        text = _without_gaps(self.text, self.source_parts)
        return _HTML_SPACES.sub(" ", text) if self.is_html else text

    def places_to_align(self) -> list[float]:
        """Returns the places of tags, and the middles of items.

        A place is the number of characters before it, without spaces. A tag at the beginning or the
        end of the text stays there, whatever the alignment is.
        """
        if not self.source_parts:
            return []
        before = positions_before(self.text)
        places = ((before[part.start] + before[part.stop]) / 2 for part in self.source_parts)
        return [place for place in places if 0 < place < before[-1]]


def _without_gaps(text, source_parts):
    pieces, position = [], 0
    for part in source_parts:
        if part.is_item and part.start == part.stop:
            piece = text[position : part.start]
            is_closed = part.start == len(text) or _AFTER_GAP.match(text, part.start)
            pieces.append(piece.rstrip() if is_closed else piece)
            position = part.start
    return "".join((*pieces, text[position:])).strip() if pieces else text


def protect(
    source: str,
    markup: Markup,
    placeholders: Placeholders,
    has_stand_ins: bool = True,
    language: str | None = None,
) -> list[Protected]:
    """Removes markup from a source; returns one text, or several texts of HTML's blocks.

    A block of HTML without letters, such as `42`, is part of the markup between two texts.

    Args:
        source: Text; with tags and character references for `"html"`.
        markup: `"placeholders"`: URLs, e-mail addresses and fields; `"html"`: tags too.
        placeholders: Placeholders of the vocabulary. Further items become stand-ins.
        has_stand_ins: Whether the model can copy stand-ins. Otherwise, and where they touch a
            letter, items are removed, and put back where the words around them are in the
            translation.
        language: Code of the source's language; by default a page in HTML names it.
    """
    text = source.strip()
    before, after = source.split(text, 1) if text else (source, "")
    blocks = _protected(text, markup, placeholders, language)
    first, *others = map(_with_stand_ins, blocks) if has_stand_ins else blocks
    blocks = [first._replace(before=before + first.before), *others]
    return [*blocks[:-1], blocks[-1]._replace(after=blocks[-1].after + after)]


def _protected(source, markup, placeholders, language):
    if markup == "html":
        return _protect_blocks(source, find_tags(source, language), placeholders)
    writer = _Writer(placeholders, is_html=False)
    writer.passage(source)
    return [writer.close()]


def _with_stand_ins(protected):
    """Returns a text in which stand-ins are in the place of removed items that a person reads."""
    text, texts, number, last = protected.text, {}, 1, -1
    if not has_letters(text):  # It stays as it is.
        return protected
    # `X12` is also a beginning of `X123`. No number has more digits than twice the text's length.
    runs = re.findall(rf"X([0-9]{{1,{len(str(2 * len(text)))}}})", text)
    taken = {run[:stop] for run in runs for stop in range(1, len(run) + 1)}
    for index, part in enumerate(protected.source_parts):
        start, stop = part.start, part.stop
        if not part.is_item or start < stop or start == last or _UNREAD.match(part.literal):
            continue
        if _LETTER.match(text[start - 1 : start]) or _LETTER.match(text[start : start + 1]):
            continue
        while str(number) in taken:
            number += 1
        texts[index], number, last = f"X{number}", number + 1, start
    if not texts:
        return protected
    (result,) = divide(protected, (), texts)
    return result._replace(literals=protected.literals, value=protected.value)


def divide(
    protected: Protected,
    offsets: Sequence[int],
    stand_ins: Mapping[int, str] = MappingProxyType({}),
) -> list[Protected]:
    """Returns the parts of a text that end at ascending offsets, as separate texts.

    An element in several parts begins in one of them and ends in another, as in blocks.
    `stand_ins` are new texts of source parts, by their index.
    """
    spans = {}  # by index of a source part, and whether the part is the end of an element
    spans_to_visit = list(protected.spans)
    while spans_to_visit:
        span = spans_to_visit.pop()
        spans_to_visit += span.children
        if span.first is not None:
            spans[span.first] = span, False
        if span.last is not None:
            spans[span.last] = span, True
    parts, number, position = [], 0, 0
    for offset in (*offsets, len(protected.text)):
        writer = _Writer(Placeholders(), protected.is_html)
        while number < len(protected.source_parts):
            source_part, (span, is_end) = protected.source_parts[number], spans[number]
            # An end tag at the border belongs to the words before it.
            if source_part.start >= offset + is_end and offset < len(protected.text):
                break
            writer.words(protected.text[position : source_part.start])
            text = stand_ins.get(number, protected.text[source_part.start : source_part.stop])
            writer.copy(source_part, text, span, is_end)
            position, number = source_part.stop, number + 1
        writer.words(protected.text[position:offset])
        position = max(position, offset)
        parts.append(writer.close()._replace(quote=protected.quote))
    parts[0] = parts[0]._replace(before=protected.before)
    parts[-1] = parts[-1]._replace(after=protected.after)
    return parts


def _protect_blocks(source, tags, placeholders):
    blocks, position = [], 0  # All before the position is written.
    start, inline_tags = 0, []
    for tag in (*tags, MarkupTag(len(source), len(source), "single", is_block=True)):
        if not tag.is_block:
            inline_tags.append(tag)
            continue
        block_start, stop = _stripped(source, start, tag.start)
        writer = _Writer(placeholders, True)
        values = writer.block(source, block_start, stop, inline_tags)
        block = writer.close()
        spans = tag.values
        if has_letters(block.text):
            blocks += [*values, block._replace(before=source[position:block_start])]
            position = stop
        else:
            spans = (*(span for inline in inline_tags for span in inline.values), *spans)
        for begin, end in spans:
            if (value := _attribute(source, begin, end, placeholders)) is not None:
                blocks.append(value._replace(before=source[position:begin] + value.before))
                position = end
        start, inline_tags = tag.stop, []
    if not blocks:
        return [Protected("", [], [], [], True, before=source)]
    blocks[-1] = blocks[-1]._replace(after=blocks[-1].after + source[position:])
    return blocks


def _attribute(source, start, stop, placeholders):
    """Returns the text of an attribute's value, None without letters."""
    begin, end = _stripped(source, start, stop)
    writer = _Writer(placeholders, True)
    writer.passage(source[begin:end])
    text = writer.close()
    if not has_letters(text.text):
        return None
    if (quote := source[start - 1]) not in "\"'":  # The value gets marks.
        return text._replace(before='"', after='"', quote='"')
    return text._replace(before=source[start:begin], after=source[end:stop], quote=quote)


def _stripped(source, start, stop):
    """Returns the bounds of a text without the white space around it."""
    start = _SPACES.match(source, start, stop).end()
    return start, _SPACES_AT_END.match(source, start, stop).start()


class _Writer:
    """Separates one text into words and a tree of spans."""

    def __init__(self, placeholders, is_html):
        self._parts: list[str] = []
        self._size, self._last = 0, " "  # number of characters, and the last one
        self._signs = self._words = 0  # number of passages with signs or words, and with words
        self._is_html, self._symbols_left = is_html, placeholders.size
        self._placeholders = placeholders
        self._pattern = ITEM_OR_NUMBER if placeholders.numbers else ITEM
        self._symbols: set[int] = set()  # where they begin
        self._source_parts: list[SourcePart] = []
        self._literals: list[str] = []
        self._spans: list[Span] = []  # of the innermost open element
        self._open: list[tuple[Span, tuple[int, int], list[Span]]] = []

    def block(self, source: str, start: int, stop: int, tags: list[MarkupTag]) -> list[Protected]:
        """Adds `source[start:stop]` with its tags; returns the texts of their attributes."""
        values: list[Protected] = []
        for tag in tags:
            self.passage(source[start : tag.start])
            literal = source[tag.start : tag.stop]
            pieces = self._pieces(source, tag, values) if tag.values else ()
            if tag.kind == "copy":
                self._item(literal)
            elif tag.kind == "begin" and tag.partner is not None:
                self._begin(self._source_part(literal, pieces=pieces))
            elif tag.kind == "end" and tag.partner is not None:
                self._end(self._source_part(literal))
            else:
                has_added_space = tag.name in SEPARATORS and not self._last.isspace()
                text = " " if has_added_space else ""
                self._single(self._source_part(literal, text, pieces=pieces))
            start = tag.stop
        self.passage(source[start:stop])
        return values

    def _pieces(self, source, tag, values):
        """Returns the pieces of a tag, and adds the texts of its attributes to `values`."""
        pieces, position = [], tag.start
        for start, stop in tag.values:
            text = _attribute(source, start, stop, self._placeholders)
            if text is not None:
                value = Value(source[start:stop])
                values.append(text._replace(value=value))
                pieces += [source[position:start], value]
                position = stop
        return (*pieces, source[position : tag.stop])

    def passage(self, text: str) -> None:
        """Adds text with its items; first replaces character references, which could hide items."""
        if self._is_html:
            text = unescape(text)
        position = 0
        for match in self._pattern.finditer(text):
            self.words(text[position : match.start()])
            position = match.end()
            self._item(html.escape(match[0], quote=False) if self._is_html else match[0])
        self.words(text[position:])

    def copy(self, part: SourcePart, text: str, span: Span, is_end: bool) -> None:
        """Adds a part of another text, which has `text` instead of it; one end of a span."""
        if part.is_item:
            self._symbols.add(self._size)
        index = self._source_part(part.literal, text, part.is_item, part.pieces)
        if is_end:
            self._end(index)
        elif span.is_element:
            self._begin(index)
        else:
            self._single(index)

    def close(self) -> Protected:
        """Ends the text, in which only placeholders look like placeholders."""
        while self._open:  # elements that end in a later text
            self._end(None)

        def escaped(match):
            return match[0] if match.start() in self._symbols else match[0].replace("_", "-")

        text = "".join(self._parts)
        if "<ph_" in text:
            # Replaced by a text of the same length, so that positions stay the same.
            text = PLACEHOLDER.sub(escaped, text)
        return Protected(text, self._spans, self._source_parts, self._literals, self._is_html)

    def words(self, text: str) -> None:
        """Adds text as it is."""
        if text:
            self._add(text)
            self._signs += not text.isspace()
            self._words += _WORD.search(text) is not None

    def _add(self, text):
        self._parts.append(text)
        self._size += len(text)
        self._last = text[-1]

    def _source_part(self, literal, text="", is_item=False, pieces=()):
        """Adds a tag or an item, and the text that stands for it; returns its index."""
        start = self._size
        if text:
            self._add(text)
        self._source_parts.append(SourcePart(literal, start, self._size, is_item, pieces))
        return len(self._source_parts) - 1

    def _single(self, first):
        part = self._source_parts[first]
        self._spans.append(Span(first, None, part.start, part.stop))

    def _item(self, literal):
        text = ""
        if len(self._literals) < self._symbols_left:
            self._literals.append(literal)
            text = symbol(len(self._literals))
            self._symbols.add(self._size)
        self._single(self._source_part(literal, text, True))

    def _begin(self, first):
        span = Span(first, None, self._size, self._size, is_element=True)
        self._spans.append(span)
        self._open.append((span, (self._signs, self._words), self._spans))
        self._spans = span.children

    def _end(self, last):
        if self._open:
            span, before, around = self._open.pop()
        else:  # The element began in an earlier text.
            span, before, around = Span(None, None, 0, 0, is_element=True), (0, 0), []
            span.children = self._spans
            around.append(span)
        span.last, span.stop = last, self._size if last is None else self._source_parts[last].start
        inside = sum(child.min_words for child in span.children)
        span.has_text = self._signs > before[0]
        span.min_words = max(inside, int(self._words > before[1]))
        self._spans = around
