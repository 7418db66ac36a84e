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
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from keras_transformer.documents.dividing import nearest_borders
from keras_transformer.documents.document import Document, Settings, replaced
from keras_transformer.documents.marked_texts import MarkedTexts
from keras_transformer.errors import require
from keras_transformer.text.patterns import ITEM
from keras_transformer.text.sentences import has_letters

_LINE = re.compile(r"([^\r\n]*)(?:\r\n?|\n|\Z)")
_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\r?\n(?=\S)(?:.*\n)*?\1[ \t]*\r?(?:\n|\Z)")
# What CommonMark lacks: the box of a task and the name of a footnote at the beginning, and the
# reference to a footnote.
_LEADING = re.compile(r"(?:\[[ xX]\]|\[\^[^\]\s]+\]:)\s+")
_FOOTNOTE = re.compile(r"\[\^[^\]\s]+\]")
_TAG = re.compile(r"""(<x\d+ translate="no"></x\d+>|</?x\d+>|<br x="\d+">)""")
_SPACES = re.compile(r"\s+")
_SPECIAL = re.compile(r"[\\`*_\[\]<>&~#]")
_AT_LINE_START = re.compile(r"([-+=])|(\d{1,9})([.)])")
_WORD = re.compile(r"[-./]*\w[-.\w/]{0,23}")
_HTML_NAME = re.compile(r"<(/?)([a-zA-Z][^\s/>]*)")


class Markdown(Document):
    """A document in CommonMark, with tables, strikethrough, tasks, footnotes and front matter."""

    def __init__(self, text: str, settings: Settings):
        self._text = text
        passages = list(_passages(text, not settings.has_placeholders))
        self._blocks = [passage for passage in passages if passage is not None]
        self._num_lost = len(passages) - len(self._blocks)
        with_images = (passage for block in self._blocks for passage in (*block.inner, block))
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
        places = [block.place for block in self._blocks]
        return replaced(self._text, places, [block.written() for block in self._blocks])


class _Piece(NamedTuple):
    """A mark of a passage.

    Attributes:
        kind: `"begin"` or `"end"` of an element. `"copy"` is code, or another text that is not
            translated. `"code"` is one that the model reads as a word, whose translation is
            dropped. `"line"` ends a line, and `"break"` ends one for readers, too. `"sign"` is
            an escaped character.
        start: Offset in the content.
        stop: Offset of the end.
        tag: What stands for it in HTML.
        text: What the parser takes for text in it.
        label: Of a link's end without an address or a name: the text that names it.
        image: The text in an image's mark.
    """

    kind: str
    start: int
    stop: int
    tag: str
    text: str = ""
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
        is_cell: Whether it is the content of a table's cell.
    """

    def __init__(
        self,
        content: str,
        offsets: list[int],
        text: str,
        pieces: list[_Piece],
        check: "Callable[[str], _Parsed]",
        is_cell: bool = False,
    ):
        self._content, self._offsets, self._text = content, offsets, text
        self._pieces, self._check, self._is_cell = pieces, check, is_cell
        self._new: list[tuple[str, str]] | None = None  # contents and what is written for them
        self.place = offsets[0], offsets[-1]
        self.inner = [piece.image for piece in pieces if piece.image is not None]
        self._gaps = _gaps(content, pieces)
        self.words = " ".join(self._gaps)
        self.source = "".join(
            html.escape(gap, quote=False) + tag
            for gap, tag in itertools.zip_longest(
                self._gaps, (piece.tag for piece in pieces), fillvalue=""
            )
        )

    def take(self, translated: str) -> bool:
        """Takes a translation of `source`; returns False if it cannot be written."""
        if _plain(translated) == _plain(self.source):
            return True
        parts = self._read(translated)
        if parts is None:
            return False
        text = "".join(part if isinstance(part, str) else part.text for part in parts)
        expected = self._check(self._content)._replace(text=_squeezed(text))
        parts = self._with_lines(parts)
        for escape in (False, True):
            pairs = self._pairs(parts, escape)
            if self._check("".join(content for content, _ in pairs)) == expected:
                self._new = pairs
                return True
        return False

    def written(self) -> str:
        """Returns what replaces `place`: the translation, or the source with new images."""
        if self._new is not None:
            return "".join(literal for _, literal in self._new)
        written, position = [], 0
        for piece in self._pieces:
            if piece.image is not None:
                written += [self._slice(position, piece.start), self._image(piece)]
                position = piece.stop
        return "".join([*written, self._slice(position, len(self._content))])

    def _read(self, translated):
        """Returns the texts of a translation and the marks between them, None for other marks."""
        marks = {
            match[0]: piece
            for piece in self._pieces
            if (match := _TAG.match(piece.tag)) is not None
        }
        parts: list[Any] = []
        split, number = _TAG.split(translated), 0
        while number < len(split):
            if number % 2 == 0:
                parts.append(_SPACES.sub(" ", html.unescape(split[number])))
            elif (piece := marks.pop(split[number], None)) is None:
                return None
            else:
                parts.append(piece)
                if piece.kind == "code":  # without the model's word for it
                    number += 2
                    if split[number : number + 1] != [piece.tag[-len(split[number - 2]) - 1 :]]:
                        return None
            number += 1
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

    def _pairs(self, parts, escape):
        """Returns what each part is in the content, and in the document."""
        pairs, begins_line = [], True
        for part in parts:
            if isinstance(part, str):
                content = _escaped(part, begins_line) if escape else part
                # The parser has removed this escape from a cell.
                literal = content.replace("|", r"\|") if self._is_cell else content
                pairs.append((content, literal))
                begins_line = False
                continue
            content = self._content[part.start : part.stop]
            literal = self._slice(part.start, part.stop)
            if part.image is not None:
                literal = self._image(part)
            if part.label is not None:
                content = literal = f"][{part.label}]"
            pairs.append((content, literal))
            begins_line = part.kind in ("line", "break")
        return pairs

    def _slice(self, start, stop):
        return self._text[self._offsets[start] : self._offsets[stop]]

    def _image(self, piece):
        start, stop = self._offsets[piece.start], self._offsets[piece.stop]
        inner_start, inner_stop = piece.image.place
        return self._text[start:inner_start] + piece.image.written() + self._text[inner_stop:stop]


class _Parsed(NamedTuple):
    """Results of a parser: blocks and marks in a fixed order, and texts without white space."""

    marks: list[Any]
    text: str


def _passages(text, reads_code):
    """Yields the passages of a document's blocks, in order; None for one that was not found."""
    parser, environment = _parser(), {}
    front_matter = _FRONT_MATTER.match(text)
    first = 0 if front_matter is None else front_matter.end()
    lines = [match.span(1) for match in _LINE.finditer(text, first)]
    tokens, position = parser.parse(text[first:], environment), 0
    references = environment.get("references", {})
    for before, token in itertools.pairwise(tokens):
        if before.type == "tr_open":
            position = lines[before.map[0]][0]
        if token.type != "inline" or not token.content:
            continue
        is_cell = before.type in ("th_open", "td_open")
        if is_cell:
            offsets = _offsets_in_row(text, token.content, position)
            position = offsets[-1] if offsets else position
        else:
            offsets = _offsets(text, token.content, lines[slice(*token.map)], before)
        if offsets is None:
            yield None
            continue
        check = functools.partial(_check, references, _around(before))
        leading = _LEADING.match(token.content)
        start = 0 if leading is None else leading.end()
        content, offsets = token.content[start:], offsets[start:]
        pieces = _pieces(content, offsets, text, token.children, start, references, reads_code)
        yield None if pieces is None else _Passage(content, offsets, text, pieces, check, is_cell)


