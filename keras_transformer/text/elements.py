"""Tags of a text in HTML or XML: finds them, and pairs them to elements."""

import collections
import dataclasses
import html
import re
from collections.abc import Iterator
from typing import Literal

import regex

from keras_transformer.text.language_codes import primary_language

# HTML's elements that begin on a new line, or in a box of their own, and so separate texts.
# https://html.spec.whatwg.org/multipage/rendering.html
_SECTIONS = "address article aside body footer head header hgroup html main nav search section"
_PARAGRAPHS = (
    "blockquote center dialog div figcaption figure h1 h2 h3 h4 h5 h6 hr p plaintext title"
)
_LISTS = "dd details dir dl dt li listing menu ol pre summary ul xmp"
_TABLES = "caption col colgroup table tbody td tfoot th thead tr"
_FORMS = "button fieldset form frameset label legend noframes optgroup option select textarea"
_BLOCKS = frozenset(" ".join((_SECTIONS, _PARAGRAPHS, _LISTS, _TABLES, _FORMS)).split())
_VERBATIM = frozenset(("listing", "pre", "textarea", "xmp"))  # White space in them counts.
SEPARATORS = frozenset("audio br canvas embed iframe img input meter object progress video".split())
"""Names of elements that stand between words, but inside of a sentence."""

EMPTY = frozenset("area base br col embed hr img input link meta param source track wbr".split())
"""Names of elements without an end tag."""
# What the tokenizer of the HTML standard reads as a tag, an attribute and a comment. So any `<` and
# a letter begins a tag, which ends with the text if nothing else ends it: each place is read once.
# https://html.spec.whatwg.org/multipage/parsing.html#tokenization
_VALUE = r"""(?:[ \t\n\f\r]*+=[ \t\n\f\r]*+(?:"[^"]*+"?+|'[^']*+'?+|[^ \t\n\f\r>]*+))"""
_TAG = re.compile(
    r"<(?P<end>/?)(?:(?P<name>[A-Za-z][^ \t\n\f\r/>]*+)"
    rf"(?P<attributes>(?:[ \t\n\f\r]++|/(?!>)|[^ \t\n\f\r/>][^ \t\n\f\r/>=]*+{_VALUE}?+)*+)"
    r"|(?P<number>[0-9]{1,3}) ?(?=/?>))(?P<empty>/?)(?P<stop>\Z|>)"  # <0>: react-i18next
)
_ATTRIBUTE = re.compile(rf"(?P<name>[^ \t\n\f\r/>][^ \t\n\f\r/>=]*+)(?P<value>{_VALUE}?+)")
_COMMENT = re.compile(
    r"<(?:!--(?:-?>|.*?(?:--!?>|\Z))|!\[CDATA\[.*?(?:\]\]>|\Z)|\?(?:php|=).*?(?:\?>|\Z)"
    r"|(?:[!?]|/(?!\Z))[^>]*+(?:>|\Z))",
    re.DOTALL | re.IGNORECASE,
)
# Elements with other content than tags: copied as it is, or read as text.
_RAW = frozenset("iframe noembed noframes script style xmp".split())
_CONTENT_END = {
    name: re.compile(rf"</{name}(?=[ \t\n\f\r/>])", re.IGNORECASE)
    for name in (*_RAW, "textarea", "title")
}
# In a comment of a script, the end of another script ends nothing.
_SCRIPT_MARK = re.compile(r"<!(?=--)|-->|</?script(?=[ \t\n\f\r/>])", re.IGNORECASE)
# What people read as it is, as in Firefox: code, keys, output, variables, formulas, drawings.
_NOT_TRANSLATED = frozenset("code kbd samp var math svg".split())
# How a page begins: `<!doctype` or `<html>`, after comments.
_PAGE = regex.compile(
    r"\s*+(?:<\?xml[^>]*+>\s*+)?+(?:<!--.*?-->\s*+)*+<(?:!doctype\s|html[\s>])",
    regex.DOTALL | regex.IGNORECASE,
)
# Attributes that people read, as in Firefox, and those of some elements.
_SHOWN = frozenset(
    "alt aria-description aria-label aria-placeholder aria-roledescription aria-valuetext"
    " placeholder title".split()
)
_LABELLED = frozenset("optgroup option track".split())
_BUTTONS = frozenset("button reset submit".split())
# A run of white space that is more than one space.
_LAYOUT = re.compile(r"(?:\ ?[^\S\ ]|\ {2})\s*")
# Signs that are no part of a sentence, such as bullets, arrows, and icons of a font.
_SIGNS = regex.compile(
    r"[[\s\p{S}\p{Po}\p{Mn}\p{Cf}\p{Co}]"
    r"--[\p{Sc}\p{Terminal_Punctuation}\p{Quotation_Mark}…¿¡&%@/+=<>]]*+",
    regex.V1,
)
_MAX_SIGNS = 100  # characters

