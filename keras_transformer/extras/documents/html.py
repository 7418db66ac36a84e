"""Pages in HTML: a page is one text, whose tags the step `markup` keeps."""

import html
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from keras_transformer.extras.documents.document import Document, Settings, replaced
from keras_transformer.text.elements import find_tags, language_of, plain_text, scan_tags
from keras_transformer.text.language_codes import primary_language, writing_direction

if TYPE_CHECKING:
    from keras_transformer.engine.translation import Translation

_READ_FOR_CHARSET = 4096  # bytes; browsers read 1024
_XML_ENCODING = re.compile(r"""\s*<\?xml\s[^>]*?\bencoding\s*=\s*["']([\w.:-]+)""", re.IGNORECASE)
_CHARSET = re.compile(r"""charset\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE)


class HtmlPage(Document):
    """A page, whose elements name the target's language where they named the source's.

    An unknown language is `lang=""`, as HTML defines it: a wrong language would be read aloud in
    its voice, and would be hyphenated by its rules. The direction of text is the target's, too.
    """

    forced_options = {"markup": "html"}

    def __init__(self, text: str, settings: Settings):
        self.texts = [text]
        self._source, self._target = settings.source_language, settings.target_language

    def has_words(self, translations):
        return translations[0].text != self.texts[0]  # Tags and scripts have letters, too.

    def pairs(self, translations, states):
        return pairs_of_blocks(translations, states)

    def written(self, translations):
        (translation,) = translations
        return _in_language(translation.text, self._source, self._target)


def declared_encoding(content: bytes) -> str | None:
    """Returns the encoding that a page declares in a `<meta>` or in `<?xml`, or None."""
    text = content[:_READ_FOR_CHARSET].decode("latin-1")
    if (match := _XML_ENCODING.match(text)) is not None:
        return match[1]
    for tag in scan_tags(text):
        if tag.name == "meta":
            value = tag.attribute(text, "charset").strip()
            if not value and tag.attribute(text, "http-equiv").lower() == "content-type":
                match = _CHARSET.search(tag.attribute(text, "content"))
                value = "" if match is None else match[1]
            if value:
                return value
    return None


def known_language(code: str | None) -> str:
    """Returns the code of a language, "" if it is unknown or has only the model's own name."""
    return code if code is not None and code.replace("-", "").isalnum() else ""


def pairs_of_blocks(
    translations: "Sequence[Translation]", states: Sequence[list[Any]]
) -> list[tuple[str, str]]:
    """Returns the pairs of texts in HTML, a pair for each block; see `Document.pairs`."""
    return [
        (_source_of(block), _translation_of(block, part.text))
        for page, blocks in zip(translations, states, strict=True)
        for block, part in zip(blocks, page.parts if len(blocks) > 1 else [page], strict=True)
    ]


def _source_of(block):
    """Returns what a person reads of a block, a `Protected`."""
    pieces, position = [], 0
    for part in block.source_parts:
        pieces += [html.escape(block.text[position : part.start]), part.literal]
        position = part.stop
    return plain_text("".join([*pieces, html.escape(block.text[position:])]))


def _translation_of(block, text):
    """Returns the same of a block's translation, which has the markup around the block."""
    if block.value is not None:  # It is written into a tag of a later block.
        text = block.value.text
    return plain_text(text[len(block.before) : len(text) - len(block.after)])


def _in_language(text, source, target):
    """Returns a page whose tags name the language and the direction of its translation."""
    target = known_language(target)
    tags = [tag for tag in find_tags(text, source) if tag.attributes or tag.name == "html"]
    page = next((tag for tag in tags if tag.name == "html" and tag.kind == "begin"), None)
    if page is not None:
        source = source or language_of(text, page)
    direction = "" if page is None else page.attribute(text, "dir").lower()
    if direction not in ("ltr", "rtl"):
        direction = writing_direction(source or "") or "ltr"
    target_direction = writing_direction(target) or direction
    changes = []
    if page is not None and target_direction == "rtl" and "dir" not in page.attributes:
        end_of_name = page.start + len("<html")
        changes.append(((end_of_name, end_of_name), ' dir="rtl"'))
    for tag in tags:
        for name, (start, stop) in tag.attributes.items():
            value, new_value = text[start:stop], text[start:stop]
            if name in ("lang", "xml:lang"):
                language = primary_language(value)
                if tag is page or language and language == primary_language(source):
                    new_value = target
            elif name == "dir" and value.lower() == direction:
                new_value = target_direction
            is_quoted = text[start - 1] in "\"'"
            if new_value != value and (value or is_quoted):
                changes.append(((start, stop), new_value if is_quoted else f'"{new_value}"'))
    return replaced(text, *zip(*sorted(changes), strict=True)) if changes else text
