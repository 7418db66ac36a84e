"""Inline elements of a translation memory's segments: removed, or kept as tags.

Source: TMX 1.4b, https://www.gala-global.org/tmx-14b, and XLIFF, whose elements some programs write
into memories: https://docs.oasis-open.org/xliff/v1.2/os/xliff-core.html.
"""

import collections
import dataclasses
import html
import re
from collections.abc import Mapping
from typing import Literal

import regex

from keras_transformer.base.reading import one_line
from keras_transformer.extras.corpora.xml_text import FORBIDDEN
from keras_transformer.text.elements import SEPARATORS, find_tags
from keras_transformer.text.patterns import ITEM, MARKUP_TAG

Kind = Literal["begin", "end", "single"]

# Elements whose content is code of another format.
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("bpt", "bx", "sc"), "begin"),
    **dict.fromkeys(("ept", "ex", "ec"), "end"),
    **dict.fromkeys(("ph", "it", "ut", "x"), "single"),
}
_GROUPS = frozenset(("hi", "g", "pc", "mrk"))  # elements around text
# Attributes with the number of a code, and with the number that both ends of a pair have.
_NUMBERS, _PAIR_NUMBERS = ("i", "x", "id", "mid"), ("i", "rid", "startref", "x", "id")
_EQUIVALENTS = ("equiv-text", "equiv")  # attributes with the code of an element without content

_ELEMENT_SIZE = 100  # characters that need as much memory as an element
_TAGS = re.compile(rf"\s*+(?:{MARKUP_TAG}\s*+)++")
_END_TAGS = re.compile(r"\s*+(?:</[^<>]*+>\s*+)++")
_TAG_NAME = re.compile(r"</?([^\s/>]+)")
_SIGNS = r"(?:[^\w<>\\{}%$&]|%%)*+"  # next to fields, as in `({0}, {1})`
_FIELDS = regex.compile(rf"{_SIGNS}(?:(?:{ITEM.pattern}){_SIGNS})++", regex.V1)
_REFERENCE = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
# Line breaks and tabs of source code, and of RTF.
_BREAK_CODE = re.compile(
    r"(?:\\[nrt])+\Z|(?s:.*?)\\(?:line|par|tab|cell|row|page|sect)(?![A-Za-z])"
)
_BREAK_TYPES = frozenset("lb pb cb br tab newline linebreak line-break image img".split())
_BREAK_NAMES = SEPARATORS | {"tab", "cr", "lb", "line-break"}
_SPACES = re.compile(r"\s{2,}|[\t\r\n]")


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class _Code:
    """A code, or the begin or the end of an element.

    Attributes:
        kind: Its kind.
        number: Number of the code.
        pair: Number that both ends of a pair have.
        is_break: Whether its element says that it separates words.
        content: Its text.
        is_element: Whether it is the begin or the end of an element around text.
    """

    kind: Kind
    number: str = ""
    pair: str = ""
    is_break: bool = False
    content: str = ""
    is_element: bool = False

    def as_text(self):
        """Returns the text that a code stands for: a field, a character or a space; or ""."""
        content = self.content.replace(FORBIDDEN, " ")
        code = content.strip()
        if _REFERENCE.fullmatch(code):
            content = html.unescape(code)
            if len(content) == 1:
                return content
        if content and not code:
            return " "
        # `{}` of a pair stands for formatting without a name, as memoQ writes it.
        is_field = _FIELDS.fullmatch(code) and (self.kind == "single" or code != "{}")
        return code if is_field else ""

    def is_separator(self):
        """Returns whether a code separates words, as a line break does."""
        code = self.content.strip()
        names = [(tag.name.rpartition(":")[2], tag.is_block) for tag in find_tags(code)]
        has_break = any(is_block or name in _BREAK_NAMES for name, is_block in names)
        return self.is_break or has_break or _BREAK_CODE.match(code) is not None

    def as_markup(self, partner: "_Code | None"):
        """Returns the tags of a code, `<g id="1">` and `</g>` of a pair, or `<x id="1"/>`.

        `partner` is the other end of its pair, None without one.
        """
        number = html.escape(self.number)
        if self.kind == "single":
            return self.content.strip() if _TAGS.fullmatch(self.content) else f'<x id="{number}"/>'
        if partner is None:
            return f'<x id="{number}"/>'
        begin, end = (self, partner) if self.kind == "begin" else (partner, self)
        if (tags := _paired_tags(begin.content, end.content)) is not None:
            return tags[self.kind == "end"]
        return f'<g id="{number}">' if self.kind == "begin" else "</g>"


