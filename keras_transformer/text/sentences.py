"""Splits long texts at the ends of their sentences."""

import bisect
import itertools
import re
from collections.abc import Callable

import regex

from keras_transformer.errors import InputError
from keras_transformer.text.patterns import GRAPHEME
from keras_transformer.text.symbols import TERM_SYMBOLS

_BEGIN, _, _END = TERM_SYMBOLS
# Without another `_BEGIN`, so that a long row of them takes no time.
_ANNOTATION = rf"{_BEGIN}(?:(?!{_BEGIN}).)*?{_END}"
_CLOSING = r"\"'\p{Pe}\p{Pf}"

_SENTENCE_END = regex.compile(
    # The look-behind: a long run of dots is tried once, not at each dot. German closes a quotation
    # with the mark that opens it elsewhere, French has a no-break space before the closing mark.
    rf"(?<![.!?…])[.!?…]++[{_CLOSING}\p{{Pi}}]*+(?:[\u00a0\u202f][»›])?(?=\s)"
    # These three marks also occur inside words and numbers; marks of other scripts do not, except
    # the full-width point of a number.
    r"|(?![.!?]|．\d)\p{Sentence_Terminal}[\p{Sentence_Terminal}…]*+"
    rf"[{_CLOSING}]*+"
    # Greek's question mark, which looks like a semicolon.
    rf"|(?<=\p{{Greek}})[;\u037e][{_CLOSING}]*+(?=\s)"
    r"|[\n\r\v\f\x85\u2028\u2029]"
)
# An annotation is a part of one word: neither its sentence ends nor its spaces count.
_ANNOTATION_OR_END = regex.compile(
    rf"(?P<annotation>{_ANNOTATION})|{_SENTENCE_END.pattern}", regex.DOTALL
)
_WORD = re.compile(rf"(?:{_ANNOTATION}|\S)+", re.DOTALL)
_GRAPHEME = regex.compile(GRAPHEME)


def split_text(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Splits a text at the ends of its sentences into as few parts as possible.

    A sentence ends at `.`, `!`, `?` or `…` before a space, at Greek's `;`, and at a line break. It
    also ends at other marks with Unicode's property Sentence_Terminal: `。`, `।`, `؟`. Closing
    quotes and brackets after a mark belong to the sentence. A full stop after an abbreviation
    is an end.

    Each part takes as many sentences as fit, and no part is blank. A sentence that does not fit is
    split between its words, and a word that does not fit between its graphemes. A grapheme is what
    readers see as one character, such as a letter with its marks, or a flag. A grapheme that does
    not fit is split between its characters, and a character that does not fit raises an error. The
    annotation of a term is a part of a word.

    >>> split_text("One. Two! Three?", lambda part: len(part) <= 9)
    ['One. Two!', 'Three?']
    """
    stripped = text.strip()
    if not stripped:
        return []
    if fits(stripped):
        return [stripped]
    matches = _ANNOTATION_OR_END.finditer(stripped)
    ends = [match.end() for match in matches if match["annotation"] is None]
    parts, part, start = [], "", 0
    for sentence_start, end in itertools.pairwise([0, *ends, len(stripped)]):
        sentence = stripped[sentence_start:end].strip()
        if not sentence:
            continue
        longer = stripped[start:end].strip()
        if part and fits(longer):
            part = longer
            continue
        if part:
            parts.append(part)
        *before, part = [sentence] if fits(sentence) else _split_between_words(sentence, fits)
        parts += before
        start = stripped.rindex(part, sentence_start, end)
    return [*parts, part]


def _split_between_words(sentence, fits):
    """Splits a sentence that does not fit into as few parts as possible."""
    parts, start, end = [], 0, 0  # bounds of the current part
    for word in _WORD.finditer(sentence):
        if end > start and fits(sentence[start : word.end()]):
            end = word.end()
            continue
        if end > start:
            parts.append(sentence[start:end])
        start, end = word.span()
        if not fits(word[0]):
            *before, last = _split_word(word[0], fits)
            parts += before
            start = end - len(last)
    return [*parts, sentence[start:end]]


def _split_word(word, fits):
    """Splits a word that does not fit into as few parts as possible."""
    ends = [0, *(match.end() for match in _GRAPHEME.finditer(word))]
    parts, first = [], 0  # number of the graphemes in the parts

    def fits_with(count):
        return fits(word[ends[first] : ends[first + count]])

    while first < len(ends) - 1:
        if count := largest_count(fits_with, len(ends) - 1 - first):
            parts.append(word[ends[first] : ends[first + count]])
            first += count
            continue
        start, end = ends[first : first + 2]
        if end - start == 1:
            raise InputError(f"Each character must fit by itself. Received: {word[start]!r}.")
        ends[first + 1 : first + 1] = range(start + 1, end)
    return parts


def largest_count(fits: Callable[[int], bool], limit: int) -> int:
    """Returns the largest count from 0 to `limit` that fits."""
    if not fits(1):
        return 0
    count = 1
    # Doubled, because most lengths within a very long word take too long to try.
    while count < limit and fits(min(2 * count, limit)):
        count = min(2 * count, limit)
    counts = range(count + 1, min(2 * count, limit))
    return count + bisect.bisect_left(counts, True, key=lambda count: not fits(count))
