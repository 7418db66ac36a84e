"""Matches codes of languages: a code that people type, and a model's codes.

`langcodes` knows the standards: BCP 47 (RFC 5646), and Unicode's aliases, usual scripts and
distances of regions (UTS 35). Babel knows which languages and scripts have a locale of Unicode.
"""

import difflib
import functools
from collections.abc import Iterable
from typing import NamedTuple

_MAX_LENGTH = 64  # characters of a code; BCP 47 asks programs for 35
# Codes that langcodes does not understand: Northern Sotho of M2M100, and NLLB's Twi, which
# langcodes takes for the macro-language.
_SPELLINGS = {"ns": "nso", "twi": "tw"}
# Languages that a text does not tell apart, although each has a code: `no` is the macro-language.
_WRITTEN_ALIKE = {"nb": "no"}
_RIGHT_TO_LEFT = frozenset("Adlm Arab Hebr Mand Nkoo Rohg Samr Syrc Thaa".split())
_NEAR_LETTERS = 0.8  # danish is not near spanish, of which it has 0.77
_MAX_SUGGESTED = 5


class _Tag(NamedTuple):
    """A code in parts.

    Attributes:
        member: Language that is named, such as `cmn`, in its shortest code.
        language: Macro-language if that usually means the member, such as `zh`; otherwise `member`.
        script: Script that is named, or the usual one; "" if that is unknown.
        region: Region that is named, or None.
        usual_region: Region that is named, or the usual one; "" if that is unknown.
        names_script: Whether the code names its script.
        rest: Variants and private subtags.
    """

    member: str
    language: str
    script: str
    region: str | None
    usual_region: str
    names_script: bool
    rest: frozenset[str]


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
    same = {code: tag for code, tag in tags.items() if tag.language == typed.language}
    same = same or _only_member(typed, tags)
    fitting = [code for code, tag in same.items() if _may_be(typed.script, tag.script)]
    if not fitting and not typed.names_script and typed.region is None:
        scripts = {tag.script for tag in same.values()}
        # Where Unicode knows several scripts, a code without a script means the usual one.
        if len(scripts) == 1 and not _has_locale(f"{typed.member}_{scripts.pop()}"):
            fitting = list(same)
    return tuple(sorted(fitting, key=lambda code: _distance(typed, tags[code])))


def is_exact(spelling: str, code: str) -> bool:
    """Returns whether two codes name the same language, script and region.

    >>> is_exact("deu_Latn", "de"), is_exact("iw", "he"), is_exact("pt-BR", "pt")
    (True, True, False)
    """
    tag, other = _tag(spelling), _tag(code)
    if tag is None or other is None:
        return _folded(spelling) == _folded(code)
    is_same = (tag.language, tag.script) == (other.language, other.script)
    is_same = is_same and (tag.member in _WRITTEN_ALIKE) == (other.member in _WRITTEN_ALIKE)
    return is_same and (tag.region, tag.rest) == (other.region, other.rest)


def main_name(code: str) -> str:
    """Returns a name of a code's language; codes for which `is_exact` is true have the same."""
    tag = _tag(code)
    return _folded(code) if tag is None else tag.language


def primary_language(code: str | None) -> str | None:
    """Returns the main part of a code or of a model's name of a language: `pt` of `por_Latn`."""
    tag = None if code is None else _tag(code)
    return None if tag is None else tag.language


def writing_direction(code: str) -> str | None:
    """Returns `"ltr"` or `"rtl"`, as HTML names directions, None for an unknown script.

    >>> [writing_direction(code) for code in ("pt", "ar", "az-Arab", "xx")]
    ['ltr', 'rtl', 'rtl', None]
    """
    tag = _tag(code)
    if tag is None or not tag.script:
        return None
    return "rtl" if tag.script in _RIGHT_TO_LEFT else "ltr"


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
    is_same = (tag.language, tag.script) == (other.language, other.script)
    return is_same and tag.region in (None, other.usual_region) and tag.rest <= other.rest


def related_codes(spelling: str, codes: Iterable[str]) -> list[str]:
    """Returns the codes that are nearest to a code which stands for none of them.

    They are members of a macro-language in its script, and the same language in another script.
    Without such codes, they are other members of the same macro-language.

    >>> related_codes("sr-Latn", ["en", "hr", "sr"]), related_codes("nn", ["en", "no"])
    (['sr'], ['no'])
    """
    if (typed := _tag(spelling)) is None:
        return []
    tags = _tags(tuple(codes))
    members = [code for code, tag in _members(typed, tags) if _may_be(typed.script, tag.script)]
    same = [code for code, tag in tags.items() if tag.language == typed.language]
    family = (code for code, tag in tags.items() if _family(tag) == _family(typed))
    return list(dict.fromkeys([*members, *same])) or list(family)


