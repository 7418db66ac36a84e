"""Long texts, split at the ends of their sentences."""

import itertools
import re
from collections.abc import Callable

import regex

from keras_transformer.errors import InputError

_SHOWN_CHARACTERS = 40
_CLOSING = r"\"'\p{Pe}\p{Pf}"


_SENTENCE_END = regex.compile(
    # The look-behind: a long run of dots is tried once, not once for each of its dots. German
    # closes a quotation with what opens one elsewhere, French after a space that does not break.
    rf"(?<![.!?…])[.!?…]++[{_CLOSING}\p{{Pi}}]*+(?:[\u00a0\u202f][»›])?(?=\s)"
    # These three stand inside words and numbers, too; the marks of other scripts do not, except
    # for the wide point of a number.
    r"|(?![.!?]|．\d)\p{Sentence_Terminal}[\p{Sentence_Terminal}…]*+"
    rf"[{_CLOSING}]*+"
    # Greek's question mark, which looks like a semicolon.
    rf"|(?<=\p{{Greek}})[;\u037e][{_CLOSING}]*+(?=\s)"
    r"|[\n\r\v\f\x85\u2028\u2029]"
)


def split_text(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Splits a text at the ends of its sentences into as few parts as possible.

    A sentence ends at `.`, `!`, `?` or `…` before a space, at another mark with Unicode's property
    Sentence_Terminal (`。`, `।`, `؟`, `။`…) or at Greek's `;`, each with the quotes and brackets
    that close after it, and at a line break. A point after an abbreviation counts as an end. Parts
    are filled one after the other, which gives the fewest where every part of a text that fits also
    fits. None is blank. A sentence that does not fit is split between its words; a word that does
    not fit is an error.

    >>> split_text("One. Two! Three?", lambda part: len(part) <= 9)
    ['One. Two!', 'Three?']
    """
    whole = text.strip()
    if not whole:
        return []
    if fits(whole):
        return [whole]
    ends = [match.end() for match in _SENTENCE_END.finditer(whole)]
    parts, part, start = [], "", 0
    for sentence_start, end in itertools.pairwise([0, *ends, len(whole)]):
        sentence = whole[sentence_start:end].strip()
        if not sentence:
            continue
        longer = whole[start:end].strip()
        if part and fits(longer):
            part = longer
            continue
        if part:
            parts.append(part)
        *before, part = [sentence] if fits(sentence) else _split_between_words(sentence, fits)
        parts += before
        start = whole.rindex(part, sentence_start, end)
    return [*parts, part]


def _split_between_words(sentence, fits):
    """Splits a sentence that does not fit into as few parts as possible."""
    parts, start, end = [], 0, 0  # of the part that is being filled
    for word in re.finditer(r"\S+", sentence):
        if end > start and fits(sentence[start : word.end()]):
            end = word.end()
            continue
        if not fits(word[0]):
            raise InputError(
                "Each word must fit by itself: texts are split at the ends of sentences, and "
                f"longer sentences between words. Received: a word of {len(word[0])} characters "
                f"that begins with {word[0][:_SHOWN_CHARACTERS]!r}."
            )
        if end > start:
            parts.append(sentence[start:end])
        start, end = word.span()
    return [*parts, sentence[start:end]]


UNSPACED = (
    r"[\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{scx=Hangul}\p{scx=Thai}\p{scx=Lao}"
    r"\p{scx=Khmer}\p{scx=Myanmar}\p{scx=Tibetan}]"
)
"""A character of a script that writes words side by side, or endings next to them, as Korean."""
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
