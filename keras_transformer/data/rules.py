"""Rules for sentence pairs: each looks at one pair and says whether it is broken."""

import functools
import re
import unicodedata
from collections.abc import Callable
from typing import Any, Literal, get_args

import regex

from keras_transformer.config import check_choice
from keras_transformer.declaration import declared, option
from keras_transformer.errors import require

Script = Literal[
    "Arabic", "Armenian", "Bengali", "Cyrillic", "Devanagari", "Ethiopic", "Georgian", "Greek",
    "Gujarati", "Gurmukhi", "Han", "Hangul", "Hebrew", "Hiragana", "Kannada", "Katakana", "Khmer",
    "Lao", "Latin", "Malayalam", "Myanmar", "Sinhala", "Tamil", "Telugu", "Thai", "Tibetan",
]  # fmt: skip
Rule = Literal[
    "length", "ratio", "copy", "encoding", "punctuation", "urls", "numbers", "script", "language"
]

_SCRIPTS = f"a list of {', '.join(get_args(Script))}, or null"
# Below this a ratio says nothing: "Yes." against a short sentence is a fair translation.
_RATIO_NEEDS_CHARACTERS = 20
# Shorter texts are identified by chance.
_LANGUAGE_NEEDS_LETTERS = 15
# The rest may be names.
_SCRIPT_SHARE = 0.8
# "forty-one" for 41, but no words for a year.
_DIGITS_OF_WORDS = 2
_URL = re.compile(r"(?:https?://|www\.)\S+|[\w.+-]+@[\w-]+\.[\w.-]+", re.IGNORECASE)
_IN_URLS = "@", "/", "www", "WWW"  # one of which every URL has
# Vowel signs are letters, too: without them most of a Burmese or Hindi word is none.
_LETTER = regex.compile(r"[\p{L}\p{M}]")
_WIDE = regex.compile(r"\p{East_Asian_Width=W}")
# A question mark at the end, with what closes after it; Greek's looks like a semicolon.
_CLOSING = r"[\p{Sentence_Terminal}\p{Pe}\p{Pf}\p{Pi}\"'\s]*+$"
_QUESTION = regex.compile(rf"[?？؟፧⁇⁈⁉‽]{_CLOSING}")
_GREEK_QUESTION = regex.compile(rf"\p{{Greek}}.*[;?\u037e]{_CLOSING}", regex.DOTALL)
# Letters of scripts that do not end every question with a mark: in Japanese, Thai, Lao, Khmer,
# Burmese and Tibetan words ask, and the mark may be absent; Armenian's stands inside a word.
_ASKS_WITHOUT_MARK = regex.compile(
    r"(?V1)[\p{L}--[\p{Arabic}\p{Bengali}\p{Common}\p{Cyrillic}\p{Devanagari}\p{Ethiopic}"
    r"\p{Georgian}\p{Greek}\p{Gujarati}\p{Gurmukhi}\p{Han}\p{Hangul}\p{Hebrew}\p{Kannada}\p{Latin}"
    r"\p{Malayalam}\p{Oriya}\p{Sinhala}\p{Tamil}\p{Telugu}]]"
)