def _paired_tags(begin, end):
    """Returns the tags of both ends of a pair, None for codes that are not tags that match."""
    if not _TAGS.fullmatch(begin):
        return None
    tags = find_tags(begin)
    if not all(tag.kind == "begin" for tag in tags):
        return None
    names = [_TAG_NAME.match(begin, tag.start)[1] for tag in reversed(tags)]
    if not end.strip():
        end = "".join(f"</{name}>" for name in names)
    elif not _END_TAGS.fullmatch(end) or _TAG_NAME.findall(end.lower()) != [
        name.lower() for name in names
    ]:
        return None
    return begin.strip(), end.strip()


@dataclasses.dataclass(eq=False, slots=True)
class _Element:
    """An element of a segment, with the texts and elements in it."""

    name: str
    attributes: Mapping[str, str]
    children: "list[str | _Element]" = dataclasses.field(default_factory=list)


class Segment:
    """The content of a segment, a tree that grows while it is read.

    Args:
        keeps_tags: Whether codes become tags; otherwise they are removed. A code that is a field,
            such as `%s` or `{name}`, is text. Where a removed code separates words, and where two
            spaces would meet, is one space.

    Attributes:
        size: Number of characters; an element, which needs more memory, counts as a hundred.
    """

    def __init__(self, keeps_tags: bool):
        self._keeps_tags = keeps_tags
        self.size = 0
        self._children: list[str | _Element] = []
        self._open: list[_Element] = []

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """Begins an element.

        Args:
            name: Its name.
            attributes: Its attributes; names are in lower case, without prefixes.
        """
        self.size += _ELEMENT_SIZE + sum(map(len, attributes.values()))
        element = _Element(name, attributes)
        self._innermost().append(element)
        self._open.append(element)

    def end(self) -> None:
        """Ends the innermost element."""
        self._open.pop()

    def add(self, text: str) -> None:
        """Adds text."""
        self.size += len(text)
        self._innermost().append(text)

    def _innermost(self):
        return self._open[-1].children if self._open else self._children

    @property
    def text(self) -> str:
        """The text in one line; it contains `FORBIDDEN` for characters that XML forbids."""
        items = _items(self._children)
        return _with_tags(items) if self._keeps_tags else _without_tags(items)


def _items(nodes):
    """Returns the texts and the codes of a tree in order."""
    items: list[str | _Code] = []
    nodes_left: list[str | _Element | _Code] = list(reversed(nodes))
    while nodes_left:
        node = nodes_left.pop()
        if not isinstance(node, _Element):
            items.append(node)
        elif node.name in _KINDS:
            equivalent = _first_of(node.attributes, _EQUIVALENTS)
            items.append(_code(node, _KINDS[node.name], equivalent + _text_inside(node)))
        elif node.name not in _GROUPS and not node.children:
            items.append(_code(node, "single", f"{_tag(node)[:-1]}/>"))
        else:
            # A tag of another format stays as it is.
            is_group = node.name in _GROUPS
            begin = _code(node, "begin", "" if is_group else _tag(node), is_element=True)
            end = "" if is_group else f"</{node.name}>"
            items.append(begin)
            nodes_left.append(_Code("end", begin.number, content=end, is_element=True))
            nodes_left += reversed(node.children)
    return items