def _offsets(text, content, lines, block):
    """Returns where the characters of a content are, and where it ends; None if it is not found."""
    offsets: list[int] = []
    for (start, stop), part in zip(lines, content.split("\n"), strict=False):
        line = text[start:stop]
        if block.markup.startswith("#"):
            place = line.find(part, line.index("#") + len(block.markup))
        else:
            place = len(line.rstrip()) - len(part.rstrip())
        if place < 0 or not line.startswith(part, place):
            return None
        offsets.extend(range(start + place, start + place + len(part) + 1))
    return offsets if len(offsets) == len(content) + 1 else None


def _offsets_in_row(text, content, position):
    """Returns the same for a table's cell, which has `\\|` for `|`."""
    written = content.replace("|", r"\|")
    start = text.find(written, position)
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


def _check(references, around, content):
    """Parses the content of a block; returns its blocks and marks, and its text."""
    # A content must not change what other contents refer to.
    environment = {"references": collections.ChainMap({}, references)}
    if around is None:
        tokens = _parser().parseInline(content, environment)
    else:
        tokens = _parser().parse(content.join(around), environment)
    marks, texts = [], []
    for token in tokens:
        _collect(token.children or (), marks, texts)
    return _Parsed([*(token.type for token in tokens), *sorted(marks)], _squeezed("".join(texts)))


def _check_image(references, content):
    """Parses the text of an image as `_check` does."""
    environment = {"references": collections.ChainMap({}, references)}
    (token,) = _parser().parseInline(f"![{content}](x)", environment)
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
            marks.append(repr((token.type, token.markup, token.content, attributes)))
        is_address = token.type == "link_open" and token.info == "auto"


