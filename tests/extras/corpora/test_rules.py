import functools
import pathlib
import re
import sys
import unicodedata
from typing import get_args

import pytest
from page_in_languages import PAGE

from keras_transformer.base.errors import InputError
from keras_transformer.extras.corpora.rules import (
    RULES,
    PairRules,
    Script,
    skeleton,
    without_escapes,
)
from keras_transformer.text.identification import language_identifier

pytest.importorskip("ftfy", reason="comes with the extra [clean]")

LONG = "Two dogs play in the snow."
# Pairs that break one rule, and the options that it needs.
BROKEN = [
    ("length", "  ", "Zwei", {}),
    ("length", "abc", "abcde", {"min_characters": 4}),
    ("length", "abc ", "abcde", {"max_characters": 4}),
    ("ratio", LONG, "Hunde.", {}),
    ("copy", "Two dogs play.", "two  dogs play", {}),
    ("encoding", LONG, "Zwei Hunde spielen drauÃŸen im Schnee.", {}),
    ("encoding", "Two dogs\x07 play.", "Zwei Hunde spielen.", {}),
    ("punctuation", "*** 7/8 *** ---", "Sieben Achtel", {}),
    ("punctuation", "No. 12 34 56 78 90", "Nr. 12 34 56 78 90", {}),
    ("punctuation", "Do dogs play?", "Hunde spielen.", {}),
    ("punctuation", "Τα σκυλιά παίζουν;", "The dogs play.", {}),
    ("punctuation", "هل تلعب الكلاب؟", "The dogs are playing.", {}),
    ("urls", "See www.a.org/x.", "Siehe www.a.org/y.", {}),
    ("urls", "Write to a.b@c.org", "Schreiben Sie uns", {}),
    ("numbers", "In 1,500 days", "In 1.600 Tagen", {}),
    ("numbers", "It was in 1969.", "Es war einmal.", {}),
    ("numbers", "Two dogs play.", "12 der 34 Hunde spielen.", {}),
    ("numbers", "It is 5 p.m. now.", "Es ist jetzt 18 Uhr.", {}),
    ("numbers", "He bought the house in May 2020.", "他在2021年5月买了这座房子。", {}),
    ("numbers", "He lived there for a few months.", "他在那里总共住了123个月。", {}),
    ("numbers", "They have 20 dogs.", "Sie haben 21 Hunde.", {}),
    ("script", "Two dogs play", "Две собаки play", {"target_scripts": ["Cyrillic"]}),
    ("script", "два dogs", "Zwei Hunde", {"source_scripts": ["Latin"]}),
    ("language", LONG, "Dos perros juegan en la nieve.", {"target_language": "de"}),
]
FAIR = [
    ("Yes.", "Ja, das ist es doch.", {}),  # A short one may be much longer.
    ("Berlin", "Berlin", {}),
    ("Straße, naïve façade", "Чай — œuvre", {}),
    ("Two dogs\u2028play", "Zwei\u200dHunde", {}),
    ("See Www.A.org.", "www.a.org, bitte", {}),
    ("See www.A.org/x.", "www.a.org/x, bitte", {}),
    ("It costs 1,000.50, or 20 of them", "20 oder 1 000,5 kostet das", {}),
    ("41 students", "einundvierzig Schüler", {}),
    ("I was 13 in 2003.", "En 2003 yo tenía 13 años.", {}),
    ("It's 8:30.", "Son las 8:30.", {}),
    ("Three dogs and 12 cats", "3 Hunde und 12 Katzen", {}),
    ("In 2019 it is 5 p.m. here.", "2019 ist es hier 17 Uhr.", {}),
    ("From 5 May to 12 December", "Từ ngày 5 tháng 5 đến ngày 12 tháng 12", {}),
    ("Read https://a.org/20/17/1234567890123456", "Lies https://a.org/20/17/1234567890123456", {}),
    ("See https://a.org/a-page", "См. https://a.org/a-page", {"target_scripts": ["Cyrillic"]}),
    ("Write to me@a-long-name.org now.", "Пишите: me@a-long-name.org!", {"target_language": "ru"}),
    ("Two dogs", "二匹の犬", {"target_scripts": ["Han", "Hiragana"], "source_scripts": ["Latin"]}),
    (LONG, "Hunde.", {"max_ratio": 9.0}),
    (LONG, "Zwei Hunde spielen.", {"source_language": "en", "target_language": "de"}),
    (LONG, "Zwei Hunde spielen.", {"source_language": "en_US", "target_language": "deu_Latn"}),
    ("On \U00010d41\U00010d40 days", "An \U00010d41\U00010d40 Tagen", {}),  # of Unicode 16
    ("Tom!", "¡Tom!", {"source_language": "en", "target_language": "es"}),
    ("He asked: “Why?”", "„Warum?“, fragte er: „Warum?“", {}),
]


@pytest.mark.parametrize(("rule", "source", "target", "options"), BROKEN)
def test_a_pair_breaks_the_rule_and_no_other(rule, source, target, options):
    assert PairRules(**options).broken(source, target) == rule
    # Broken whichever side it is, where the sides have no languages.
    if not {"source_language", "target_language", "source_scripts", "target_scripts"} & {*options}:
        assert PairRules(**options).broken(target, source) == rule
    assert PairRules(**options, without=[rule]).broken(source, target) is None
    assert {rule for rule, *_ in BROKEN} == set(RULES)


