"""Marks between the texts of a passage of Markdown, and the places of its lines."""

import re
from typing import Any, NamedTuple

from keras_transformer.extras.documents.dividing import nearest_borders


class Content(NamedTuple):
    """A content as the parser sees it, without the marks before lines.

    Attributes:
        text: The content.
        offsets: Where its characters are in the document, and where it ends.
        document: The document.
    """

    text: str
    offsets: list[int]
    document: str

    def part(self, start: int, stop: int | None = None) -> "Content":
        """Returns a part, by offsets in the content."""
        stop = len(self.text) if stop is None else stop
        return Content(self.text[start:stop], self.offsets[start : stop + 1], self.document)

    def literal(self, start: int, stop: int | None = None) -> str:
        """Returns what the document has for a part."""
        stop = len(self.text) if stop is None else stop
        return self.document[self.offsets[start] : self.offsets[stop]]


class Piece(NamedTuple):
    """A mark of a passage.

    Attributes:
        kind: `"begin"` or `"end"` of an element. `"copy"` is code, or another text that is not
            translated. `"line"` ends a line, and `"break"` ends one for readers, too. `"sign"`
            is an escaped character.
        start: Offset in the content.
        stop: Offset of the end.
        tag: What stands for it in HTML.
        label: Of a link's end without an address or a name: the text that names it.
        image: The `Passage` in an image's mark.
    """

    kind: str
    start: int
    stop: int
    tag: str
    label: str | None = None
    image: Any = None

    @property
    def width(self) -> int:
        """Number of characters that a reader sees of it."""
        if self.kind == "copy":
            return self.stop - self.start
        return int(self.kind in ("sign", "line", "break"))


def with_lines(parts: list[Any], source_parts: list[Any]) -> list[Any]:
    """Returns parts with as many ends of lines as the source, near its places.

    Args:
        parts: Texts and marks of a translation, without ends of lines.
        source_parts: Texts and marks of the source.
    """
    lines, before, size = [], [], 0
    for part in source_parts:
        if isinstance(part, Piece) and part.kind == "line":
            lines.append(part)
            before.append(size)
        size += _width(part)
    if not lines:
        return parts
    places, position = [], 0  # of each space: its position, its part, and its place there
    for number, part in enumerate(parts):
        if isinstance(part, str):
            spaces = [match.start() for match in re.finditer(" ", part)]
            places += [(position + place, number, place) for place in spaces]
        position += _width(part)
    targets = [place * position / max(size, 1) for place in before]
    cuts: dict[int, list[int]] = {}
    for index in nearest_borders([place for place, *_ in places], targets):
        _, number, place = places[index]
        cuts.setdefault(number, []).append(place)
    result, left = [], iter(lines)
    for number, part in enumerate(parts):
        start = 0
        for place in cuts.get(number, ()):
            result += [part[start:place], next(left)]
            start = place + 1
        result.append(part[start:] if isinstance(part, str) else part)
    return result


def _width(part):
    return len(part) if isinstance(part, str) else part.width