def is_known(code: str) -> bool:
    """Returns whether the standards know all parts of a code, or it is a private code.

    >>> [is_known(code) for code in ("en", "eng", "zho_Hant", "x-klingon", "qaa", "ns")]
    [True, True, True, True, True, True]
    >>> [is_known(code) for code in ("xx", "spanish", "en-Xxxx")]
    [False, False, False]
    """
    from langcodes import Language

    if len(code) > _MAX_LENGTH:  # langcodes calls itself for each part.
        return False
    first, *subtags = _folded(code).split("-")
    try:
        return Language.get("-".join([_SPELLINGS.get(first, first), *subtags])).is_valid()
    except ValueError:
        return False


def suggested_codes(spelling: str) -> list[str]:
    """Returns the codes that somebody may mean who typed a name or a country, the nearest first.

    They are the codes of the language with this English name, or nearly this name. For the code of
    a country it is the country's usual language.

    >>> suggested_codes("spanish"), suggested_codes("Germna"), suggested_codes("jp")
    (['es'], ['de'], ['ja'])
    """
    from babel import Locale
    from langcodes.data_dicts import LIKELY_SUBTAGS

    name = spelling.strip().lower()
    if len(name) > _MAX_LENGTH:
        return []
    if of_country := LIKELY_SUBTAGS.get(f"und-{name.upper()}"):
        return [] if is_known(name) else [of_country.partition("-")[0]]
    codes = {language.lower(): code for code, language in Locale("en").languages.items()}
    near = difflib.get_close_matches(name, codes, _MAX_SUGGESTED, _NEAR_LETTERS)
    return [codes[name]] if name in codes else [codes[language] for language in near]


def spellings_of(codes: Iterable[str]) -> dict[str, str]:
    """Returns codes by the codes that may be typed for them, for programs that hold a table.

    The table has Unicode's list of locales and aliases, in lower case with hyphens.
    """
    from babel.localedata import locale_identifiers
    from langcodes.data_dicts import LANGUAGE_REPLACEMENTS, LIKELY_SUBTAGS, MACROLANGUAGES

    codes = tuple(codes)
    languages = set(map(_family, _tags(codes).values()))
    known = [*locale_identifiers(), *LIKELY_SUBTAGS, *LANGUAGE_REPLACEMENTS]
    known += [*MACROLANGUAGES, *MACROLANGUAGES.values()]
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
    from langcodes import Language
    from langcodes.data_dicts import LIKELY_SUBTAGS, MACROLANGUAGES

    first, *subtags = code.split("-")
    if subtags and MACROLANGUAGES.get(subtags[0]) == first:  # ar-arz, in the form of 2005
        first, *subtags = subtags
    try:
        tag = Language.get("-".join([_SPELLINGS.get(first, first), *subtags]))
    except ValueError:
        return None
    if tag.language is None or "-" in tag.language or tag.extlangs:  # und, x-klingon
        return None
    standard = tag.prefer_macrolanguage()
    # langcodes takes an unknown language's usual script and region from English.
    usual = standard.maximize() if standard.language in LIKELY_SUBTAGS else standard
    return _Tag(
        tag.language,
        _WRITTEN_ALIKE.get(standard.language, standard.language),
        usual.script or "",
        tag.territory,
        usual.territory or "",
        tag.script is not None,
        frozenset([*(tag.variants or ()), *([tag.private] if tag.private else ())]),
    )


def _may_be(script, other_script):
    """Returns whether two scripts are the same, or one of them is unknown."""
    return script == other_script or not (script and other_script)


def _members(typed, tags):
    """Returns the codes, with their parts, of the members of a macro-language."""
    from langcodes.data_dicts import MACROLANGUAGES

    return [
        (code, tag) for code, tag in tags.items() if MACROLANGUAGES.get(tag.member) == typed.member
    ]


def _only_member(typed, tags):
    """Returns the codes, with their parts, of a macro-language's member, if it has only one.

    A member with Unicode's own locale, such as `hr` of `sh`, is a language of its own.
    """
    members = dict(_members(typed, tags))
    languages = {tag.member for tag in members.values()}
    return members if len(languages) == 1 and not any(map(_has_locale, languages)) else {}


def _has_locale(identifier):
    from babel.localedata import exists

    return exists(identifier)


def _distance(typed, tag):
    """Returns a key that sorts codes of one language and one script by their distance."""
    from langcodes import tag_distance

    first, second = (
        "-".join(filter(None, [typed.language, region]))
        for region in (typed.usual_region, tag.usual_region)
    )
    return (
        tag_distance(first, second),
        0 if tag.region == typed.region else 1 if tag.region is None else 2,
        tag.names_script != (typed.names_script or typed.region is not None),
        tag.member != typed.member,
        len(tag.rest ^ typed.rest),
    )


def _family(tag):
    from langcodes.data_dicts import MACROLANGUAGES

    return MACROLANGUAGES.get(tag.member, tag.language)


def _folded(code):
    return code.strip().replace("_", "-").lower()
