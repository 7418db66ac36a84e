"""Markdown: the texts of paragraphs, headings, list items, table cells, links and images.

Only spans of text are replaced. The marks in a span, such as `**` and `](address)`, are tags around
its words while it is translated: `Two **dogs** play` is `Two <x1>dogs</x1> play`. The translation
of a span is parsed again. Where it has other marks or is another block, the span stays as it was.
"""

import collections
import functools
import html
import itertools
import re
import unicodedata
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keras_transformer.documents.dividing import nearest_borders
from keras_transformer.documents.document import Document, Settings, replaced
from keras_transformer.documents.heading_links import heading_names, with_new_names
from keras_transformer.documents.markdown_parser import parser, with_partners
from keras_transformer.documents.marked_texts import MarkedTexts
from keras_transformer.text.sentences import has_letters

_LINE = re.compile(r"([^\r\n]*)(?:\r\n?|\n|\Z)")
_FRONT_MATTER = re.compile(
    r"(?:(---)|\+\+\+)[ \t]*\r?\n(?=\S)(?:.*\n)*?(?(1)(?:---|\.\.\.)|\+\+\+)[ \t]*\r?(?:\n|\Z)"
)
# What CommonMark lacks at the beginning: the box of a task, and the kind of an alert.
_LEADING = re.compile(r"\[(?:[ xX]|![\w-]+)\][-+]?(?:\s+|\Z)")
_TAG = re.compile(r"""(<x\d+ translate="no">x?</x\d+>|</?x\d+>|<br x="\d+">)""")
_SPACES = re.compile(r"\s+")
_SPECIAL = re.compile(r"[\\`*_\[\]<>&~#]|!\Z")
_AT_LINE_START = re.compile(r"([-+=])|(\d{1,9})([.)])")
_HTML_TAG = re.compile(r"<[^<>]*>")


class Markdown(Document):
    """A document in CommonMark, with tables, strikethrough, tasks, footnotes and front matter."""

    def __init__(self, text: str, settings: Settings):
        self._text = text
        blocks = list(_blocks(text))
        self._num_lost = blocks.count(None)
        self._blocks = sorted(filter(None, blocks), key=lambda block: block.place)
        passages = [block for block in self._blocks if isinstance(block, _Passage)]
        self._headings = [passage for passage in passages if passage.is_heading]
        with_images = (passage for block in passages for passage in (*block.inner, block))
        self._passages = [passage for passage in with_images if has_letters(passage.words)]
        self._marked = MarkedTexts([one.source for one in self._passages], settings.markup_step)
        self.texts, self.options = self._marked.texts, self._marked.options

    def written(self, translations):
        restored = self._marked.restored(translations)
        taken = [one.take(text) for one, text in zip(self._passages, restored, strict=True)]
        if num_left := self._num_lost + taken.count(False):
            rule = f"{num_left} of {self._num_lost + len(taken)} texts stay as they were"
            message = f"{rule}, because their translations would have other marks of Markdown."
            warnings.warn(message, stacklevel=2)
        names = self._new_names()
        places = [block.place for block in self._blocks]
        return replaced(self._text, places, [block.written(names) for block in self._blocks])

    def _new_names(self):
        """Returns the new names of headings whose names are others, by their former names."""
        names, new_names = (
            heading_names(heading.title(is_new) for heading in self._headings)
            for is_new in (False, True)
        )
        pairs = zip(names, new_names, strict=True)
        return {name: new_name for name, new_name in pairs if new_name and new_name != name}


class _Piece(NamedTuple):
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
    image: "_Passage | None" = None


class _Passage:
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
        pieces: list[_Piece],
        check: "Callable[[str], _Parsed]",
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
        for form, escape in itertools.product((parts, self._with_spaces(parts)), (False, True)):
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
        for number, part in enumerate(parts):
            content = contents[number]
            step = 0 if isinstance(part, str) else {"begin": -1, "end": 1}.get(part.kind, 0)
            result.append(part)
            if not step or content[0] not in "*_~":
                continue
            outside = next(filter(None, contents[number + step :: step]), " ")[
                -1 if step < 0 else 0
            ]
            inside = next(filter(None, contents[number - step :: -step]), " ")[
                0 if step < 0 else -1
            ]
            if _is_letter(outside) and (content[0] == "_" or not _is_letter(inside)):
                result.insert(len(result) - (step < 0), " ")
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
                    content = (
                        f"![{part.image.content()}{content[2 + len(part.image.content(False)) :]}"
                    )
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
        literal = self._content[piece.start : piece.stop]
        is_text = piece.kind == "copy" and not literal.startswith("![")
        return (
            _HTML_TAG.sub("", literal) if is_text else html.unescape(_HTML_TAG.sub("", piece.tag))
        )


class _Links(NamedTuple):
    """A part of a document that is not translated, but may have links to headings."""

    place: tuple[int, int]
    text: str

    def written(self, names: Mapping[str, str]) -> str:
        """Returns the part with the new names of headings."""
        return with_new_names(self.text, names)


