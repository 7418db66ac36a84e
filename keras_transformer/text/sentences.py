"""Sentences of a text: where they end, and a text of too many tokens in parts."""

import bisect
import itertools
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import regex

from keras_transformer.base.errors import InputError
from keras_transformer.text.patterns import GRAPHEME
from keras_transformer.text.symbols import PLACEHOLDER, TERM_SYMBOLS

_BEGIN, _, _END = TERM_SYMBOLS
# Without another `_BEGIN`, so that a long row of them takes no time.
_ANNOTATION = rf"{_BEGIN}(?:(?!{_BEGIN}).)*?{_END}"
_ANNOTATIONS = re.compile(_ANNOTATION, re.DOTALL)
# A line, or a column of one. White space before the first belongs to it.
_LINE = regex.compile(r"\s*+(?:\S++|[^\S\t\n\r\v\f\x85\u2028\u2029]{1,2}+(?!\s))*+\s*+")
_SPACE, _SPACE_BEFORE = re.compile(r"\s"), regex.compile(r"(?r)\s*+")
_QUOTE = r"\"'\p{Pi}\p{Pf}"  # “ opens a quotation in English and closes it in German.
_CLOSING, _OPENING = rf"[{_QUOTE}\p{{Pe}}]", rf"[{_QUOTE}\p{{Ps}}]"
# Marks that sentencex does not know: of Khmer, of vertical lines, the question mark of Greek, which
# looks like a semicolon, and `…` before a capital.
_UNKNOWN_MARK = regex.compile(
    rf"[\u17d4\u17d5︒︕︖]|(?<=\p{{Greek}})[;\u037e](?={_CLOSING}*+\s)"
    rf"|…(?={_CLOSING}*+\s++{_OPENING}*+\p{{Lu}})"
)
# sentencex ends no sentence before a digit without a space, and no sentence inside a list's item.
_DIGIT = regex.compile(r"(?<=[。！？])\d")
_ONLY_ITEM = regex.compile(r"\s*+(?:[•◦▪▫■□●○▶►]|\((?=\w{1,4}\)\s))(?!.*\s[•◦▪▫■□●○▶►(])")
# A sentence in brackets, which sentencex does not end.
_IN_BRACKETS = regex.compile(r"(?:[.!?…][)\]]\s|[.!?…。！？]）)\s*+(?!\p{Terminal_Punctuation})")
_BRACKETED = regex.compile(r"(?<=[.!?…。！？][)\]）])")
_BRACKETS = {")": "(", "]": "[", "）": "（"}
# The numeral of an item. Among several in a line, sentencex ends a sentence at each.
_ROMAN = r"(?:x{0,3}(?:ix|iv|v?i{1,3}|v|x)|X{0,3}(?:IX|IV|V?I{1,3}|V|X))\."
_NUMERAL = regex.compile(rf"\s*+{_ROMAN}\s++(?!.*\s{_ROMAN}\s)")
_OPENED = regex.compile(rf"(?<=\s){_OPENING}(?=\S)")
_CLOSED = regex.compile(rf"(?:{_CLOSING}++(?=\s)|[\p{{Pe}}\p{{Pf}}]++)\s*+")
_OPENER, _CLOSER = regex.compile(_OPENING), regex.compile(_CLOSING)
# The second of two words with a mark but no space between them, as in `an end.The next`.
_JOINED = regex.compile(
    r"(?<=(?<!\S)[\w,'’\-]{0,40}[\p{Ll}\p{N}][.!?]{1,3})\p{Lu}[\w'’\-]*+[^\w\s]*+(?!\S)"
)
_SAID = regex.compile(r"[とっを\p{Hangul}]")  # particles and endings after a quotation
# A small letter after a full stop, as in Unicode's rule SB8, or after a question or an exclamation
# in quotation marks or before a dash. No abbreviation ends with the final sigma of Greek, and a
# Dutch sentence may begin with `'s`.
_GOES_ON = regex.compile(
    rf"(?:(?<=[\p{{L}}\p{{M}}\p{{N}}--ς][.…]{{1,3}}{_CLOSING}{{0,3}})"
    rf"|(?<=[!?]{_CLOSING}{{1,3}})|(?<=[!?])(?=\s++\p{{Pd}}))"
    rf"\s++(?!['’]\p{{L}}\s)[{_QUOTE}\p{{Ps}}\p{{Pd}}\s]*+\p{{Sentence_Break=Lower}}",
    regex.V1,
)
# Such a word of English is an abbreviation only if sentencex knows it.
_SHORT_WORD = regex.compile(r"(?<=(?<!\p{L})\p{L}\p{L}\.)")
# Languages whose ordinals have a full stop and often stand before a capital.
_LANGUAGES_OF_ORDINALS = frozenset({"cs", "da", "de", "is", "lb", "sk"})
_ORDINAL = regex.compile(r"(?<=(?<!\S)\d{1,3}\.)")
# `M. Dupont`, `Т. Иванов`. sentencex knows the Latin letters in English.
_INITIAL = regex.compile(r"(?<=(?<![\p{L}\p{N}.])[\p{L}--\p{Sentence_Break=Lower}]\.)", regex.V1)
_LETTERS = regex.compile(r"\p{L}")
_CHINESE_OR_JAPANESE = regex.compile(
    r"[\p{L}&&[\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}]]", regex.V1
)
# sentencex takes a time that grows with the square of a text that is not ASCII.
_WINDOW, _SEEN_AHEAD = 2_000, 100  # characters


