"""Tags of a text in HTML or XML: finds them, and pairs them to elements."""

import collections
import dataclasses
import re
from collections.abc import Iterator
from typing import Literal

import regex

from keras_transformer.text.patterns import MARKUP_TAG

# HTML's elements that begin on a new line, or in a box of their own, and so separate texts.
# https://html.spec.whatwg.org/multipage/rendering.html
_SECTIONS = "address article aside body footer head header hgroup html main nav search section"
_PARAGRAPHS = (
    "blockquote center dialog div figcaption figure h1 h2 h3 h4 h5 h6 hr p plaintext title"
)
_LISTS = "dd details dir dl dt li listing menu ol pre summary ul xmp"
_TABLES = "caption col colgroup table tbody td tfoot th thead tr"
_FORMS = "button fieldset form frameset legend noframes optgroup option select textarea"
_BLOCKS = frozenset(" ".join((_SECTIONS, _PARAGRAPHS, _LISTS, _TABLES, _FORMS)).split())
_VERBATIM = frozenset(("listing", "pre", "textarea", "xmp"))  # White space in them counts.
SEPARATORS = frozenset("audio br canvas embed iframe img input meter object progress video".split())
"""Names of elements that stand between words, but inside of a sentence."""

EMPTY = frozenset("area base br col embed hr img input link meta param source track wbr".split())
"""Names of elements without an end tag."""
_RAW = {name: re.compile(rf"</{name}\s*+>", re.IGNORECASE) for name in ("script", "style")}
_MARKUP_TAG = re.compile(MARKUP_TAG)
_NAME = re.compile(r"</?([^\s/>]*)")
_ATTRIBUTE = re.compile(
    r"""[\s"'/]([^\s"'<>/=]+)\s*+=\s*+(?:"([^"]*)"|'([^']*)'|([^\s"'<>][^\s<>]*))"""
)
# What people read as it is, as in Firefox: code, keys, output, variables, formulas, drawings.
_NOT_TRANSLATED = frozenset("code kbd samp var math svg".split())
# How a page begins: `<!doctype` or `<html>`, after comments.
_PAGE = regex.compile(
    r"\s*+(?:<\?xml[^>]*+>\s*+)?+(?:<!--.*?-->\s*+)*+<(?:!doctype\s|html[\s>])",
    regex.DOTALL | regex.IGNORECASE,
)
_SHOWN = frozenset(("alt", "aria-label", "placeholder", "title"))  # attributes that people read
_MAY_BE_SHOWN = re.compile("|".join((*sorted(_SHOWN), "content")), re.IGNORECASE)
# A run of white space that is more than one space.
_LAYOUT = re.compile(r"(?:\ ?[^\S\ ]|\ {2})\s*")

Kind = Literal["begin", "end", "single", "copy"]


@dataclasses.dataclass(eq=False, slots=True)
class MarkupTag:
    """A tag, a comment, or an element that is copied as it is: `source[start:stop]`.

    Attributes:
        kind: `"begin"` and `"end"` of an element; `"single"` for an empty element, a comment or a
            script; `"copy"` for an element that is not translated.
        name: Name of the element in lower case, "" for a comment.
        partner: The other tag of the element, None without one.
        is_block: Whether the texts before and after it are separate texts.
        values: Start and stop of the values of its attributes that people read, such as `title`,
            without quotation marks: separate texts.
    """

    start: int
    stop: int
    kind: Kind
    name: str = ""
    partner: "MarkupTag | None" = None
    is_block: bool = False
    values: tuple[tuple[int, int], ...] = ()


def find_tags(source: str) -> list[MarkupTag]:
    """Returns the tags of a source in order, with white space that counts as blocks."""
    if "<" not in source:
        return []
    tags = list(_Scanner(source).tags())
    stops = _pair(tags)
    _separate_lines(source, tags)
    tags = list(_with_layout(source, _with_copies(source, tags, stops)))
    for tag in tags:
        if tag.kind in ("begin", "single") and tag.name and tag.name not in _RAW:
            tag.values = _shown_values(source, tag)
    return tags


def begins_page(text: str) -> bool | None:
    """Returns whether a text begins as a page does, None if more of the text will tell.

    >>> begins_page("<!doctype html>"), begins_page("<p>"), begins_page("<!-- a")
    (True, False, None)
    """
    match = _PAGE.match(text, partial=True)
    return match is not None and (None if match.partial else True)


def count_blocks(source: str) -> int:
    """Returns the greatest number of separate texts in a source in HTML, fast."""
    count, has_text, position = 0, False, 0
    for tag in find_tags(source):
        has_text |= bool(source[position : tag.start].strip())
        position = tag.stop
        if tag.is_block:
            count, has_text = count + has_text, False
        count += len(tag.values)
        has_text |= tag.kind == "copy"
    return max(count + (has_text or bool(source[position:].strip())), 1)


