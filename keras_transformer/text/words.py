"""Where words begin and end: patterns for `regex.V1`, whose `\\w` has letters with their marks."""

import regex

UNSPACED = (
    r"[\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{scx=Hangul}\p{scx=Thai}\p{scx=Lao}"
    r"\p{scx=Khmer}\p{scx=Myanmar}\p{scx=Tibetan}]"
)
"""A character of a script that writes words side by side, or endings beside them, as Korean."""
LETTER = rf"[\w--{UNSPACED}]"
"""A letter, a mark or a digit of a script that has spaces between words."""
# Python takes \x1c to \x1f for spaces, too.
UNIT = rf"{LETTER}++|[^\s\x1c-\x1f]\p{{M}}*+"
"""A word; where words are not told apart a character; or a sign."""

_WITHIN_START = regex.compile(rf"(?<={LETTER})(?!{UNSPACED})|(?=\p{{M}})", regex.V1)
_WITHIN_STOP = regex.compile(rf"(?<!{UNSPACED})(?={LETTER})|(?=\p{{M}})", regex.V1)


def are_whole_words(text: str, start: int, stop: int) -> bool:
    """True where no word of a text goes on before or after a part of it."""
    return not (_WITHIN_START.match(text, start) or _WITHIN_STOP.match(text, stop))
