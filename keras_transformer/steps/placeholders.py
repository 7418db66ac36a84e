"""Placeholders: numbered tokens that replace text that is not translated."""

import collections
import zlib

import regex

from keras_transformer.steps.folding import fold
from keras_transformer.steps.splitting import LETTER, UNSPACED
from keras_transformer.text.symbols import Placeholders, symbol


def _in_brackets(content):
    return rf"[(\[{{](?:{content})*+[)\]}}]"


# All repetitions are bounded, possessive or begin at one place, so that a long text is read once.
# There are few of them, because each repetition makes the search in a short text slower.
_SIGN = rf"[/\-#&=+%$@[{LETTER}--_]]"  # A URL may end with such a character,
_MIDDLE = r"[.,:;!?*_~–]"  # but not with such a character, as in GitHub's Markdown.
_CLOSED = _in_brackets(f"{_SIGN}|{_MIDDLE}|{_in_brackets(f'{_SIGN}|{_MIDDLE}')}")
# A label of a host name in a script without spaces between words, such as https://例え.jp. The last
# label is a country's, or ends where no letter of such a script follows.
_UNSPACED_LETTER = rf"[\w&&{UNSPACED}]"
_UNSPACED_LABEL = (
    rf"(?<=//|\.){_UNSPACED_LETTER}[\w\-]*+(?=\.\w)|(?<={_UNSPACED_LETTER}\.)"
    rf"(?:한국|中[国國]|香港|台[湾灣]|澳[门門]|新加坡|ไทย|{_UNSPACED_LETTER}++)"
)
_BEGIN = rf"(?:(?:[hH][tT][tT][pP]|[fF][tT][pP])[sS]?://|[wW][wW][wW]\.(?<!{LETTER}....))"
# The most frequent letters come first, because the search tests each word for an e-mail address.
_IN_NAME, _IN_HOST = rf"[a-zA-Z.+\-{LETTER}]", rf"[a-zA-Z\-[{LETTER}--_]]"
ADDRESS = "|".join(
    (
        rf"{_BEGIN}(?!{_MIDDLE}|')"
        rf"(?:(?:{_MIDDLE}++(?!{_BEGIN})|'(?={LETTER}))?+"
        rf"(?:{_SIGN}++|{_CLOSED}|{_UNSPACED_LABEL}))++",
        rf"(?<!{_IN_NAME}){_IN_NAME}++@{_IN_HOST}+(?:\.{_IN_HOST}+)+(?<!-)",
    )
)
"""A URL or an e-mail address: the regular expression of placeholders, cleaning and noise.

A URL ends before a letter of a script without spaces between words, and before a closing bracket
that it does not open.
"""
_ITEM = "|".join(
    (
        ADDRESS,
        r"\$?\{\{?[^\s{}]*\}\}?",  # {name}, ${name}, {{name}}
        # %s, %(name)s, %1$d; after a number and a space, % means a percentage.
        r"(?<!\d\s)%(?:\(\w+\)|\d{1,2}\$)?[\-+#0]{0,5}\d{0,3}(?:\.\d{1,3})?[sdifgxXc@]"
        rf"(?!{LETTER})",
        r"<ph_\d+>",  # a placeholder's own name
    )
)
TAG = r"""</?[A-Za-z](?:[^<>"'=]|"[^"]*"|'[^']*'|=\s*+(?:"[^"]*"|'[^']*'|(?!["'])[^\s<>]*+))*+>"""
"""A tag of XML or HTML; a value without quotation marks may contain some, as in `title=it's`."""
_NUMBER = rf"(?<!{LETTER})\d+(?:[.,:/\-]\d+)*(?!{LETTER})"

ITEM = regex.compile(_ITEM, regex.V1)
"""A URL, an e-mail address, a field such as {name} or %s."""
ITEM_OR_NUMBER = regex.compile(f"{_ITEM}|{_NUMBER}", regex.V1)
"""An `ITEM`, or a number."""
_IN_TRAINING = {
    numbers: regex.compile(f"{TAG}|{pattern.pattern}", regex.V1)
    for numbers, pattern in ((False, ITEM), (True, ITEM_OR_NUMBER))
}


def with_placeholders(source: str, target: str, placeholders: Placeholders) -> tuple[str, str]:
    """Replaces by placeholders what both sides of a training pair have in common.

    These are URLs, e-mail addresses, fields and tags that occur equally often on both sides, except
    for differences that readers do not see; see `fold`. Their first number depends on the text, so
    that all tokens are learned. Further items stay unchanged.

    >>> with_placeholders("Ask a@b.org, {me}.", "Fragen Sie a@b.org, {me}.", Placeholders(1))
    ('Ask <ph_1>, {me}.', 'Fragen Sie <ph_1>, {me}.')
    """
    count, numbers = placeholders
    first = zlib.crc32(source.encode())
    pattern = _IN_TRAINING[numbers]
    source_items, target_items = (
        collections.Counter(fold(item).text for item in pattern.findall(side))
        for side in (source, target)
    )
    common_occurrences = [
        (item, number)
        for item, occurrences in source_items.items()
        if occurrences == target_items[item]
        for number in range(occurrences)
    ]
    symbol_of_occurrence = {
        occurrence: symbol((first + i) % count + 1)
        for i, occurrence in enumerate(common_occurrences[:count])
    }

    def replaced(text):
        occurrences: collections.Counter[str] = collections.Counter()

        def replace(match):
            item = fold(match[0]).text
            occurrences[item] += 1
            return symbol_of_occurrence.get((item, occurrences[item] - 1), match[0])

        return pattern.sub(replace, text)

    return replaced(source), replaced(target)
