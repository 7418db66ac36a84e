"""Matches codes of languages as BCP 47 and CLDR do: a code that people type, and a model's codes.

Sources: BCP 47 (RFC 5646); Unicode's UTS 35, aliases and likely subtags; ISO 639-3's
macro-languages.
"""

import functools
from collections.abc import Iterable
from typing import NamedTuple

_MAX_LENGTH = 64  # characters of a code; BCP 47 asks programs for 35
# Codes of models that no standard has: Northern Sotho of M2M100.
_CODES_OF_MODELS = {"ns": "nso"}
# Two codes of one written language, which CLDR's list of aliases lacks.
_SAME = {"nb": "no"}


class _Tag(NamedTuple):
    """A code in parts.

    Attributes:
        language: Its shortest code, such as `de` of `deu`.
        main: Language that CLDR takes for the same, such as `zh` of `cmn`; otherwise `language`.
        script: Script that is named, or the usual one; "" if that is unknown.
        region: Region that is named, or None.
        usual_region: Region that is named, or the usual one; "" if that is unknown.
        names_script: Whether the code names its script.
        rest: Variants and private subtags.
    """

    language: str
    main: str
    script: str
    region: str | None
    usual_region: str
    names_script: bool
    rest: tuple[str, ...]


def closest_codes(spelling: str, codes: Iterable[str]) -> tuple[str, ...]:
    """Returns the codes that a code may stand for, the nearest first.

    They have the same language and the same script. A macro-language stands for its usual member,
    otherwise for the only member that is there. A code without a script and a region stands for
    the usual script, otherwise for the only script that is there.

    Args:
        spelling: Code that somebody typed, in any standard and any letters.
        codes: Codes, or names such as `deu_Latn`, that are there.

    >>> closest_codes("pt-PT", ["en", "pt-BR", "pt"]), closest_codes("zh-TW", ["zh", "zh-Hant"])
    (('pt', 'pt-BR'), ('zh-Hant',))
    >>> closest_codes("ps", ["pbt_Arab", "pes_Arab"]), closest_codes("sr-Latn", ["hr", "sr"])
    (('pbt_Arab',), ())
    """
    return _closest(spelling, tuple(codes)) if len(spelling) <= _MAX_LENGTH else ()


@functools.lru_cache(maxsize=4096)
def _closest(spelling, codes):
    typed = _tag(spelling)
    if typed is None:
        return ()
    tags = _tags(codes)
    same = [code for code, tag in tags.items() if _rank(typed, tag) is not None]
    same = same or _only_member(typed, tags)
    fitting = [code for code in same if tags[code].script == typed.script]
    if not fitting and not typed.names_script and typed.region is None:
        scripts = {tags[code].script for code in same}
        # Where Unicode knows several scripts, a code without a script means the usual one.
        if len(scripts) == 1 and not scripts & _scripts(typed.language):
            fitting = same
    return tuple(sorted(fitting, key=lambda code: _distance(typed, tags[code])))


def is_exact(spelling: str, code: str) -> bool:
    """Returns whether two codes name the same language, script and region.

    >>> is_exact("deu_Latn", "de"), is_exact("iw", "he"), is_exact("pt-BR", "pt")
    (True, True, False)
    """
    tag, other = _tag(spelling), _tag(code)
    if tag is None or other is None:
        return _folded(spelling) == _folded(code)
    is_same = _rank(tag, other) in (0, 1) and tag.script == other.script
    return is_same and (tag.region, tag.rest) == (other.region, other.rest)


def main_names(code: str) -> tuple[str, ...]:
    """Returns names of a code's language; two codes for which `is_exact` is true share one."""
    tag = _tag(code)
    return (_folded(code),) if tag is None else (tag.language, tag.main)


def includes(code: str, other_code: str) -> bool:
    """Returns whether a language includes another one, as a language includes its regions.

    >>> includes("en", "en-GB"), includes("no", "nb-NO"), includes("zh-Hans", "zh-CN")
    (True, True, True)
    >>> includes("en-GB", "en-US"), includes("zh-Hans", "zh-TW")
    (False, False)
    """
    tag, other = _tag(code), _tag(other_code)
    if tag is None or other is None:
        return f"{_folded(other_code)}-".startswith(f"{_folded(code)}-")
    is_same = _rank(tag, other) is not None and tag.script == other.script
    return is_same and tag.region in (None, other.usual_region) and {*tag.rest} <= {*other.rest}


def related_codes(spelling: str, codes: Iterable[str]) -> list[str]:
    """Returns the codes that are nearest to a code which stands for none of them.

    They are members of a macro-language in its script, and the same language in another script.
    Without such codes, they are other members of the same macro-language.

    >>> related_codes("sr-Latn", ["en", "hr", "sr"]), related_codes("nn", ["en", "no"])
    (['sr'], ['no'])
    """
    from langcodes.data_dicts import MACROLANGUAGES

    if (typed := _tag(spelling)) is None:
        return []
    tags = _tags(tuple(codes))
    same = [code for code, tag in tags.items() if _rank(typed, tag) is not None]
    members = [
        code
        for code, tag in tags.items()
        if MACROLANGUAGES.get(tag.language) == typed.language and tag.script == typed.script
    ]
    family = (code for code, tag in tags.items() if _family(tag) == _family(typed))
    return list(dict.fromkeys([*members, *same])) or list(family)


