"""Passages of Markdown: texts with marks, in HTML for the model, and their translations.

A translation is written with the marks of its source, and parsed again: it must have the same marks
and no others.
"""

import collections
import functools
import html
import itertools
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keras_transformer.extras.documents.dividing import nearest_borders
from keras_transformer.extras.documents.heading_links import with_new_names
from keras_transformer.extras.documents.markdown_parser import parser, with_partners

_TAG = re.compile(r"""(<x\d+ translate="no">x?</x\d+>|</?x\d+>|<br x="\d+">)""")
_SPACES = re.compile(r"\s+")
_SPECIAL = re.compile(r"[\\`*_\[\]<>&~#]|!\Z")
_AT_LINE_START = re.compile(r"([-+=])|(\d{1,9})([.)])")
_HTML_TAG = re.compile(r"<[^<>]*>")


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
        image: The text in an image's mark.
    """

    kind: str
    start: int
    stop: int
    tag: str
    label: str | None = None
    image: "Passage | None" = None


class Passage:
    """A text with marks, such as the content of a paragraph.

    Args:
        content: The content as the parser sees it, without the marks before lines.
        offsets: Where its characters are in the document, and where it ends.
        text: The document.
        pieces: Its marks in order.
        check: Returns what the parser finds in a content, without texts.
        block: Type of the parser's token that begins the block.

    Attributes:
        is_heading: Whether it is the content of a heading.
        place: Start and stop in the document.
        inner: Passages of the images in it.
        words: Its words without marks.
        source: The same in HTML, with tags for marks.
    """

    def __init__(
        self,
        content: str,
        offsets: list[int],
        text: str,
        pieces: list[Piece],
        check: "Callable[[str], Parsed]",
        block: str = "",
    ):
        self._content, self._offsets, self._text = content, offsets, text
        self._pieces, self._check = pieces, check
        self._is_cell, self.is_heading = block in ("th_open", "td_open"), block == "heading_open"
        self.place = offsets[0], offsets[-1]
        self.inner = [piece.image for piece in pieces if piece.image is not None]
        self._gaps = _gaps(content, pieces)
        self._parts: list[Any] = [self._gaps[0]]  # texts, and the marks between them
        for piece, gap in zip(pieces, self._gaps[1:], strict=True):
            self._parts += [piece, gap]
        self._new: list[tuple[Any, str]] | None = None  # parts of the translation, and contents
        self.words = " ".join(self._gaps)
        self.source = "".join(
            html.escape(part, quote=False) if isinstance(part, str) else part.tag
            for part in self._parts
        )

    def take(self, translated: str) -> bool:
        """Takes a translation of `source`; returns False if it cannot be written."""
        if _plain(translated) == _plain(self.source):
            return True  # Marks and lines are best as they are.
        parts = self._read(translated)
        if parts is None:
            return False
        text = _squeezed("".join(part for part in parts if isinstance(part, str)))
        expected = self._check(self._content)._replace(text=text)
        parts = self._with_lines(parts)
        for with_spaces, escape in itertools.product((False, True), repeat=2):
            form = self._with_spaces(parts) if with_spaces else parts
            contents = self._contents(form, escape)
            if self._check("".join(contents)) == expected:
                self._new = list(zip(form, contents, strict=True))
                return True
        return False

    def content(self, is_new: bool = True) -> str:
        """Returns the content as the parser sees it, of the translation or of the source."""
        if is_new and self._new is not None:
            return "".join(content for _, content in self._new)
        return self._content

    def title(self, is_new: bool) -> str:
        """Returns the text that readers see, of the translation or of the source."""
        parts = [part for part, _ in self._new] if is_new and self._new else self._parts
        return "".join(part if isinstance(part, str) else self._shown(part) for part in parts)

    def written(self, names: Mapping[str, str]) -> str:
        """Returns what replaces `place`: the translation, or the source with new images.

        `names` are the new names of headings, by the names in links.
        """
        written, position = [], 0
        if self._new is None:
            for piece in self._pieces:
                written += [self._slice(position, piece.start), self._mark(piece, names)]
                position = piece.stop
            return "".join([*written, self._slice(position, len(self._content))])
        for part, content in self._new:
            if not isinstance(part, str):
                written.append(self._mark(part, names))
            else:  # The parser has removed this escape from a cell.
                written.append(content.replace("|", r"\|") if self._is_cell else content)
        return "".join(written)

    def _read(self, translated):
        """Returns the texts of a translation and the marks between them, None for other marks."""
        marks = {
            match[0]: piece
            for piece in self._pieces
            if (match := _TAG.match(piece.tag)) is not None
        }
        parts: list[Any] = []
        for number, part in enumerate(_TAG.split(translated)):
            if number % 2 == 0:
                parts.append(_SPACES.sub(" ", html.unescape(part)))
            elif (piece := marks.pop(part, None)) is None:
                return None
            else:
                parts.append(piece)
        if marks:
            return None
        for number in range(1, len(parts), 2):
            if parts[number].kind == "break":
                parts[number - 1] = parts[number - 1].rstrip()
                parts[number + 1] = parts[number + 1].lstrip()
        parts[0], parts[-1] = parts[0].lstrip(), parts[-1].rstrip()
        return parts

    def _with_lines(self, parts):
        """Returns parts with as many ends of lines as the source, near its places."""
        lines = [piece for piece in self._pieces if piece.kind == "line"]
        if not lines:
            return parts
        places, position = [], 0  # of each space: its position, its part, and its place there
        for number, part in enumerate(parts):
            if isinstance(part, str):
                found = [match.start() for match in re.finditer(" ", part)]
                places += [(position + place, number, place) for place in found]
            position += len(part) if isinstance(part, str) else _width(part)
        before, size = [], 0
        for gap, piece in itertools.zip_longest(self._gaps, self._pieces):
            size += len(gap)
            if piece is not None:
                if piece.kind == "line":
                    before.append(size)
                size += _width(piece)
        targets = [place * position / max(size, 1) for place in before]
        chosen = nearest_borders([place for place, *_ in places], targets)
        cuts: dict[int, list[int]] = {}
        for index in chosen:
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

    def _with_spaces(self, parts):
        """Returns parts with spaces where a mark next to a letter would be a sign.

        Emphasis does not end between a sign and a letter, as in `**注意：**阅读`.
        """
        contents, result = self._contents(parts, False), []
        befores = list(itertools.accumulate(contents, _last, initial=" "))
        afters = list(itertools.accumulate(contents[::-1], _first, initial=" "))[-2::-1]
        for part, content, before, after in zip(parts, contents, befores, afters, strict=False):
            kind = "" if isinstance(part, str) or content[0] not in "*_~" else part.kind
            outside, inside = (before, after) if kind == "begin" else (after, before)
            is_sign = _is_letter(outside) and (content[:1] == "_" or not _is_letter(inside))
            if kind == "begin" and is_sign:
                result.append(" ")
            result.append(part)
            if kind == "end" and is_sign:
                result.append(" ")
        return result

    def _contents(self, parts, escape):
        """Returns what each part is in the content."""
        contents, begins_line = [], True
        for part in parts:
            if isinstance(part, str):
                contents.append(_escaped(part, begins_line) if escape else part)
                begins_line = False
            else:
                content = self._content[part.start : part.stop]
                if part.label is not None:
                    content = f"][{part.label}]"
                elif part.image is not None:
                    rest = content[2 + len(part.image.content(False)) :]
                    content = f"![{part.image.content()}{rest}"
                contents.append(content)
                begins_line = part.kind in ("line", "break")
        return contents

    def _slice(self, start, stop):
        return self._text[self._offsets[start] : self._offsets[stop]]

    def _mark(self, piece, names):
        """Returns what is written for a mark."""
        literal = self._slice(piece.start, piece.stop)
        if piece.image is not None:
            start, (inner_start, inner_stop) = self._offsets[piece.start], piece.image.place
            before, after = literal[: inner_start - start], literal[inner_stop - start :]
            return f"{before}{piece.image.written(names)}{after}"
        if piece.label is not None and self._new is not None:
            return f"][{piece.label}]"
        return with_new_names(literal, names) if piece.kind in ("begin", "end") else literal

    def _shown(self, piece):
        """Returns the text that readers see of a mark."""
        if piece.kind == "sign":
            return html.unescape(piece.tag)
        literal = self._content[piece.start : piece.stop]
        is_text = piece.kind == "copy" and not literal.startswith("![")
        return _HTML_TAG.sub("", literal) if is_text else ""


class Parsed(NamedTuple):
    """Results of a parser: blocks and marks in a fixed order, and texts without white space."""

    marks: list[Any]
    text: str


def check_content(references, around, content):
    """Parses the content of a block; returns its blocks and marks, and its text."""
    # A content must not change what other contents refer to.
    environment = {"references": collections.ChainMap({}, references)}
    if around is None:
        tokens = parser().parseInline(content, environment)
    else:
        tokens = parser().parse(content.join(around), environment)
    marks, texts = [], []
    for token in tokens:
        _collect(token.children or (), marks, texts)
    return Parsed([*(token.type for token in tokens), *sorted(marks)], _squeezed("".join(texts)))


def _check_image(references, content):
    """Parses the text of an image as `check_content` does."""
    environment = {"references": collections.ChainMap({}, references)}
    (token,) = parser().parseInline(f"![{content}](x)", environment)
    marks, texts = [child.type for child in token.children], []
    for child in token.children:
        _collect(child.children or (), marks, texts)
    return Parsed(sorted(marks), _squeezed("".join(texts)))


def _collect(tokens, marks, texts):
    is_address = False
    for token in tokens:
        if token.type in ("text", "text_special"):
            texts.append("" if is_address else token.content)
        elif token.type != "softbreak":
            attributes = sorted(token.attrs.items())
            content = "" if token.type == "image" else token.content  # which is text
            marks.append(repr((token.type, token.markup, content, attributes)))
        is_address = token.type == "link_open" and token.info == "auto"


def pieces_of(content, offsets, text, tokens, shift, references):
    """Returns the marks of a content from the parser's tokens, or None if they overlap.

    `shift` is the number of characters that were removed before the content.
    """
    tokens = [token for token in tokens if "span" in token.meta and token.type != "text"]
    pieces: list[Piece] = []
    for number, (token, partner) in enumerate(with_partners(tokens)):
        start, stop = (place - shift for place in token.meta["span"])
        if stop <= 0:
            continue
        options: dict[str, Any] = {}
        if token.type in ("softbreak", "hardbreak"):
            is_shown = token.type == "hardbreak"
            kind, tag = ("break", f'<br x="{number}">') if is_shown else ("line", " ")
            previous = pieces[-1].stop if pieces else 0
            start = previous + len(content[previous:start].rstrip(" "))
        elif token.type == "text_special":
            kind, tag = "sign", html.escape(token.content, quote=False)
        elif partner is None:
            is_break = token.content.lower().startswith("<br")
            # What readers read as a word of the sentence is a word for the model, too.
            word = "x" if token.type in ("code_inline", "link_open", "kept_element") else ""
            kind, tag = "copy", f'<x{number} translate="no">{word}</x{number}>'
            tag = f'<br x="{number}">' if is_break else tag
            if token.type == "image":
                image = _image_text(content, offsets, text, token, start, references)
                options = {"image": image}
        else:
            kind = "begin" if number < partner else "end"
            tag = f"<x{number}>" if kind == "begin" else f"</x{partner}>"
            start -= token.type == "strong_open"  # Its span is that of one sign.
            stop += token.type == "strong_close"
            if token.type == "link_close" and content[start:stop] in ("]", "][]"):
                options = {"label": token.meta["label"]}
        if start < (pieces[-1].stop if pieces else 0):
            return None
        pieces.append(Piece(kind, start, stop, tag, **options))
    return pieces


def _image_text(content, offsets, text, token, start, references):
    """Returns the passage of an image's text, None if that also names the image's address."""
    start += 2
    stop = start + len(token.content)
    if not re.match(r"\]\(|\]\[[^\]]", content[stop : stop + 3]):
        return None
    offsets = offsets[start : stop + 1]
    children = token.children or ()
    pieces = pieces_of(token.content, offsets, text, children, 0, references)
    if pieces is None:
        return None
    check = functools.partial(_check_image, references)
    return Passage(token.content, offsets, text, pieces, check)


def _gaps(content, pieces):
    """Returns the texts before each piece and after the last."""
    stops, starts = [0], []
    for piece in pieces:
        starts.append(piece.start)
        stops.append(piece.stop)
    return [content[i:j] for i, j in zip(stops, [*starts, len(content)], strict=True)]


def _width(piece):
    """Returns the number of characters that a reader sees of a mark."""
    shown = {
        "copy": piece.stop - piece.start,
        "sign": 1,
        "line": 1,
        "break": 1,
    }
    return shown.get(piece.kind, 0)


def _escaped(text, begins_line):
    text = _SPECIAL.sub(r"\\\g<0>", text)
    if begins_line and (match := _AT_LINE_START.match(text)):
        text = (match[2] or "") + "\\" + (match[1] or match[3]) + text[match.end() :]
    return text


def _plain(source):
    """Returns a text without marks and white space."""
    return _squeezed(html.unescape(_TAG.sub("", source)))


def _last(before, text):
    return text[-1:] or before


def _first(after, text):
    return text[:1] or after


def _is_letter(character):
    return unicodedata.category(character)[0] in "LMN"


def _squeezed(text):
    return "".join(text.split())
