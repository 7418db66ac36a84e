"""Codes of languages, such as `en` and `pt-BR`, and their English names."""

import re

from keras_transformer.errors import InputError
from keras_transformer.options import received

# Subtags of BCP 47. The first has one letter only in private codes, such as x-klingon.
_CODE = re.compile(r"([a-z]{2,8}|[ix](?=-))(-[a-z0-9]{1,8})*", re.IGNORECASE)


def language_pair(languages: str) -> tuple[str, str]:
    """Returns the codes of a source and a target, in the usual letters.

    Args:
        languages: Both codes, with a hyphen or a comma between.

    Raises:
        InputError: These are not two codes of the form of BCP 47.

    >>> language_pair("en-de"), language_pair("EN_gb, zh-hans")
    (('en', 'de'), ('en-GB', 'zh-Hans'))
    """
    parts = languages.split("," if "," in languages else "-")
    codes = [part.strip().replace("_", "-") for part in parts]
    if len(codes) != 2 or not all(map(_CODE.fullmatch, codes)):
        rule = "`languages` must be two codes, such as en-de or en-GB,pt-BR"
        raise InputError(f"{rule}. Received: {received(languages)}.")
    source, target = map(_with_usual_letters, codes)
    return source, target


def _with_usual_letters(code):
    """Returns a code with its region in upper case, and its script in title case."""
    first, *subtags = code.lower().split("-")
    usual = [{2: part.upper(), 4: part.title()}.get(len(part), part) for part in subtags]
    return "-".join([first, *usual])


def language_name(code: str) -> str:
    """Returns the English name of a language, or its code if Unicode's list does not have it.

    >>> language_name("de"), language_name("pt-BR"), language_name("en-DE"), language_name("zz")
    ('German', 'Brazilian Portuguese', 'English (DE)', 'zz')
    """
    from babel import Locale

    names, (first, _, subtags) = Locale("en").languages, code.partition("-")
    name = names.get(code.replace("-", "_"))
    if name is None and first in names:
        name = f"{names[first]} ({subtags})"
    return name or code
