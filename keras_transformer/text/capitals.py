"""Texts in capital letters, which a model reads better in their usual case."""

import functools
import re
from collections.abc import Callable

import regex

from keras_transformer.text.patterns import ITEM

# Items and symbols such as <ph_1> keep their case.
_WORD = regex.compile(r"\p{L}[\p{L}\p{M}]+")
_LETTER = regex.compile(r"\p{L}")
_SIGN_OF_ITEM = re.compile(r"[{$%#@\[</]|www\.", re.IGNORECASE)  # in each item is one of these
_I = regex.compile(r"\bi\b")
_DOTTED = {"lower": str.maketrans("Iİ", "ıi"), "upper": str.maketrans("iı", "İI")}
# The only lower-case letter that becomes two capitals in words.
_SHARP_S = str.maketrans("ß", "ẞ")


def is_in_capitals(text: str) -> bool:
    """Returns whether a text has two words or more, and all letters with a case are capitals."""
    if not text.isupper() and _SIGN_OF_ITEM.search(text) is None:  # Nearly all texts: fast.
        return False
    words = _WORD.findall(ITEM.sub(" ", text))
    joined = "".join(words)
    return len(words) > 1 and joined.isupper() and not any(map(str.islower, ITEM.sub("", text)))


def in_usual_case(text: str, language: str | None = None) -> str:
    """Returns a text in capitals as a sentence: with one capital, at its beginning.

    Args:
        text: The text.
        language: Its code of BCP 47. Turkish and Azerbaijani have a dotless i, and English has `I`.
    """
    lowered = _outside_items(text, functools.partial(_lowered, language))
    outside = ITEM.sub(lambda item: " " * len(item[0]), lowered)
    if (letter := _LETTER.search(outside)) is None:
        return lowered
    start, stop = letter.span()
    return lowered[:start] + _changed("upper", language, letter[0]) + lowered[stop:]


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
