"""Rules that sentence pairs of a corpus may break."""

import collections
import functools
import html
import unicodedata
from collections.abc import Callable
from typing import Any, Literal, get_args

import regex

from keras_transformer.base.errors import InputError, require
from keras_transformer.base.options import option, options_class, received
from keras_transformer.text.identification import language_identifier
from keras_transformer.text.language_codes import closest_codes, suggested_codes
from keras_transformer.text.patterns import ADDRESS

Script = Literal[
    "Arabic", "Armenian", "Bengali", "Cyrillic", "Devanagari", "Ethiopic", "Georgian", "Greek",
    "Gujarati", "Gurmukhi", "Han", "Hangul", "Hebrew", "Hiragana", "Kannada", "Katakana", "Khmer",
    "Lao", "Latin", "Malayalam", "Myanmar", "Sinhala", "Tamil", "Telugu", "Thai", "Tibetan",
]  # fmt: skip
Rule = Literal[
    "length", "ratio", "copy", "encoding", "punctuation", "urls", "numbers", "script", "language"
]

_SCRIPTS = f"a list of {', '.join(get_args(Script))}, or null"
# The ratio of shorter texts says nothing: "Yes." is a fair translation of a short sentence.
_RATIO_NEEDS_CHARACTERS = 20
_ALL_CODES = "docs/howto/clean.md lists all codes."
# The language of shorter texts cannot be identified reliably.
_LANGUAGE_NEEDS_LETTERS = 15
# The other letters may belong to names.
_SCRIPT_SHARE = 0.8
# Words may replace a number of two digits ("forty-one" for 41, "May" for 5), but not a year.
_DIGITS_OF_WORDS = 2
_NUMBER = regex.compile(r"\d++")
_AMOUNT = regex.compile(r"\d++(?:[.,:/\-]\d++)*+")
_DIGIT = regex.compile(r"\d")
_AFTERNOON = regex.compile(r"(?<!\d)(1[3-9]|2[0-3])(?!\d)")
# In Chinese and Japanese, Korean, Vietnamese. "3个月" and "3 tháng" are three months, not March.
_MONTH = regex.compile(r"(?<!\d)\d{1,2} ?[月월]|\btháng \d{1,2}(?!\d)", regex.IGNORECASE)
_ADDRESS = regex.compile(ADDRESS, regex.V1)
_ESCAPE = regex.compile("&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_SPACES = dict.fromkeys(map(ord, "\t\r\n"), " ")
# Vowel signs count as letters, because they are most of a Burmese or Hindi word.
_LETTER = regex.compile(r"[\p{L}\p{M}]")
_WIDE = regex.compile(r"\p{East_Asian_Width=W}")
# The end of a text: marks, closing quotes and brackets, and Greek's question mark, which looks like
# a semicolon. It begins at one place, so that long runs of marks take no time.
_CLOSING = r"\p{Sentence_Terminal}\p{Pe}\p{Pf}\p{Pi}\"'\s;\u037e"
_ENDING = regex.compile(rf"(?<![{_CLOSING}])[{_CLOSING}]*+\Z")
_QUESTION_MARK, _GREEK_MARK = regex.compile("[?？؟፧⁇⁈⁉‽]"), regex.compile("[?;\u037e]")
_GREEK, _SEMICOLON = regex.compile(r"\p{Greek}"), regex.compile("[;\u037e]")
# Letters of scripts that do not end every question with a mark. Japanese, Thai, Lao, Khmer, Burmese
# and Tibetan have words that ask, and the mark may be absent; Armenian's mark is inside a word.
_ASKS_WITHOUT_MARK = regex.compile(
    r"(?V1)[\p{L}--[\p{Arabic}\p{Bengali}\p{Common}\p{Cyrillic}\p{Devanagari}\p{Ethiopic}"
    r"\p{Georgian}\p{Greek}\p{Gujarati}\p{Gurmukhi}\p{Han}\p{Hangul}\p{Hebrew}\p{Kannada}\p{Latin}"
    r"\p{Malayalam}\p{Oriya}\p{Sinhala}\p{Tamil}\p{Telugu}]]"
)


@options_class
class PairRules:
    """Rules for the text of a pair, and their limits."""

    min_characters: int = option(1, "length: minimum number of characters of a side.", ge=1)
    max_characters: int = option(1000, "length: maximum number of characters of a side.", ge=1)
    max_ratio: float | None = option(
        3.0,
        "ratio: maximum ratio of the sides' lengths in characters; null: any. Wide characters, "
        "such as Chinese, count twice. Pairs whose longer side has at most 20 characters pass.",
        ge=1,
    )
    min_letter_share: float = option(
        0.5,
        "punctuation: minimum share of letters in a side's characters without spaces; a number "
        "counts as one character.",
        ge=0,
        le=1,
    )
    source_scripts: list[Script] | None = option(
        None,
        "script: Unicode scripts of the source, such as Han Hiragana Katakana; null: any.",
        _SCRIPTS,
        strict=None,
        min_length=1,
    )
    target_scripts: list[Script] | None = option(
        None,
        "script: Unicode scripts of the target; null: any.",
        _SCRIPTS,
        strict=None,
        min_length=1,
    )
    source_language: str | None = option(
        None, "language: code of the source, such as en, with the extra `clean`; null: any."
    )
    target_language: str | None = option(
        None, "language: code of the target, such as de, with the extra `clean`; null: any."
    )
    min_language_probability: float = option(
        0.02,
        "language: minimum probability of a side's language; sides of fewer than 15 letters pass.",
        ge=0,
        le=1,
    )
    without: list[Rule] = option(
        [],
        "Rules that are not applied; encoding needs the extra `clean`.",
        f"a list of {', '.join(get_args(Rule))}",
        strict=None,
    )

    def check_packages(self) -> None:
        """Raises `InputError` if a package that a rule needs is not installed."""
        if "encoding" not in self.without:
            require("ftfy", "ftfy, for the rule encoding,", "clean")
        for name in ("source_language", "target_language"):
            language = getattr(self, name)
            if "language" not in self.without and language is not None:
                _check_identified(name, language)

    def broken(self, source: str, target: str) -> Rule | None:
        """Returns the name of the first rule that a pair breaks, or None."""
        for name, breaks in RULES.items():
            if name not in self.without and breaks(self, source, target):
                return name
        return None


def _length(options, *sides):
    shorter, longer = sorted(len(side.strip()) for side in sides)
    return shorter < options.min_characters or longer > options.max_characters


def _ratio(options, *sides):
    shorter, longer = sorted(len(side) + len(_WIDE.findall(side)) for side in map(str.strip, sides))
    limit = options.max_ratio
    return limit is not None and longer > max(limit * shorter, _RATIO_NEEDS_CHARACTERS)


def _copy(options, source, target):
    """True for equal sides of several words; one word may be a name."""
    letters = skeleton(source)
    return bool(letters) and letters == skeleton(target) and len(source.split()) > 1


def _encoding(options, *sides):
    """True for text that was decoded with a wrong encoding, or has lost or control characters."""
    from ftfy.badness import is_bad

    def is_control(text):
        return not text.isprintable() and any(unicodedata.category(c) == "Cc" for c in text)

    return any(
        is_control(side) or not side.isascii() and ("\ufffd" in side or is_bad(side))
        for side in sides
    )


def _punctuation(options, *sides):
    """True for a side of mostly signs and numbers, or a question on only one side."""
    for side in sides:
        texts = {side, _without_addresses(side)}  # An address may have many signs, or all letters.
        if all(_letter_share(text) < options.min_letter_share for text in texts):
            return True
    source, target = map(_is_question, sides)
    return source != target and not any(map(_ASKS_WITHOUT_MARK.search, sides))


def _letter_share(text):
    text = _AMOUNT.sub("0", text)
    count = len(text) - text.count(" ")
    return len(_LETTER.findall(text)) / count if count else 1.0


def _is_question(text):
    ending = _ENDING.search(text)[0]
    if _QUESTION_MARK.search(_SEMICOLON.split(ending)[-1]):
        return True
    return bool(_GREEK_MARK.search(ending) and _GREEK.search(text))


def _urls(options, *sides):
    source, target = map(_addresses, sides)
    return source != target


def _addresses(text):
    """Returns the URLs and e-mail addresses of a text, sorted, in lower case."""
    if not _may_have_address(text):
        return []
    return sorted(address.rstrip("/").lower() for address in _ADDRESS.findall(text))


def _without_addresses(text):
    """Returns what the rules about words judge."""
    return _ADDRESS.sub("", text) if _may_have_address(text) else text


def _may_have_address(text):
    """Returns True for a text with a sign that every address has; faster than the pattern."""
    return "@" in text or "/" in text or "www" in text.lower()


def _numbers(options, *sides):
    """True for different digits except 0: 1,000.50 equals 1.000,5, and 17:00 equals 5 p.m.

    Words may replace two digits, and the number of a month.
    """
    sides = [_with_ascii_digits(_without_addresses(side)) for side in sides]
    if not _digits_differ(sides):
        return False
    sides = [_MONTH.sub("", side) for side in sides]
    to_clock = [_AFTERNOON.sub(lambda hour: str(int(hour[0]) - 12), side) for side in sides]
    return _digits_differ(sides) and _digits_differ(to_clock)


def _with_ascii_digits(text):
    if text.isascii():
        return text
    # Python may lack the newest digits of `regex`.
    return _DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0], digit[0])), text)


