"""Plain text: lines, or the paragraphs of a text that was wrapped at a column."""

import re
from typing import NamedTuple

from keras_transformer.extras.documents.dividing import columns, wrapped
from keras_transformer.extras.documents.document import Document, Settings, replaced
from keras_transformer.text.sentences import has_letters

_LINE = re.compile(r"([^\r\n]*)(\r\n?|\n|\Z)")
_ITEM = re.compile(r"(?:[-*•]|\d{1,2}[.)])\s")


class PlainText(Document):
    """A document whose lines are texts.

    In a wrapped text, a paragraph is a text. It ends at a blank line, and before a line that begins
    with the sign or the number of a list's item. Its translation is wrapped at the width of the
    document's paragraphs, with the spaces at the beginning of its first and of its second line. A
    line without letters, such as `-----`, is by itself.
    """

    def __init__(self, text: str, settings: Settings):
        self._text = text
        self._paragraphs = list(_paragraphs(text, settings.is_wrapped))
        self._width = max(
            (line.width for lines in self._paragraphs if len(lines) > 1 for line in lines),
            default=None,
        )
        self.texts = [" ".join(line.text for line in lines) for lines in self._paragraphs]

    def written(self, translations):
        spans = [(lines[0].start, lines[-1].stop) for lines in self._paragraphs]
        new_texts = [
            self._wrapped(lines, text, translation.text)
            for lines, text, translation in zip(
                self._paragraphs, self.texts, translations, strict=True
            )
        ]
        return replaced(self._text, spans, new_texts)

    def _wrapped(self, lines, text, translation):
        if translation == text:
            return self._text[lines[0].start : lines[-1].stop]
        if self._width is None:
            return translation
        first, second = lines[0], lines[min(1, len(lines) - 1)]
        widths = (self._width - columns(line.indent.expandtabs()) for line in (second, first))
        line_break = (first.line_break or "\n") + second.indent
        return line_break.join(wrapped(translation, *widths))


class _Line(NamedTuple):
    """A line: its text from `start` to `stop`, what is before it, and how the line ends."""

    start: int
    stop: int
    indent: str
    text: str
    line_break: str

    @property
    def width(self) -> int:
        return columns((self.indent + self.text).expandtabs())


def _paragraphs(text, is_wrapped):
    """Yields lists of lines with text."""
    lines = []
    for match in _LINE.finditer(text):
        content, line_break = match.groups()
        stripped = content.strip()
        is_alone = not is_wrapped or not has_letters(stripped) or _ITEM.match(stripped)
        if lines and (is_alone or not has_letters(lines[-1].text)):
            yield lines
            lines = []
        if stripped:
            start = match.start() + content.index(stripped)
            indent = content[: start - match.start()]
            lines.append(_Line(start, start + len(stripped), indent, stripped, line_break))
    if lines:
        yield lines
