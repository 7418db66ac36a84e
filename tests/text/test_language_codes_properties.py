"""What codes stand for, compared with langcodes and with Unicode's list of locales."""

import itertools

from babel.core import get_global
from babel.localedata import locale_identifiers
from langcodes import Language

from keras_transformer.text.language_codes import closest_codes, includes, is_exact, spellings_of

_CODES = """
    en en-GB pt pt-BR zh zh-Hant sr sr-Latn nb no nn de de-1996 he fil cmn hr fa pes_Arab kk uz-Cyrl
    ca-valencia
""".split()


def _usual(code):
    language = Language.get(code).maximize()
    return language.script, language.territory


def _languages():
    """Languages with a locale of Unicode, whose usual script and region both lists name alike."""
    codes = sorted({identifier.split("_")[0] for identifier in locale_identifiers()})
    likely = get_global("likely_subtags")
    return [code for code in codes if likely.get(code, "").split("_")[1:] == list(_usual(code))]


def test_a_table_has_the_nearest_code_of_each_spelling():
    table = spellings_of(_CODES)
    assert len(table) > 100
    assert table == {spelling: closest_codes(spelling, _CODES)[0] for spelling in table}
    assert table["pt-pt"] == "pt"


def test_a_code_names_its_usual_script_and_region_and_no_other():
    languages = _languages()
    assert len(languages) > 150
    for code in languages:
        script, region = _usual(code)
        other = "FR" if region != "FR" else "DE"
        assert includes(code, f"{code}-{region}") and includes(f"{code}-{region}", code)
        if _usual(f"{code}-{other}")[0] == script:
            assert includes(code, f"{code}-{other}") and not includes(f"{code}-{other}", code)
        assert is_exact(code, f"{code}-{script}") and not is_exact(code, f"{code}-{region}")
        assert not is_exact(code, f"{code}-1996") and not is_exact(f"{code}-1996", f"{code}-1901")


def test_exact_codes_are_equal_in_both_orders_and_stand_for_each_other():
    others = "deu_Latn por pt_br iw tl nob_Latn zh-CN zh-Hans hrv fas de-1901"
    spellings = [*_CODES, *others.split()]
    exact = {pair for pair in itertools.product(spellings, repeat=2) if is_exact(*pair)}
    assert {(code, code) for code in spellings} <= exact == {pair[::-1] for pair in exact}
    for code, other in exact:
        assert closest_codes(code, ["fr", other]) == (other,)
    # Two written languages by name, which texts do not tell apart.
    assert exact.isdisjoint({("nb", "no"), ("nob_Latn", "no"), ("de", "de-1996"), ("zh", "zh-CN")})


def test_a_code_never_stands_for_a_script_that_it_does_not_mean():
    scripts = {}
    for identifier in locale_identifiers():
        language, *subtags = identifier.split("_")
        scripts.setdefault(language, set()).update(part for part in subtags if len(part) == 4)
    for language in _languages():
        usual, region = _usual(language)
        for script in {*scripts[language], "Arab", "Latn"} - {usual}:
            code = f"{language}-{script}"
            means_usual = bool(scripts[language] & {script})
            # Where Unicode knows one script, a code means the only one that a model has.
            assert closest_codes(language, [code]) == (() if means_usual else (code,))
            assert closest_codes(f"{language}-{region}", [code]) == ()
            assert closest_codes(f"{language}-{usual}", [code]) == ()
            assert closest_codes(code, [language]) == ()