@declared
class PairRules:
    """Rules for the text of a pair, and their limits."""

    min_characters: int = option(1, "length: fewest characters of a side.", ge=1)
    max_characters: int = option(1000, "length: most characters of a side.", ge=1)
    max_ratio: float | None = option(
        3.0,
        "ratio: most times that one side may be as long as the other, in characters (wide ones, "
        "as of Chinese, count twice), looked at once the longer one has more than 20; null: any.",
        ge=1,
    )
    min_letter_share: float = option(
        0.5,
        "punctuation: least share of letters in a side's characters without spaces.",
        ge=0,
        le=1,
    )
    source_scripts: list[Script] | None = option(
        None,
        "script: Unicode scripts of the source, such as [Han, Hiragana, Katakana]; null: any.",
        _SCRIPTS,
        strict=None,
    )
    target_scripts: list[Script] | None = option(
        None, "script: those of the target; null: any.", _SCRIPTS, strict=None
    )
    source_language: str | None = option(
        None, "language: ISO 639-1 code of the source, with the extra `clean`; null: any."
    )
    target_language: str | None = option(None, "language: that of the target; null: any.")
    min_language_probability: float = option(
        0.02,
        "language: least probability of a side's language, looked at once it has 15 letters.",
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
        """Raises `InputError` for a package that a rule needs and that is not installed."""
        if "encoding" not in self.without:
            require("ftfy", "ftfy, for the rule encoding,", "clean")
        if "language" not in self.without and (self.source_language or self.target_language):
            labels = _identifier().labels
            for language in filter(None, (self.source_language, self.target_language)):
                check_choice("language", language, tuple(labels))

    def broken(self, source: str, target: str) -> Rule | None:
        """Returns the name of the first rule that a pair breaks, None where it breaks none."""
        for name, breaks in RULES.items():
            if name not in self.without and breaks(self, source, target):
                return name
        return None


def _length(options, *sides):
    shorter, longer = sorted(len(side.strip()) for side in sides)
    return shorter < options.min_characters or longer > options.max_characters


def _ratio(options, *sides):
    shorter, longer = sorted(len(each) + len(_WIDE.findall(each)) for each in map(str.strip, sides))
    most = options.max_ratio
    return most is not None and longer > max(most * shorter, _RATIO_NEEDS_CHARACTERS)


def _copy(options, source, target):
    """One word may be a name: two sides of several words are equal."""
    letters = skeleton(source)
    return bool(letters) and letters == skeleton(target) and len(source.split()) > 1


def _encoding(options, *sides):
    """Text that was decoded as what it is not, or lost characters on the way."""
    from ftfy.badness import is_bad

    def is_control(text):
        return not text.isprintable() and any(unicodedata.category(c) == "Cc" for c in text)

    return any(
        is_control(side) or not side.isascii() and ("\ufffd" in side or is_bad(side))
        for side in sides
    )


def _punctuation(options, *sides):
    """Mostly signs and digits, or a question on one side alone."""
    for side in sides:
        count = len(side) - side.count(" ")
        if len(_LETTER.findall(side)) < options.min_letter_share * count:
            return True
    source, target = map(_is_question, sides)
    return source != target and not any(map(_ASKS_WITHOUT_MARK.search, sides))


def _is_question(text):
    return bool(_QUESTION.search(text) or _GREEK_QUESTION.search(text))


def _urls(options, *sides):
    found = [_URL.findall(side) if any(each in side for each in _IN_URLS) else [] for side in sides]
    source, target = (sorted(each.rstrip(".,;:!?)\"'").lower() for each in side) for side in found)
    return source != target


def _numbers(options, *sides):
    """Digits but 0, whatever stands between them: 1,000.50 is 1.000,5; words may stand for two."""
    digits = [[unicodedata.decimal(each) for each in side if each.isdecimal()] for side in sides]
    fewer, more = sorted((sorted(filter(None, each)) for each in digits), key=len)
    return fewer != more and (bool(fewer) or len(more) > _DIGITS_OF_WORDS)


def _named(kind, options, sides):
    """Pairs of a side and its languages or scripts, where they are given."""
    values = (getattr(options, f"{side}_{kind}") for side in ("source", "target"))
    return [(side, value) for side, value in zip(sides, values, strict=True) if value is not None]


def _script(options, *sides):
    for side, scripts in _named("scripts", options, sides):
        letters = list(filter(str.isalpha, side))
        count = len(_letters_of(tuple(scripts)).findall("".join(letters)))
        if count < _SCRIPT_SHARE * len(letters):
            return True
    return False


@functools.cache
def _letters_of(scripts: tuple[str, ...]):
    """Pattern of a letter that some scripts use: Hiragana's and Katakana's `ー` is of both."""
    properties = "".join(rf"\p{{Script_Extensions={each}}}" for each in scripts)
    return regex.compile(f"[{properties}]")


def _language(options, *sides):
    return any(
        dict(_identifier().rank(side))[language] < options.min_language_probability
        for side, language in _named("language", options, sides)
        if len(_LETTER.findall(side)) >= _LANGUAGE_NEEDS_LETTERS
    )


@functools.cache
def _identifier():
    langid = require("py3langid.langid", "py3langid, for the rule language,", "clean")
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


def skeleton(text: str) -> str:
    """Letters of a text without case and accents: what near-duplicates share."""
    text = text.casefold()
    if text.isascii():
        return "".join(filter(str.isalpha, text))
    return "".join(filter(_is_letter, unicodedata.normalize("NFKD", text)))


def _is_letter(character):
    # Vowel signs and voicing marks are letters; accents have the combining classes from 200 on.
    is_mark = unicodedata.category(character)[0] == "M"
    return character.isalpha() or is_mark and unicodedata.combining(character) < 200


_FUNCTIONS = _length, _ratio, _copy, _encoding, _punctuation, _urls, _numbers, _script, _language
RULES: dict[Rule, Callable[[Any, str, str], bool]] = dict(
    zip(get_args(Rule), _FUNCTIONS, strict=True)
)