class _Scanner:
    """Finds tags in one pass: an end that is missing once is missing in the rest of the text."""

    def __init__(self, source):
        self._source, self._missing = source, set()

    def tags(self) -> Iterator[MarkupTag]:
        start, source = self._source.find("<"), self._source
        while start >= 0:
            tag = self._tag(start)
            if tag is not None:
                yield tag
            start = source.find("<", start + 1 if tag is None else tag.stop)

    def _tag(self, start):
        """Returns the tag that begins at a `<`, or None if it is a character."""
        source = self._source
        beginning = source[start : start + 9].upper()
        if beginning[1:2] in ("!", "?"):
            if beginning.startswith("<!--"):
                stop = self._end("-->", start + 2)
            elif beginning == "<![CDATA[":
                stop = self._end("]]>", start + 9)
            elif beginning[1] == "?":
                stop = self._end("?>", start + 2)
            else:  # <!DOCTYPE html>, and <![if !IE]> of old pages
                is_declaration = beginning[2:3] == "[" or beginning[2:3].isalpha()
                stop = self._end(">", start + 2) if is_declaration else None
            return None if stop is None else MarkupTag(start, stop, "single")
        if (match := _MARKUP_TAG.match(source, start)) is None:
            return None
        (name,), stop = _NAME.match(match[0].lower()).groups(), match.end()
        kind: Kind = "end" if beginning[1] == "/" else "begin"
        if kind == "begin" and (match[0].endswith("/>") or name in EMPTY or name in _RAW):
            kind = "single"
            if name in _RAW:
                stop = self._raw_end(name, stop) or stop
        return MarkupTag(start, stop, kind, name, is_block=name in _BLOCKS)

    def _end(self, end, position):
        if end in self._missing:
            return None
        if (start := self._source.find(end, position)) < 0:
            self._missing.add(end)
            return None
        return start + len(end)

    def _raw_end(self, name, position):
        if name in self._missing:
            return None
        if (match := _RAW[name].search(self._source, position)) is None:
            self._missing.add(name)
            return None
        return match.end()


def _pair(tags):
    """Pairs tags; returns the end tags of other elements that end elements without a tag."""
    open_tags: list[MarkupTag] = []
    open_names: collections.Counter[str] = collections.Counter()
    stops: dict[MarkupTag, MarkupTag] = {}
    for tag in tags:
        if tag.kind == "begin":
            open_tags.append(tag)
            open_names[tag.name] += 1
        elif tag.kind == "end" and open_names[tag.name]:
            while (last := open_tags.pop()).name != tag.name:
                open_names[last.name] -= 1
                stops[last] = tag
            open_names[tag.name] -= 1
            tag.partner, last.partner = last, tag
    return stops


def _separate_lines(source, tags):
    """Makes blocks of the line breaks in an address, and of those that only white space is between.

    Any other `<br>` may be inside of a sentence.
    """
    depth, last = 0, None
    for tag in tags:
        if tag.name == "address" and tag.partner is not None:
            depth += 1 if tag.kind == "begin" else -1
        if tag.name == "br":
            tag.is_block = depth > 0
            if last is not None and not source[last.stop : tag.start].replace("&nbsp;", "").strip():
                last.is_block = tag.is_block = True
        last = tag if tag.name == "br" else None


def _with_copies(source, tags, stops):
    """Yields tags; an element that is not translated as one tag.

    It is code or the like, or has `translate="no"` or the class `notranslate`.
    """
    copy: MarkupTag | None = None
    for tag in tags:
        if copy is not None:
            if tag is copy.partner:
                yield _copied(copy, tag.stop)
                copy = None
                continue
            # Without its end, the element ends with the element around it, or at the next block.
            if copy.partner is not None or not (tag.is_block or tag is stops.get(copy)):
                continue
            yield _copied(copy, tag.start)
            copy = None
        if tag.kind == "begin" and is_kept(source[tag.start : tag.stop], tag.name):
            copy = tag
        else:
            yield tag
    if copy is not None:
        yield _copied(copy, len(source))


def _copied(tag, stop):
    return dataclasses.replace(tag, stop=stop, kind="copy", partner=None)


def is_kept(literal, name):
    """Returns True for the tag of an element that is not translated."""
    is_code = name in _NOT_TRANSLATED
    if "translate" not in literal.lower():
        return is_code
    for attribute, *values in _ATTRIBUTE.findall(literal):
        value = "".join(values)
        if attribute.lower() == "translate":
            return {"no": True, "yes": False}.get(value.strip().lower(), is_code)
        if attribute.lower() == "class" and "notranslate" in value.split():
            return True
    return is_code


def _shown_values(source, tag):
    """Returns the spans of the values of a tag that people read, also of a page's description."""
    literal = source[tag.start : tag.stop]
    if not _MAY_BE_SHOWN.search(literal):
        return ()
    names = _SHOWN
    if tag.name == "meta":
        values = {name.lower(): "".join(rest) for name, *rest in _ATTRIBUTE.findall(literal)}
        names = {"content"} if values.get("name", "").lower() == "description" else frozenset()
    matches = (match for match in _ATTRIBUTE.finditer(literal) if match[1].lower() in names)
    spans = (match.span(match.lastindex) for match in matches)
    return tuple((tag.start + start, tag.start + stop) for start, stop in spans)


def _with_layout(source, tags):
    """Yields tags, and as blocks the white space that counts in `<pre>`, except single spaces."""
    depth = position = 0
    for tag in tags:
        if depth:
            for match in _LAYOUT.finditer(source, position, tag.start):
                yield MarkupTag(match.start(), match.end(), "single", is_block=True)
        yield tag
        position = tag.stop
        if tag.name in _VERBATIM:
            depth += {"begin": 1, "end": -1}.get(tag.kind, 0)
            depth = max(depth, 0)
    if depth:
        for match in _LAYOUT.finditer(source, position):
            yield MarkupTag(match.start(), match.end(), "single", is_block=True)