class TextRules(NamedTuple):
    """Rules for a text that may be more, or less, than a sentence.

    Attributes:
        split_sentences: Whether each sentence of a text is translated by itself.
        copy_symbols: Whether a text without letters, such as `12:30`, is its own translation.
        keep_case: Whether a sentence in capitals is read in its usual case, and its translation
            becomes one in capitals.
    """

    split_sentences: bool = False
    copy_symbols: bool = False
    keep_case: bool = False

    @classmethod
    def from_fields(cls, values: Mapping[str, Any]) -> "TextRules":
        """Returns the rules among the fields of a manifest or of a run's `decoding`."""
        return cls(*(bool(values.get(name)) for name in cls._fields))

    def to_manifest(self) -> dict[str, bool]:
        """Returns the fields of `export.json` that are true."""
        return {name: value for name, value in self._asdict().items() if value}


def sentence_ends(text: str, language: str | None = None) -> list[int]:
    """Returns where the sentences of a text end, with the white space after them, in order.

    The library sentencex finds the ends of the text's language, with its abbreviations. Here they
    are corrected. A line break, a tab or three spaces always end a sentence, and so do marks of all
    scripts and a bracket around a sentence. None ends at a full stop before a small letter, after
    an ordinal of German, at a numeral before an item, or at a quotation before its `と言った`.

    Args:
        text: A text.
        language: Its `primary_language`; None if it is unknown, which counts as English.

    >>> sentence_ends("Dr. Gold came.  He left.", "en")
    [16, 24]
    """
    ends = []
    for line in filter(operator.itemgetter(0), _LINE.finditer(text)):
        start = line.end() - len(line[0].lstrip())
        for end in _possible_ends(line[0], language or "en"):
            end += line.start()
            if end > start and _is_end(text, start, end, language or "en"):
                ends.append(end)
                start = end
        ends.append(line.end())
    return ends


def _possible_ends(line: str, language: str) -> list[int]:
    """Returns the ends inside a line, in order."""
    import sentencex  # Late: few commands split texts.

    # All white space is the same to sentencex, which would divide a paragraph from the next.
    known = _SPACE.sub(" ", line)
    if not line.isascii():
        known = _UNKNOWN_MARK.sub("‽", known)
        known = known if language == "ja" else _DIGIT.sub("一", known)
    if item := _ONLY_ITEM.match(known):
        known = f"{known[: item.end() - 1]}X{known[item.end() :]}"
    ends = {match.end() for match in _IN_BRACKETS.finditer(line)}
    start, is_last = 0, False
    while not is_last:
        window = known[start : start + _WINDOW]
        is_last = start + _WINDOW >= len(line)
        limit = len(window) - (0 if is_last else _SEEN_AHEAD)
        sentences = sentencex.get_sentence_boundaries(language, window)
        inner_ends = [end for sentence in sentences if (end := sentence["end_index"]) <= limit]
        ends.update(_outside_quotation(line, start + end) for end in inner_ends)
        start += inner_ends[-1] if inner_ends else limit
    if numeral := _NUMERAL.match(line):
        ends.discard(numeral.end())
    return sorted(end for end in ends if end < len(line))