def _digits_differ(sides):
    """True unless at most one side has further digits, at most two, and no number has changed."""
    numbers = [[number.lstrip("0") for number in _NUMBER.findall(side)] for side in sides]
    missing, added = _differences("".join(row).replace("0", "") for row in numbers)
    if not missing and not added:
        return False
    if (missing and added) or (missing + added).total() > _DIGITS_OF_WORDS:
        return True
    # 2020 and 2021 differ in one digit. Words are not the reason where both are numbers.
    missing, added = _differences(numbers)
    lengths = ({len(number) for number in side if len(number) > 1} for side in (missing, added))
    return bool(set.intersection(*lengths))


def _differences(sides):
    """Returns what only the source has, and what only the target has."""
    source, target = map(collections.Counter, sides)
    return source - target, target - source


def _named(kind, options, sides):
    """Returns pairs of a side and its option about languages or scripts, without None."""
    values = (getattr(options, f"{side}_{kind}") for side in ("source", "target"))
    return [(side, value) for side, value in zip(sides, values, strict=True) if value is not None]


def _script(options, *sides):
    for side, scripts in _named("scripts", options, sides):
        letters = list(filter(str.isalpha, _without_addresses(side)))
        count = len(_letters_of(tuple(scripts)).findall("".join(letters)))
        if count < _SCRIPT_SHARE * len(letters):
            return True
    return False