_LONG_REFERENCE = regex.compile(r"(&#[xX])([0-9a-fA-F]{9,})|(&#)([0-9]{9,})")
_HTML_SPACES = re.compile(r"[ \t\n\f\r]+")

Kind = Literal["begin", "end", "single", "copy"]


@dataclasses.dataclass(eq=False, slots=True)
class MarkupTag:
    """A tag, a comment, or an element that is copied as it is: `source[start:stop]`.

    Attributes:
        kind: `"begin"` and `"end"` of an element; `"single"` for an empty element, a comment, a
            script or an icon; `"copy"` for an element that is not translated.
        name: Name of the element in lower case, "" for a comment or an icon.
        partner: The other tag of the element, None without one.
        is_block: Whether the texts before and after it are separate texts.
        values: Start and stop of the values of its attributes that people read, such as `title`,
            without quotation marks: separate texts.
        attributes: Start and stop of the values of all attributes of a begin or an empty element,
            by name.
    """

    start: int
    stop: int
    kind: Kind
    name: str = ""
    partner: "MarkupTag | None" = None
    is_block: bool = False
    values: tuple[tuple[int, int], ...] = ()
    attributes: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

    def attribute(self, source: str, name: str) -> str:
        """Returns the value of an attribute, "" without one."""
        start, stop = self.attributes.get(name, (0, 0))
        return source[start:stop]


def find_tags(source: str, language: str | None = None) -> list[MarkupTag]:
    """Returns the tags of a source in order, with white space that counts as blocks.

    Args:
        source: Text in HTML.
        language: Code or name of its language; by default the page names it. Elements in another
            language are not translated.
    """
    if "<" not in source:
        return []
    tags = list(scan_tags(source))
    stops = _pair(tags)
    _separate_lines(source, tags)
    if language is None:
        pages = (tag for tag in tags if tag.name == "html" and tag.kind == "begin")
        language = next((language_of(source, tag) for tag in pages), None)
    tags = list(_with_copies(source, tags, stops, primary_language(language)))
    return list(_with_layout(source, _with_signs(source, tags)))


def begins_page(text: str) -> bool | None:
    """Returns whether a text begins as a page does, None if more of the text will tell.

    >>> begins_page("<!doctype html>"), begins_page("<p>"), begins_page("<!-- a")
    (True, False, None)
    """
    match = _PAGE.match(text, partial=True)
    return match is not None and (None if match.partial else True)


def unescape(text: str) -> str:
    """Returns a text with characters instead of their references, as `html.unescape` does.

    Python would refuse a reference of more than 4,300 digits.
    """
    return html.unescape(_LONG_REFERENCE.sub(_shortened, text)) if "&" in text else text


def _shortened(match):
    beginning, digits = (group for group in match.groups() if group is not None)
    return beginning + (digits.lstrip("0")[:9] or "0")


def plain_text(source: str) -> str:
    """Returns what a person reads of a source in HTML, in one line.

    >>> plain_text("Two <b>dogs</b> &amp;<br>a\\n<code>cat</code> ")
    'Two dogs & a cat'
    """
    pieces, position = [], 0
    for tag in scan_tags(source):
        is_space = tag.is_block or tag.name in SEPARATORS
        pieces += [source[position : tag.start], " " if is_space else ""]
        position = tag.stop
    text = unescape("".join([*pieces, source[position:]]))
    return _HTML_SPACES.sub(" ", text).strip(" ")