def _outside_quotation(line, end):
    """Moves an end behind what closes a quotation, or before what opens the next."""
    if _OPENED.match(line, end - 1):
        return end - 1
    closed = None if line[end - 1].isspace() else _CLOSED.match(line, end)
    return end if closed is None else closed.end()


def _is_end(text, start, end, language):
    """Returns whether a sentence whose first letter is at `start` may end before its line."""
    stop = _SPACE_BEFORE.match(text, start, end).start()
    first, last, following = text[start], text[stop - 1], text[end]
    if _BRACKETED.match(text, stop):
        return first == _BRACKETS[last]
    if stop < end:
        is_english = language == "en"
        goes_on = _GOES_ON.match(text, stop) and not (is_english and _SHORT_WORD.match(text, stop))
        is_ordinal = language in _LANGUAGES_OF_ORDINALS and _ORDINAL.match(text, stop)
        is_initial = _INITIAL.match(text, stop) and not (is_english and text[stop - 2].isascii())
        return not (goes_on or is_ordinal or is_initial)
    if last in ".!?…":
        is_ellipsis = end - start < 4 and not text[start:end].strip(".…")
        return is_ellipsis or _JOINED.match(text, end) is not None
    if (text[end - 2] + following).isdigit():
        return False
    # “好的。”他说。
    goes_on = language == "zh" and _OPENER.match(first) and following.isalnum()
    return not (_CLOSER.match(last) and (goes_on or _SAID.match(following)))


def space_after(space: str, translation: str) -> str:
    """Returns the white space after a sentence's translation.

    Line breaks, tabs and rows of spaces stay. One space or none becomes what the translation's
    script has: none in Chinese and Japanese, else a space.

    Args:
        space: White space after the sentence in the source.
        translation: Translation of the sentence. One without letters has the source's space.
    """
    if space not in ("", " "):
        return space
    letters = len(_LETTERS.findall(translation))
    if not letters:
        return space
    return "" if 2 * len(_CHINESE_OR_JAPANESE.findall(translation)) > letters else " "


def has_letters(text: str) -> bool:
    """Returns whether a text has letters, of words and not of placeholders."""
    return _LETTERS.search(PLACEHOLDER.sub("", text)) is not None


_WORD = re.compile(rf"(?:{_ANNOTATION}|\S)+", re.DOTALL)
_GRAPHEME = regex.compile(GRAPHEME)


def split_text(text: str, fits: Callable[[str], bool], language: str | None = None) -> list[str]:
    """Splits a text at the ends of its sentences into as few parts as possible.

    Sentences end as `sentence_ends` says, which the `language` is for. Each part takes as many
    sentences as fit, and no part is blank. A sentence that does not fit is split between its words,
    and a word that does not fit between its graphemes. A grapheme is what readers see as one
    character, such as a letter with its marks, or a flag. A grapheme that does not fit is split
    between its characters, and a character that does not fit raises an error. The annotation of a
    term is a part of a word.

    >>> split_text("One. Two! Three?", lambda part: len(part) <= 9)
    ['One. Two!', 'Three?']
    """
    stripped = text.strip()
    if not stripped:
        return []
    if fits(stripped):
        return [stripped]
    parts, part, start = [], "", 0
    for sentence_start, end in itertools.pairwise([0, *_ends_outside(stripped, language)]):
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


def _ends_outside(text, language):
    """Returns where sentences end, outside the annotations of terms."""
    ends = sentence_ends(text, language)
    spans = [match.span() for match in _ANNOTATIONS.finditer(text)] if _BEGIN in text else []
    starts, stops = [start for start, _ in spans], [stop for _, stop in spans]
    begun, ended = bisect.bisect_left, bisect.bisect_right
    return [end for end in ends if begun(starts, end) == ended(stops, end)]


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
