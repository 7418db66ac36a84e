"""Pages in HTML: a page is one text, whose tags the step `markup` keeps."""

import functools
import re

from keras_transformer.documents.document import Document, Settings
from keras_transformer.text.elements import find_tags

_READ_FOR_CHARSET = 4096  # bytes; browsers read 1024
_COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
_CHARSET = re.compile(
    rb"""\A\s*<\?xml\s[^>]*?\bencoding\s*=\s*["']([\w.:-]+)|"""
    rb"""<meta\s[^>]*?\bcharset\s*=\s*["']?\s*([\w.:-]+)""",
    re.IGNORECASE,
)
# All attributes are matched, because the value of another one may have `lang=` in it.
_ATTRIBUTE = re.compile(r"""(?<=[\s"'])([^\s"'>/=]+)(\s*+=\s*+)("[^"]*"|'[^']*'|[^\s"'>]+)""")


class HtmlPage(Document):
    """A page, which names the target's language where it named the source's.

    An unknown language is `lang=""`, as HTML defines it: a wrong language would be read aloud in
    its voice, and would be hyphenated by its rules.
    """

    options = {"markup": "html"}

    def __init__(self, text: str, settings: Settings):
        self.texts = [_in_language(text, settings.target_language)]

    def has_words(self, translations):
        return translations[0].text != self.texts[0]  # Tags and scripts have letters, too.

    def written(self, translations):
        (translation,) = translations
        return translation.text


def declared_encoding(content: bytes) -> str | None:
    """Returns the encoding that a page declares in a `<meta>` or in `<?xml`, or None."""
    match = _CHARSET.search(_COMMENT.sub(b"", content[:_READ_FOR_CHARSET]))
    return None if match is None else (match[1] or match[2]).decode("ascii", "replace")


def _in_language(text, code):
    if code is None or not code.replace("-", "").isalnum():  # The model's own name of a language.
        code = ""
    for tag in find_tags(text):
        if tag.name == "html":
            literal = text[tag.start : tag.stop]
            if tag.kind == "begin":
                literal = _ATTRIBUTE.sub(functools.partial(_attribute_in, code), literal)
            return text[: tag.start] + literal + text[tag.stop :]
    return text


def _attribute_in(code, match):
    is_other = match[1].lower() in ("lang", "xml:lang") and match[3].strip("\"'") != code
    return f'{match[1]}{match[2]}"{code}"' if is_other else match[0]