def _code(element, kind, content, is_element=False):
    """Makes the code of an element, with the numbers of its attributes."""
    number, pair = (_first_of(element.attributes, names) for names in (_NUMBERS, _PAIR_NUMBERS))
    type_name = element.attributes.get("type", element.attributes.get("ctype", ""))
    is_break = type_name.lower().removeprefix("x-") in _BREAK_TYPES
    return _Code(kind, number, pair, is_break, content, is_element)


def _first_of(attributes, names):
    return next((attributes[name] for name in names if name in attributes), "")


def _tag(element):
    values = (f' {key}="{html.escape(value)}"' for key, value in element.attributes.items())
    return f"<{element.name}{''.join(values)}>"


def _text_inside(element):
    """Returns the text in an element and in the elements inside it."""
    texts: list[str] = []
    nodes_left: list[str | _Element] = [element]
    while nodes_left:
        node = nodes_left.pop()
        if isinstance(node, str):
            texts.append(node)
        else:
            nodes_left += reversed(node.children)
    return "".join(texts)


def _without_tags(items):
    """Returns the text of items without the codes that are not text."""
    writer = _Writer()
    for item in items:
        if isinstance(item, str):
            writer.add(item)
        elif (text := item.as_text()).strip():
            writer.add(text)
        else:
            writer.leave_out(" " if text or item.is_separator() else "")
    return writer.line()


def _with_tags(items):
    """Returns the text of items as HTML, in which codes are tags."""
    pairs = _pairs(items)
    writer = _Writer()
    for item in items:
        text = item if isinstance(item, str) else item.as_text()
        if isinstance(item, str) or text.strip():
            writer.add(html.escape(text, quote=False))
        elif text:
            writer.leave_out(" ")
        else:
            writer.add(item.as_markup(pairs.get(item)))
    return writer.line()


def _without_breaks(match):
    """Returns a run of spaces, or one space for a line break with the indentation around it."""
    return " " if re.search(r"[\t\r\n]", match[0]) else match[0]


class _Writer:
    """Joins texts; the spaces around a removed code become one space."""

    def __init__(self):
        self.parts: list[str] = []
        self._ends_with_space, self._is_after_gap = True, False

    def add(self, text: str) -> None:
        if self._is_after_gap and self._ends_with_space:
            text = text.lstrip()
        if text:
            self.parts.append(text)
            self._ends_with_space, self._is_after_gap = text[-1].isspace(), False

    def line(self) -> str:
        """Returns all of it in one line."""
        return one_line(_SPACES.sub(_without_breaks, "".join(self.parts))).strip()

    def leave_out(self, space: str) -> None:
        """Leaves out a code that stands for a space, or for nothing."""
        if space and not self._ends_with_space:
            self.parts.append(" ")
            self._ends_with_space = True
        self._is_after_gap = True


def _pairs(items):
    """Returns the other end of each code of a pair, and of each element.

    Pairs that overlap, or cross an element, have no other end.
    """
    pairs: dict[_Code, _Code] = {}
    elements: list[_Code] = []  # open elements around the current code
    scopes: list[tuple[list[_Code], collections.Counter[str]]] = [([], collections.Counter())]
    for item in items:
        if isinstance(item, str) or item.kind == "single":
            continue
        begin = None
        open_codes, open_pairs = scopes[-1]
        if item.is_element and item.kind == "begin":
            elements.append(item)
            scopes.append(([], collections.Counter()))
        elif item.is_element:
            begin = elements.pop()
            scopes.pop()
        elif item.kind == "begin":
            open_codes.append(item)
            open_pairs[item.pair] += 1
        elif open_pairs[item.pair]:
            while (begin := open_codes.pop()).pair != item.pair:
                open_pairs[begin.pair] -= 1
            open_pairs[item.pair] -= 1
        if begin is not None:
            pairs |= {begin: item, item: begin}
    return pairs