@functools.lru_cache
def _letters_of(scripts: tuple[str, ...]):
    """Returns a pattern of a letter that some scripts use; Hiragana and Katakana share `ー`."""
    properties = "".join(rf"\p{{Script_Extensions={script}}}" for script in scripts)
    return regex.compile(f"[{properties}]")


def _language(options, *sides):
    return any(
        dict(language_identifier().rank(side))[_label(language)] < options.min_language_probability
        for side, language in _named("language", options, map(_without_addresses, sides))
        if len(_LETTER.findall(side)) >= _LANGUAGE_NEEDS_LETTERS
    )


def _check_identified(name, language):
    """Raises `InputError` unless py3langid identifies a language."""
    labels = language_identifier().labels
    if _label(language) not in labels:
        suggested = [code for code in suggested_codes(language) if code in labels]
        near = " or ".join(f"`{code}`" for code in suggested)
        advice = f" Did you mean {near}?" if near else ""
        rule = f"`{name}` must be a language that py3langid identifies, such as en"
        raise InputError(f"{rule}. Received: {received(language)}.{advice} {_ALL_CODES}")


@functools.lru_cache
def _label(language):
    """Returns py3langid's code of a language, or the code itself if there is none."""
    labels = closest_codes(language, language_identifier().labels)
    return labels[0] if labels else language


def without_escapes(text: str) -> str:
    """Returns a text with the characters that escapes of HTML and Moses stand for.

    Other text with `&` stays. Escapes of escapes are undone up to three times. Line breaks and tabs
    become spaces.

    >>> without_escapes("AT&amp;amp;T&apos;s R&D &lt;b&gt; &#91; &c;")
    "AT&T's R&D <b> [ &c;"
    """
    for _ in range(3 if "&" in text else 0):
        undone = _ESCAPE.sub(_unescaped, text)
        if undone == text:
            break
        text = undone
    return text


def _unescaped(match):
    return html.unescape(match[0]).translate(_SPACES)


def skeleton(text: str) -> str:
    """Returns the letters of a text without case and accents."""
    text = text.casefold()
    if text.isascii():
        return "".join(filter(str.isalpha, text))
    return "".join(filter(_is_letter, unicodedata.normalize("NFKD", text)))


def with_numbers(text: str) -> str:
    """Returns what near-duplicates share: the skeleton of a text, then its numbers.

    >>> with_numbers("Only 9.50 EUR!"), with_numbers("only EUR 950")
    ('onlyeur 9 50', 'onlyeur 950')
    """
    return " ".join([skeleton(text), *_NUMBER.findall(_with_ascii_digits(text))])


def _is_letter(character):
    # Vowel signs and voicing marks are letters; accents have the combining classes from 200 on.
    is_mark = unicodedata.category(character)[0] == "M"
    return character.isalpha() or is_mark and unicodedata.combining(character) < 200


RULES: dict[Rule, Callable[[Any, str, str], bool]] = {
    "length": _length,
    "ratio": _ratio,
    "copy": _copy,
    "encoding": _encoding,
    "punctuation": _punctuation,
    "urls": _urls,
    "numbers": _numbers,
    "script": _script,
    "language": _language,
}
"""Rules that sentence pairs of a corpus may break."""