@pytest.mark.parametrize(("source", "target", "options"), FAIR)
def test_a_fair_pair_breaks_none(source, target, options):
    assert PairRules(**options).broken(source, target) is None


PAIRS_FILE = pathlib.Path(__file__).parents[2] / "data" / "fair_pairs.tsv"
FAIR_PAIRS = [line.split("\t") for line in PAIRS_FILE.read_text("utf-8").splitlines()]


@pytest.mark.parametrize(("language", "source", "target"), FAIR_PAIRS)
def test_pairs_with_dates_times_amounts_and_urls_break_no_rule(language, source, target):
    assert len({tuple(row) for row in FAIR_PAIRS}) == 50
    assert len({row[0] for row in FAIR_PAIRS}) == 10
    assert PairRules().broken(source, target) is None
    assert PairRules().broken(target, source) is None


@pytest.mark.parametrize("language", PAGE)
def test_a_page_in_eighteen_languages_breaks_no_rule(language):
    assert len(PAGE) == 18
    for other in set(PAGE) - {language}:
        # Seven words of Vietnamese may be three short ones of Arabic.
        without = [] if "English" in (language, other) else ["ratio"]
        for source, target in zip(PAGE[language], PAGE[other], strict=True):
            assert PairRules(without=without).broken(source, target) is None, (source, target)


@functools.cache
def named_letters():
    """Returns each letter of Unicode with its name."""
    letters = filter(str.isalpha, map(chr, range(sys.maxunicode)))
    return [(unicodedata.name(letter, ""), letter) for letter in letters]


@pytest.mark.parametrize("script", get_args(Script))
def test_every_script_has_letters_of_its_name(script):
    # Unicode's names of letters begin with their script.
    name = {"Han": "CJK"}.get(script, script.upper())
    text = "".join(letter for full, letter in named_letters() if full.startswith(name))[:40]
    assert len(text) > 20
    rules = PairRules(source_scripts=[script], without=["encoding"])
    assert rules.broken(text, text[::-1]) is None
    foreign = {"Latin": "двасобаки"}.get(script, "twodogs")
    assert rules.broken(foreign, foreign * 2) == "script"


def test_near_duplicates_share_their_letters_without_case_and_accents():
    one = "Ein Mädchen, 3 Jahre alt!"
    assert skeleton(one) == skeleton("ein madchen (4)  Jahre alt") == "einmadchenjahrealt"
    assert skeleton(unicodedata.normalize("NFD", one)) == skeleton(one)
    assert skeleton("Straße") == skeleton("STRASSE") != skeleton("Strase")
    assert skeleton("犬 です。") == skeleton("犬です") != skeleton("犬 てす。")
    assert skeleton("कि") != skeleton("की")


def test_the_page_lists_the_languages_that_are_identified():
    page = (pathlib.Path(__file__).parents[3] / "docs/howto/clean.md").read_text("utf-8")
    (codes,) = re.findall(r"^`--from` and `--to` take [^`]*: `([a-z ]+)`", page, re.MULTILINE)
    # zxx is text of no language.
    assert {*codes.split()} == {*language_identifier().labels} - {"zxx"}


def test_an_unknown_name_or_a_missing_package_is_an_error(monkeypatch):
    for options, message in (
        ({"without": ["number"]}, "`without` must be a list of length, ratio, copy"),
        ({"source_scripts": ["Klingon"]}, "`source_scripts` must be a list of Arabic, Armenian"),
        ({"source_scripts": []}, "`source_scripts` must be a list of .* Received: ..\\."),
        ({"target_language": "xx"}, "`target_language` must be .* Received: 'xx'. docs/howto/"),
        ({"source_language": ""}, "`source_language` must be a language that py3langid"),
        ({"source_language": "english"}, "Received: 'english'. Did you mean `en`. docs/howto/cl"),
    ):
        with pytest.raises(InputError, match=message):
            PairRules(**options).check_packages()
    monkeypatch.setitem(sys.modules, "ftfy", None)
    with pytest.raises(InputError, match=r"ftfy, .*\(package ftfy\): pip install "):
        PairRules().check_packages()
    PairRules(without=["encoding"]).check_packages()


# By the tables of HTML and of Moses' escape-special-chars.perl.
ESCAPES = [("&amp;&#124;&lt;&gt;&apos;&quot;&#91;&#93;", "&|<>'\"[]"), ("&eacute;&#xe9;", "éé")]
ESCAPES += [("a&#9;b&#10;c&NewLine;d&#13;e", "a b c d e"), ("&amp;amp;amp;quot;", "&quot;")]
ESCAPES += [("&nbsp;", "\xa0"), ("&#0;", "\ufffd")]
ESCAPES += [(text, text) for text in ("AT&T", "R&D;", "&", "&copy", "a && b;", "& amp;", "&zz;")]


@pytest.mark.parametrize(("text", "undone"), ESCAPES)
def test_escapes_become_the_characters_that_they_stand_for(text, undone):
    assert without_escapes(text) == undone