def _pieces(content, offsets, text, tokens, shift, references, reads_code):
    """Returns the marks of a content from the parser's tokens, or None if they overlap.

    `shift` is the number of characters that were removed before the content. `reads_code`: the
    model reads a short code as a word, because it has no tokens for placeholders.
    """
    tokens = [token for token in tokens if "span" in token.meta and token.type != "text"]
    pieces: list[_Piece] = []
    for (token, partner), number in zip(_with_partners(tokens), itertools.count(), strict=False):
        start, stop = (place - shift for place in token.meta["span"])
        options: dict[str, Any] = {}
        if token.type in ("softbreak", "hardbreak"):
            is_shown = token.type == "hardbreak"
            kind, tag = ("break", f'<br x="{number}">') if is_shown else ("line", " ")
            start = len(content[: max(start, 0)].rstrip(" "))
        elif token.type == "text_special":
            kind, tag = "sign", html.escape(token.content, quote=False)
        elif token.type == "code_inline" and reads_code and _is_word(token.content):
            kind, tag = "code", f"<x{number}>{token.content}</x{number}>"
        elif partner is None:
            is_break = token.content.lower().startswith("<br")
            kind, tag = "copy", f'<x{number} translate="no"></x{number}>'
            tag = f'<br x="{number}">' if is_break else tag
            if token.type == "image":
                image = _image_text(content, offsets, text, token, start, references, reads_code)
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
    return _with_footnotes(content, pieces)


def _is_word(code):
    """Returns whether a model may read a code as a word of the sentence."""
    return _WORD.fullmatch(code) is not None and ITEM.search(code) is None


def _with_partners(tokens):
    """Yields tokens with the number of the other end of their element, None without one."""
    partners: dict[int, int] = {}
    open_tokens: list[tuple[int, str]] = []
    for number, token in enumerate(tokens):
        name, nesting = token.type.removesuffix("_open").removesuffix("_close"), token.nesting
        if token.info == "auto":
            continue
        if token.type == "html_inline" and (match := _HTML_NAME.match(token.content)):
            name, nesting = f"<{match[2].lower()}", -1 if match[1] else 1
            if nesting < 0 and (not open_tokens or open_tokens[-1][1] != name):
                continue
        if nesting > 0:
            open_tokens.append((number, name))
        elif nesting < 0:
            while (opening := open_tokens.pop())[1] != name:  # tags of HTML without an end
                pass
            partners[number], partners[opening[0]] = opening[0], number
    return [(token, partners.get(number)) for number, token in enumerate(tokens)]


def _image_text(content, offsets, text, token, start, references, reads_code):
    """Returns the passage of an image's text, None if that also names the image's address."""
    start += 2
    stop = start + len(token.content)
    if not re.match(r"\]\(|\]\[[^\]]", content[stop : stop + 3]):
        return None
    offsets = offsets[start : stop + 1]
    children = token.children or ()
    pieces = _pieces(token.content, offsets, text, children, 0, references, reads_code)
    if pieces is None:
        return None
    check = functools.partial(_check_image, references)
    return _Passage(token.content, offsets, text, pieces, check)


def _with_footnotes(content, pieces):
    """Returns pieces with the references to footnotes between them."""
    result, position, number = [], 0, len(pieces)
    for piece in (*pieces, None):
        stop = len(content) if piece is None else piece.start
        for match in _FOOTNOTE.finditer(content, position, stop):
            tag = f'<x{number} translate="no"></x{number}>'
            result.append(_Piece("copy", *match.span(), tag, match[0]))
            number += 1
        if piece is not None:
            result.append(piece)
            position = piece.stop
    return result


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
        "code": piece.stop - piece.start,
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
    return " ".join(html.unescape(source).split())


def _squeezed(text):
    return "".join(text.split())


@functools.lru_cache(maxsize=1)
def _parser():
    """Returns a parser whose tokens have a `span` in the content that they come from."""
    package = require("markdown_it", "The parser of Markdown", "documents")
    parser = package.MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.disable("text_join")  # It joins escaped characters with others.
    names = parser.get_active_rules()["inline"]
    for name, rule in zip(names, parser.inline.ruler.getRules(""), strict=True):
        parser.inline.ruler.at(name, functools.partial(_run, name, rule))
    return parser


def _run(name, rule, state, silent):
    """Runs a rule of the parser, and notes which characters its tokens come from."""
    start, count = state.pos, len(state.tokens)
    if not rule(state, silent):
        return False
    tokens = state.tokens[count:]  # The first may be the text before the rule's own.
    if silent or not tokens:
        return True
    if name in ("emphasis", "strikethrough"):
        stop = state.pos
        for token in reversed(tokens):
            if stop == start:
                break
            token.meta["span"] = stop - len(token.content), stop
            stop -= len(token.content)
    elif name == "link":
        opening = next(token for token in tokens if token.type == "link_open")
        stop = state.md.helpers.parseLinkLabel(state, start, True)
        opening.meta["span"], tokens[-1].meta["span"] = (start, start + 1), (stop, state.pos)
        tokens[-1].meta["label"] = state.src[start + 1 : stop]
    elif name == "autolink":
        tokens[-3].meta["span"] = start, state.pos
    else:
        tokens[-1].meta["span"] = start, state.pos
    return True
