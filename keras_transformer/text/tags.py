"""Patterns of a tag before a text and of the token of a language. No other module has them.

A tag is `<bt>` for a corpus, or `>>deu<<` for a target language. The name of a language has neither
spaces nor angle brackets. Other models have tokens of languages that no text has: `__de__` of
M2M100, `deu_Latn` of NLLB.
"""

import re
from collections.abc import Collection, Iterable

from keras_transformer.base.errors import InputError
from keras_transformer.text.vocabulary import SPACE

# The vocabulary's other tokens have other names: `<ph_1>`, `<term_begin>`, `</s>`.
_NAME = re.compile("[a-z0-9][a-z0-9-]*")
_CORPUS, _LANGUAGE = f"<{_NAME.pattern}>", rf">>[^<>\s{SPACE}]+<<"
TAG = re.compile(f"{_CORPUS}|{_LANGUAGE}")
"""A tag."""
LANGUAGE_TOKEN = re.compile("__[a-z]{2,3}__|[a-z]{3}_[A-Z][a-z]{3}")
"""Token of a language that is not a tag."""
_AT_START = re.compile(rf"\s*({TAG.pattern})\s*")
_CORPUS_TAG, _LANGUAGE_TAG = re.compile(_CORPUS), re.compile(f"{SPACE}?{_LANGUAGE}")


def check_new_tag(name: str) -> None:
    """Raises `InputError` for a name that the tag of a corpus cannot have."""
    if not _NAME.fullmatch(name):
        rule = "A new `tag` must have only lower-case letters, digits and hyphens"
        raise InputError(f"{rule}, and no hyphen first. Received: {name:.80}.")


def language_tag(name: str) -> str:
    """Returns the tag of a language."""
    return f">>{name}<<"


def tag_tokens(names: Iterable[str], are_languages: bool = False) -> dict[str, str]:
    """Returns the tokens of tags by name: `<2de>`, or `>>epo<<` for a language.

    >>> tag_tokens(["2de"]), tag_tokens(["epo"], are_languages=True)
    ({'2de': '<2de>'}, {'epo': '>>epo<<'})
    """
    return {name: language_tag(name) if are_languages else f"<{name}>" for name in names}


def corpus_in_tag(token: str) -> str | None:
    """Returns the name in the tag of a corpus; None for another token."""
    return token[1:-1] if _CORPUS_TAG.fullmatch(token) else None


def language_in_tag(token: str) -> str | None:
    """Returns the name in the tag of a language, with or without a space before; else None.

    >>> language_in_tag(">>deu<<"), language_in_tag("▁>>deu<<"), language_in_tag("__de__")
    ('deu', 'deu', None)
    """
    return token.removeprefix(SPACE)[2:-2] if _LANGUAGE_TAG.fullmatch(token) else None


def without_signs(token: str) -> str:
    """Returns the name in any token of a language; other texts stay as they are.

    >>> [without_signs(token) for token in (">>deu<<", "__de__", "deu_Latn")]
    ['deu', 'de', 'deu_Latn']
    """
    if LANGUAGE_TOKEN.fullmatch(token):
        return token.strip("_")
    return language_in_tag(token) or token


def split_tag(text: str, tokens: Collection[str]) -> tuple[str, str]:
    """Returns the tag among `tokens` that a text begins with, or "", and the rest of the text.

    >>> split_tag(" >>deu<< Two dogs", [">>deu<<"]), split_tag("<b>Two</b> dogs", ["<bt>"])
    (('>>deu<<', 'Two dogs'), ('', '<b>Two</b> dogs'))
    """
    match = _AT_START.match(text)
    if match is None or match[1] not in tokens:
        return "", text
    return match[1], text[match.end() :]