def spellings_of(codes: Iterable[str]) -> dict[str, str]:
    """Returns codes by the codes that may be typed for them, for programs that hold a table.

    The table has Unicode's list of locales and aliases, in lower case with hyphens.
    """
    from babel.core import get_global
    from babel.localedata import locale_identifiers
    from langcodes.data_dicts import LANGUAGE_REPLACEMENTS, MACROLANGUAGES

    codes = tuple(codes)
    languages = set(map(_family, _tags(codes).values()))
    known = [*locale_identifiers(), *get_global("likely_subtags"), *get_global("language_aliases")]
    known += [*LANGUAGE_REPLACEMENTS, *MACROLANGUAGES, *MACROLANGUAGES.values()]
    code_of_spelling = {}
    for spelling in dict.fromkeys(map(_folded, known)):
        tag = _tag(spelling)
        if tag is not None and _family(tag) in languages:
            for code in closest_codes(spelling, codes)[:1]:
                code_of_spelling[spelling] = code
    return code_of_spelling


@functools.lru_cache(maxsize=64)
def _tags(codes):
    """Returns the parts of each code that has a known form."""
    return {code: tag for code in codes if (tag := _tag(code)) is not None}


def _tag(code):
    """Returns the parts of a code, None for a code of another form or an unknown one."""
    return _parsed(_folded(code)) if len(code) <= _MAX_LENGTH else None


@functools.lru_cache(maxsize=1 << 14)
def _parsed(code):
    from babel.core import get_global
    from langcodes import Language
    from langcodes.data_dicts import MACROLANGUAGES

    first, *rest = code.split("-")
    code = "-".join([_CODES_OF_MODELS.get(first, first), *rest])
    try:
        tag = Language.get(code)
        language = tag.language
        if tag.extlangs:  # ar-arz, in the form of 2005
            (language,) = tag.extlangs
            if MACROLANGUAGES.get(language) != tag.language:
                return None
    except ValueError:
        return None
    if language is None or "-" in language:  # und, x-klingon
        return None
    alias = get_global("language_aliases").get(language, language)
    main = _SAME.get(language, language if "_" in alias else alias)
    _, script, region = _likely(language, main, tag.script, tag.territory)
    parts = [*(tag.variants or ()), *([tag.private] if tag.private else ())]
    return _Tag(
        language,
        main,
        tag.script or script,
        tag.territory,
        tag.territory or region,
        tag.script is not None,
        tuple(parts),
    )


def _likely(language, main, script, region):
    """Returns the usual language, script and region of a code, "" for what is unknown."""
    from babel.core import get_global

    likely = get_global("likely_subtags")
    for name in dict.fromkeys([language, main]):
        for subtags in ((script, region), (script,), (region,), ()):
            key = "_".join([name, *filter(None, subtags)])
            if None not in subtags and (usual := likely.get(key, "")).count("_") == 2:
                return usual.split("_")
    return "", "", ""


def _rank(typed, tag):
    """Returns 0 for one language, 1 or 2 for two codes of it, None for two languages."""
    if typed.language == tag.language:
        return 0
    if typed.language == tag.main or tag.language == typed.main:
        return 2 if {typed.language, tag.language} & {*_SAME} else 1
    return None


def _only_member(typed, tags):
    """Returns the codes of a macro-language's member, if there is only one member.

    A member with Unicode's own locale, such as `hr` of `sh`, is a language of its own.
    """
    from langcodes.data_dicts import MACROLANGUAGES

    members = [
        code for code, tag in tags.items() if MACROLANGUAGES.get(tag.language) == typed.language
    ]
    languages = {tags[code].language for code in members}
    return members if len(languages) == 1 and not languages & _locales().keys() else []


def _distance(typed, tag):
    """Returns a key that sorts codes of one language and one script by their distance."""
    from langcodes import tag_distance

    regions = [typed.usual_region, tag.usual_region]
    first, second = ("-".join([typed.main, *filter(None, [region])]) for region in regions)
    return (
        0 if first == second else tag_distance(first, second),
        0 if tag.region == typed.region else 1 if tag.region is None else 2,
        tag.names_script != (typed.names_script or typed.region is not None),
        _rank(typed, tag) or 0,
        len({*tag.rest} ^ {*typed.rest}),
    )


def _family(tag):
    from langcodes.data_dicts import MACROLANGUAGES

    return MACROLANGUAGES.get(tag.language, tag.main)


def _scripts(language):
    return _locales().get(language, set())


@functools.cache
def _locales():
    """Returns the scripts that Unicode's locales of each language name."""
    from babel.localedata import locale_identifiers

    scripts: dict[str, set[str]] = {}
    for identifier in locale_identifiers():
        language, *subtags = identifier.split("_")
        scripts.setdefault(language, set()).update(part for part in subtags if len(part) == 4)
    return scripts


def _folded(code):
    return code.strip().replace("_", "-").lower()
