"""Markdown: the texts of paragraphs, headings, list items, table cells, links and images.

Only spans of text are replaced. The marks in a span, such as `**` and `](address)`, are tags around
its words while it is translated: `Two **dogs** play` is `Two <x1>dogs</x1> play`. The translation
of a span is parsed again. Where it has other marks or is another block, the span stays as it was.
"""

import functools
import itertools
import re
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from keras_transformer.extras.documents.document import Document, Settings, replaced
from keras_transformer.extras.documents.heading_links import heading_names, with_new_names
from keras_transformer.extras.documents.markdown_lines import Content
from keras_transformer.extras.documents.markdown_parser import parser
from keras_transformer.extras.documents.markdown_passage import Passage
from keras_transformer.extras.documents.markdown_reading import check_content, pieces_of
from keras_transformer.extras.documents.marked_texts import MarkedTexts
from keras_transformer.text.elements import find_tags
from keras_transformer.text.sentences import has_letters

_LINE = re.compile(r"([^\r\n]*)(?:\r\n?|\n|\Z)")
_FRONT_MATTER = re.compile(
    r"(?:(---)|\+\+\+)[ \t]*\r?\n(?=\S)(?:.*\n)*?(?(1)(?:---|\.\.\.)|\+\+\+)[ \t]*\r?(?:\n|\Z)"
)
# What CommonMark lacks at the beginning: the box of a task, and the kind of an alert.
_LEADING = re.compile(r"\[(?:[ xX]|![\w-]+)\][-+]?(?:\s+|\Z)")


class Markdown(Document):
    """A document in CommonMark, with tables, strikethrough, tasks, footnotes and front matter."""

    def __init__(self, text: str, settings: Settings):
        self._text = text
        blocks = list(_blocks(text))
        self._num_lost = blocks.count(None)
        self._blocks = sorted(filter(None, blocks), key=lambda block: block.place)
        passages = [block for block in self._blocks if isinstance(block, Passage)]
        self._headings = [passage for passage in passages if passage.is_heading]
        with_images = (passage for block in passages for passage in (*block.inner, block))
        self._passages = [passage for passage in with_images if has_letters(passage.words)]
        self._marked = MarkedTexts([one.source for one in self._passages], settings.fallback_step)
        self.texts, self.forced_options = self._marked.texts, self._marked.forced_options

    def pairs(self, translations, states):
        return [(one.title(False, " "), one.title(True, " ")) for one in self._passages]

    def written(self, translations):
        restored = self._marked.restored(translations)
        accepted = [one.accepts(text) for one, text in zip(self._passages, restored, strict=True)]
        if num_left := self._num_lost + accepted.count(False):
            rule = f"{num_left} of {self._num_lost + len(accepted)} texts stay as they were"
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


class _Links(NamedTuple):
    """A part of a document that is not translated, but may have links to headings."""

    place: tuple[int, int]
    text: str

    def written(self, names: Mapping[str, str]) -> str:
        """Returns the part with the new names of headings."""
        return with_new_names(self.text, names)


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
    is_kept = _are_kept(tokens)
    for number, (before, token) in enumerate(itertools.pairwise(tokens), 1):
        if before.type == "tr_open":
            row = lines[before.map[0]]
        if token.type != "inline" or not token.content or is_kept[number]:
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
        check = functools.partial(check_content, references, around)
        leading = _LEADING.match(token.content)
        start = 0 if leading is None else leading.end()
        content = Content(token.content, offsets, text).part(start)
        pieces = pieces_of(content, token.children, references, shift=start)
        yield None if pieces is None else Passage(content, pieces, check, before.type)


def _are_kept(tokens):
    """Returns for each token whether it is in an element of HTML that is not translated."""
    pieces = [token.content if token.type == "html_block" else " " for token in tokens]
    is_kept = bytearray(sum(map(len, pieces)))
    for tag in find_tags("".join(pieces)):
        if tag.kind == "copy":
            is_kept[tag.start : tag.stop] = bytes([1]) * (tag.stop - tag.start)
    starts = itertools.accumulate(map(len, pieces), initial=0)
    return [bool(is_kept[start]) for _, start in zip(tokens, starts, strict=False)]


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