class _Parsed(NamedTuple):
    """Results of a parser: blocks and marks in a fixed order, and texts without white space."""

    marks: list[Any]
    text: str


def _blocks(text):
    """Yields the passages and links of a document's blocks; None for one that was not found."""
    environment: dict[str, Any] = {}
    front_matter = _FRONT_MATTER.match(text)
    first = 0 if front_matter is None else front_matter.end()
    lines = [match.span(1) for match in _LINE.finditer(text, first)]
    tokens = parser().parse(text[first:], environment)
    read_text = text.replace("\0", "\ufffd")  # as the parser does
    references, row = environment.get("references", {}), (0, 0)
    maps = [reference["map"] for reference in references.values()]
    maps += [token.map for token in tokens if token.type == "html_block"]
    for start, stop in maps:
        place = lines[start][0], lines[stop - 1][1]
        yield _Links(place, text[slice(*place)])
    for before, token in itertools.pairwise(tokens):
        if before.type == "tr_open":
            row = lines[before.map[0]]
        if token.type != "inline" or not token.content:
            continue
        if before.type in ("th_open", "td_open"):
            offsets = _offsets_in_row(read_text, token.content, row)
            row = (offsets[-1] if offsets else row[0]), row[1]
        else:
            offsets = _offsets(read_text, token.content, lines[slice(*token.map)], before)
        if offsets is None:
            yield None
            continue
        around = _around(before)
        if around is not None and not _is_block(token.content, around):
            around = None
        check = functools.partial(_check, references, around)
        leading = _LEADING.match(token.content)
        start = 0 if leading is None else leading.end()
        content, offsets = token.content[start:], offsets[start:]
        pieces = _pieces(content, offsets, text, token.children, start, references)
        yield (
            None if pieces is None else _Passage(content, offsets, text, pieces, check, before.type)
        )


def _offsets(text, content, lines, block):
    """Returns where the characters of a content are, and where it ends; None if it is not found."""
    offsets: list[int] = []
    for (start, stop), part in zip(lines, content.split("\n"), strict=False):
        line, words = text[start:stop], part.lstrip(" \t")
        if block.markup.startswith("#"):
            place = line.find(words, line.index("#") + len(block.markup))
        else:
            place = len(line.rstrip()) - len(words.rstrip())
        if place < 0 or not line.startswith(words, place):
            return None
        # White space before the words may be a tab that the parser has replaced.
        offsets += [start + place] * (len(part) - len(words))
        offsets += range(start + place, start + place + len(words) + 1)
    return offsets if len(offsets) == len(content) + 1 else None


def _offsets_in_row(text, content, row):
    """Returns the same for a table's cell, which has `\\|` for `|`, in a part of its row."""
    written = content.replace("|", r"\|")
    start = text.find(written, *row)
    if start < 0:
        return None
    steps = (2 if character == "|" else 1 for character in content)
    return list(itertools.accumulate(steps, initial=start))


def _around(block):
    """Returns what makes a document of a block's content: before and after it; None for a cell."""
    if block.type == "paragraph_open":
        return "", ""
    if block.type != "heading_open":
        return None
    return (f"{block.markup} ", "") if "#" in block.markup else ("", f"\n{block.markup * 3}")


def _is_block(content, around):
    """Returns False if a continued line of a content begins a block where it is by itself."""
    if "\n" not in content:
        return True
    tokens = parser().parse(content.join(around))
    return len(tokens) == 3 and tokens[1].content == content


def _check(references, around, content):
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
    return _Parsed([*(token.type for token in tokens), *sorted(marks)], _squeezed("".join(texts)))


def _check_image(references, content):
    """Parses the text of an image as `_check` does."""
    environment = {"references": collections.ChainMap({}, references)}
    (token,) = parser().parseInline(f"![{content}](x)", environment)
    marks, texts = [child.type for child in token.children], []
    for child in token.children:
        _collect(child.children or (), marks, texts)
    return _Parsed(sorted(marks), _squeezed("".join(texts)))


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


def _pieces(content, offsets, text, tokens, shift, references):
    """Returns the marks of a content from the parser's tokens, or None if they overlap.

    `shift` is the number of characters that were removed before the content.
    """
    tokens = [token for token in tokens if "span" in token.meta and token.type != "text"]
    pieces: list[_Piece] = []
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
        pieces.append(_Piece(kind, start, stop, tag, **options))
    return pieces


def _image_text(content, offsets, text, token, start, references):
    """Returns the passage of an image's text, None if that also names the image's address."""
    start += 2
    stop = start + len(token.content)
    if not re.match(r"\]\(|\]\[[^\]]", content[stop : stop + 3]):
        return None
    offsets = offsets[start : stop + 1]
    children = token.children or ()
    pieces = _pieces(token.content, offsets, text, children, 0, references)
    if pieces is None:
        return None
    check = functools.partial(_check_image, references)
    return _Passage(token.content, offsets, text, pieces, check)


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


def _is_letter(character):
    return unicodedata.category(character)[0] in "LMN"


def _squeezed(text):
    return "".join(text.split())
