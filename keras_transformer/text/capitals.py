"""Texts in capital letters, which a model reads better in their usual case."""

import functools
import re
from collections.abc import Callable, Iterable

import regex

from keras_transformer.text.patterns import ITEM

# Items and symbols such as <ph_1> keep their case.
_WORD = regex.compile(r"\p{L}[\p{L}\p{M}]+")
_LETTER = regex.compile(r"\p{L}")
_MIN_LETTERS = 6  # of a word that is no acronym
_CASELESS = regex.compile(r"\p{Lo}")  # Chinese, Arabic, Hindi …
_SIGN_OF_ITEM = re.compile(r"[{$%#@\[</]|www\.", re.IGNORECASE)  # in each item is one of these
_I = regex.compile(r"\bi\b")
_DOTTED = {"lower": str.maketrans("Iİ", "ıi"), "upper": str.maketrans("iı", "İI")}
# The only lower-case letter that becomes two capitals in words.
_SHARP_S = str.maketrans("ß", "ẞ")


def is_in_capitals(text: str) -> bool:
    """Returns whether a text is a sentence in capitals: not an acronym, nor several of them.

    All letters are capitals, none is of a script without case, and there are two words or more, one
    of at least six letters.
    """
    if not text.isupper() and _SIGN_OF_ITEM.search(text) is None:  # Nearly all texts: fast.
        return False
    plain = ITEM.sub(" ", text)
    words = _WORD.findall(plain)
    if len(words) < 2 or max(map(len, words)) < _MIN_LETTERS:
        return False
    return plain.isupper() and _CASELESS.search(plain) is None


def in_usual_case(
    text: str, language: str | None = None, terms: Iterable[tuple[int, int]] = ()
) -> str:
    """Returns a text in capitals as a sentence: with one capital, at its beginning.

    Args:
        text: The text.
        language: Its code of BCP 47. Turkish and Azerbaijani have a dotless i, and English has `I`.
        terms: Bounds of parts that stay as they are, in order.
    """
    lowered = _outside_items(text, functools.partial(_lowered, language))
    outside = ITEM.sub(lambda item: " " * len(item[0]), lowered)
    if letter := _LETTER.search(outside):
        start, stop = letter.span()
        lowered = lowered[:start] + _changed("upper", language, letter[0]) + lowered[stop:]
    parts, position = [], 0
    for start, stop in terms:
        parts += [lowered[position:start], text[start:stop]]
        position = stop
    return "".join([*parts, lowered[position:]])


def in_capitals(text: str, language: str | None = None) -> str:
    """Returns a text in capitals, as long as before: its items stay, and ß becomes ẞ."""
    return _outside_items(text, functools.partial(_changed, "upper", language))


def _outside_items(text: str, change: Callable[[str], str]) -> str:
    parts, position = [], 0
    for item in ITEM.finditer(text):
        parts += [change(text[position : item.start()]), item[0]]
        position = item.end()
    return "".join([*parts, change(text[position:])])


def _lowered(language, text):
    lowered = _changed("lower", language, text)
    return _I.sub("I", lowered) if _primary(language) == "en" else lowered


def _changed(way, language, text):
    if _primary(language) in ("tr", "az"):
        text = text.translate(_DOTTED[way])
    if way == "upper":
        text = text.translate(_SHARP_S)
    changed = getattr(text, way)()
    if len(changed) == len(text):
        return changed
    changed_letters = (getattr(letter, way)() for letter in text)
    return "".join(
        new if len(new) == 1 else old for old, new in zip(text, changed_letters, strict=True)
    )


def _primary(language):
    return (language or "").partition("-")[0]
