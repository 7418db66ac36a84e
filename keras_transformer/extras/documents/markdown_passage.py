"""Passages of Markdown: texts with marks, in HTML for the model, and their translations.

A translation is written with the marks of its source, and parsed again: it must have the same marks
and no others.
"""

import html
import itertools
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keras_transformer.extras.documents.heading_links import with_new_names
from keras_transformer.extras.documents.markdown_lines import Content, Piece, with_lines

_TAG = re.compile(r"""(<x\d+ translate="no">x?</x\d+>|</?x\d+>|<br x="\d+">)""")
_SPACES = re.compile(r"\s+")
_SPECIAL = re.compile(r"[\\`*_\[\]<>&~#]|!\Z")
_AT_LINE_START = re.compile(r"([-+=])|(\d{1,9})([.)])")
_HTML_TAG = re.compile(r"<[^<>]*>")


class Parsed(NamedTuple):
    """Results of a parser: blocks and marks in a fixed order, and texts without white space."""

    marks: list[Any]
    text: str


class Passage:
    """A text with marks, such as the content of a paragraph.

    Args:
        content: The content.
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
        content: Content,
        pieces: list[Piece],
        check: Callable[[str], Parsed],
        block: str = "",
    ):
        self._content, self._pieces, self._check = content, pieces, check
        self._is_cell, self.is_heading = block in ("th_open", "td_open"), block == "heading_open"
        self.place = content.offsets[0], content.offsets[-1]
        self.inner = [piece.image for piece in pieces if piece.image is not None]
        self._parts: list[Any] = []  # texts, and the marks between them
        position = 0
        for piece in pieces:
            self._parts += [content.text[position : piece.start], piece]
            position = piece.stop
        self._parts.append(content.text[position:])
        self._new: list[tuple[Any, str]] | None = None  # parts of the translation, and contents
        self.words = " ".join(self._parts[::2])
        self.source = "".join(
            html.escape(part, quote=False) if isinstance(part, str) else part.tag
            for part in self._parts
        )

    def accepts(self, translated: str) -> bool:
        """Takes a translation of `source`; returns False if it cannot be written."""
        if words_of(translated) == words_of(self.source):
            return True  # Marks and lines are best as they are.
        parts = self._read(translated)
        if parts is None:
            return False
        text = without_spaces("".join(part for part in parts if isinstance(part, str)))
        expected = self._check(self._content.text)._replace(text=text)
        parts = with_lines(parts, self._parts)
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
        return self._content.text

    def title(self, is_new: bool, line_end: str = "") -> str:
        """Returns the text that readers see, of the translation or of the source.

        `line_end` is what ends each line except the last.
        """
        parts = [part for part, _ in self._new] if is_new and self._new else self._parts
        shown = dict.fromkeys(("line", "break"), line_end)
        return "".join(
            part if isinstance(part, str) else shown.get(part.kind, self._shown(part))
            for part in parts
        )

    def written(self, names: Mapping[str, str]) -> str:
        """Returns what replaces `place`: the translation, or the source with new images.

        `names` are the new names of headings, by the names in links.
        """
        written, position = [], 0
        if self._new is None:
            for piece in self._pieces:
                written += [self._content.literal(position, piece.start), self._mark(piece, names)]
                position = piece.stop
            return "".join([*written, self._content.literal(position)])
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
                content = self._content.text[part.start : part.stop]
                if part.label is not None:
                    content = f"][{part.label}]"
                elif part.image is not None:
                    rest = content[2 + len(part.image.content(False)) :]
                    content = f"![{part.image.content()}{rest}"
                contents.append(content)
                begins_line = part.kind in ("line", "break")
        return contents

    def _mark(self, piece, names):
        """Returns what is written for a mark."""
        literal = self._content.literal(piece.start, piece.stop)
        if piece.image is not None:
            start, (inner_start, inner_stop) = self._content.offsets[piece.start], piece.image.place
            before, after = literal[: inner_start - start], literal[inner_stop - start :]
            return f"{before}{piece.image.written(names)}{after}"
        if piece.label is not None and self._new is not None:
            return f"][{piece.label}]"
        return with_new_names(literal, names) if piece.kind in ("begin", "end") else literal

    def _shown(self, piece):
        """Returns the text that readers see of a mark."""
        if piece.kind == "sign":
            return html.unescape(piece.tag)
        literal = self._content.text[piece.start : piece.stop]
        is_text = piece.kind == "copy" and not literal.startswith("![")
        return _HTML_TAG.sub("", literal) if is_text else ""


def _escaped(text, begins_line):
    text = _SPECIAL.sub(r"\\\g<0>", text)
    if begins_line and (match := _AT_LINE_START.match(text)):
        text = (match[2] or "") + "\\" + (match[1] or match[3]) + text[match.end() :]
    return text


def words_of(source: str) -> str:
    """Returns a text in HTML without marks and white space."""
    return without_spaces(html.unescape(_TAG.sub("", source)))


def _last(before, text):
    return text[-1:] or before


def _first(after, text):
    return text[:1] or after


def _is_letter(character):
    return unicodedata.category(character)[0] in "LMN"


def without_spaces(text: str) -> str:
    """Returns a text without white space."""
    return "".join(text.split())