def is_kept(tag: str) -> bool:
    """Returns whether a tag, such as `<code>`, begins an element that is not translated."""
    return not all(_state(tag, next(scan_tags(tag)), "", (True, True)))


def count_blocks(source: str) -> int:
    """Returns the greatest number of separate texts in a source in HTML, fast."""
    count, has_text, position = 0, False, 0
    for tag in find_tags(source, language=""):
        has_text |= bool(source[position : tag.start].strip())
        position = tag.stop
        if tag.is_block:
            count, has_text = count + has_text, False
        count += len(tag.values)
        has_text |= tag.kind == "copy"
    return max(count + (has_text or bool(source[position:].strip())), 1)


def scan_tags(source: str) -> Iterator[MarkupTag]:
    """Yields the tags and comments of a source, and what the content of an element has instead."""
    start = source.find("<")
    while start >= 0:
        stop = start + 1
        if (match := _TAG.match(source, start)) is not None:
            tag = _tag(source, match)
            yield tag
            stop = tag.stop
            if tag.kind == "begin" and tag.name in _CONTENT_END:
                stop = _content_end(source, tag.name, stop)
        elif (match := _COMMENT.match(source, start)) is not None:
            stop = match.end()
            yield MarkupTag(start, stop, "single")
        start = source.find("<", stop)


def _tag(source, match):
    start, stop = match.span()
    if not match["stop"]:  # No browser shows it.
        return MarkupTag(start, stop, "single")
    name = (match["name"] or match["number"]).lower()
    is_block = name in _BLOCKS
    if match["end"]:
        return MarkupTag(start, stop, "end", name, is_block=is_block)
    attributes: dict[str, tuple[int, int]] = {}
    for attribute in _ATTRIBUTE.finditer(source, *match.span("attributes")):
        begin, end = attribute.span("value")
        if value := attribute["value"]:
            begin = end - len(value.lstrip(" \t\n\f\r").removeprefix("=").lstrip(" \t\n\f\r"))
            if source[begin:end][:1] in ("'", '"'):
                begin, end = begin + 1, end - 1
        attributes.setdefault(attribute["name"].lower(), (begin, end))
    kind: Kind = "single" if match["empty"] or name in EMPTY else "begin"
    if kind == "begin" and name in _RAW:
        end = _TAG.match(source, _content_end(source, name, stop))
        stop = len(source) if end is None else end.end()
        return MarkupTag(start, stop, "single", name, is_block=is_block)
    return MarkupTag(start, stop, kind, name, is_block=is_block, attributes=attributes)


def _content_end(source, name, position):
    """Returns where the end tag of an element without tags begins, or the end of the source."""
    if name != "script":
        end = _CONTENT_END[name].search(source, position)
        return len(source) if end is None else end.start()
    depth = 0  # 1 in a comment, 2 in a script in a comment
    for match in _SCRIPT_MARK.finditer(source, position):
        if match[0] == "<!":
            depth = max(depth, 1)
        elif match[0] == "-->":
            depth = 0
        elif match[0][1] != "/":
            depth = 2 if depth else 0
        elif depth < 2:
            return match.start()
        else:
            depth = 1
    return len(source)


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
    """Makes blocks of tags that may be inside of a sentence elsewhere.

    These are line breaks in an address, line breaks that only white space is between, and links in
    a `<nav>`.
    """
    depths, last = dict.fromkeys(("address", "nav"), 0), None
    for tag in tags:
        if tag.name in depths and tag.partner is not None:
            depths[tag.name] += 1 if tag.kind == "begin" else -1
        if tag.name == "a":
            tag.is_block = depths["nav"] > 0
        if tag.name == "br":
            tag.is_block = depths["address"] > 0
            if last is not None and not source[last.stop : tag.start].replace("&nbsp;", "").strip():
                last.is_block = tag.is_block = True
        last = tag if tag.name == "br" else None


def language_of(source: str, tag: MarkupTag) -> str:
    """Returns the language that a tag names, "" without one."""
    return tag.attribute(source, "lang") or tag.attribute(source, "xml:lang")


def _with_copies(source, tags, stops, language):
    """Yields tags, with values; each part that is not translated as one tag.

    Such an element is code or the like, has `translate="no"` or the class `notranslate`, or is in
    another language. An element in it that is translated is a text of its own.
    """
    around: list[tuple[MarkupTag, tuple[bool, bool]]] = []  # with the state around the element
    state = True, True  # is translated, is in the page's language
    first: MarkupTag | None = None  # of a part that is not translated
    is_block = False
    for tag in tags:
        # Without its end, an element ends with the element around it, or at the next block.
        while (
            around
            and around[-1][0].partner is None
            and (tag.is_block or tag is stops.get(around[-1][0]))
        ):
            _, state = around.pop()
            if first is not None and all(state):
                yield _copied(first, tag.start, is_block)
                first = None
        was_translated = all(state)
        if around and tag is around[-1][0].partner:
            _, state = around.pop()
        new_state = _state(source, tag, language, state)
        if tag.kind == "begin" and new_state != state:
            if was_translated or tag.partner is not None:
                around.append((tag, state))
                state = new_state
        if was_translated and all(state):
            if all(new_state):
                tag.values = _shown_values(source, tag)
            yield tag
        elif was_translated:  # The tag begins an element, or ends one in another.
            first, is_block = tag, tag.is_block or tag.kind == "end"
        elif all(state):
            yield _copied(first, tag.stop, is_block or tag.kind == "begin")
            first = None
    if first is not None:
        yield _copied(first, len(source), is_block)


def _copied(first, stop, is_block):
    return MarkupTag(first.start, stop, "copy", first.name, is_block=is_block)


def _state(source, tag, language, state):
    """Returns whether an element is translated, and whether it is in the page's language."""
    is_translated, is_in_language = state
    is_translated &= tag.name not in _NOT_TRANSLATED
    if tag.attributes:
        classes = tag.attribute(source, "class").split()
        is_translated &= "notranslate" not in classes
        if "translate" in tag.attributes:
            value = tag.attribute(source, "translate").strip().lower()
            is_translated = {"no": False, "yes": True, "": True}.get(value, is_translated)
        other = primary_language(language_of(source, tag))
        if language and other and tag.name != "html":
            is_in_language = other == language
    return is_translated, is_in_language


def _with_signs(source, tags):
    """Returns tags; an element around signs that follow a space, such as a bullet, as one tag.

    A model may drop such a sign, and an element without a sign would enclose a word.
    """
    result: list[MarkupTag] = []
    begins: dict[MarkupTag, tuple[int, int]] = {}  # with the number of tags and signs before them
    num_signs, position, is_after_space = 0, 0, True
    for tag in tags:
        piece, position = source[position : tag.start], tag.stop
        if piece:
            piece = unescape(piece[-_MAX_SIGNS:])
            is_after_space = piece[-1].isspace()
            num_signs += not piece.isspace()
            if not _SIGNS.fullmatch(piece):
                begins.clear()
        if tag.is_block or tag.kind == "copy" or (tag.kind == "single" and tag.name):
            begins.clear()
            is_after_space = tag.is_block or tag.name == "br"
        elif tag.kind == "begin" and is_after_space:
            begins[tag] = len(result), num_signs
        elif tag.kind == "end" and tag.partner in begins:
            index, signs_before = begins.pop(tag.partner)
            if num_signs > signs_before:
                values = tuple(value for inner in result[index:] for value in inner.values)
                tag = MarkupTag(tag.partner.start, tag.stop, "single", values=values)
                del result[index:]
                is_after_space = True
        result.append(tag)
    return result


def _shown_values(source, tag):
    """Returns the spans of the values of a tag that people read, also of a page's description."""
    names = _SHOWN & tag.attributes.keys()
    if tag.name == "meta":
        is_description = tag.attribute(source, "name").lower() == "description"
        names = {"content"} if is_description else set()
    elif tag.name == "input" and tag.attribute(source, "type").lower() in _BUTTONS:
        names |= {"value"}
    elif tag.name in _LABELLED:
        names |= {"label"}
    return tuple(sorted(tag.attributes[name] for name in names if name in tag.attributes))


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
