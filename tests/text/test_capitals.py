"""Texts in capitals are read in their usual case, and translations become capitals again."""

import pytest

from keras_transformer.text.capitals import in_capitals, in_usual_case, is_in_capitals


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TWO RABBITS", True),
        ("ZWEI STRAẞEN!", True),
        ("ДВЕ СОБАКИ", True),
        ("ΔΥΟ ΣΚΥΛΟΙ", True),
        ("RABBITS", False),  # all there is: a name, maybe
        ("TWO DOGS PLAY", False),  # no word of six letters
        ("I A", False),
        ("Two Rabbits", False),
        ("TWO RABBITS of it", False),
        ("TWO a RABBITS", False),
        ("SEE {name} AND <ph_1> INSIDE", True),
        ("INSIDE https://a.b/c NOW", True),
        ("INSIDE www.x.de NOW", True),
        ("LETTER TO me@x.org NOW", True),
        ("{name} RABBITS", False),
        ("{longname} A DOG", False),
        ("", False),
    ],
)
def test_a_text_in_capitals_has_a_long_word_among_others_and_no_small_letter(text, expected):
    assert is_in_capitals(text) is expected


ACRONYMS = [
    "REST API",
    "US GDP",
    "WHO: COVID-19",
    "HTML, CSS & JS",
    "USB-C PD 3.1",
    "EU/NATO",
    "UNO",
]
# Chinese, Japanese, Korean, Arabic, Hebrew, Hindi, Thai: without case. A Georgian text has small
# letters.
CASELESS = [
    "我在 IBM 工作。",
    "{} の WINDOWS と NVIDIA です。",
    "IBM UNICODE 에서",
    "أعمل في IBM UNICODE",
]
CASELESS += ["אני ב IBM UNICODE", "मैं IBM UNICODE में", "ผมอยู่ IBM UNICODE", "ის IBM UNICODE"]


@pytest.mark.parametrize("text", [*ACRONYMS, *CASELESS])
def test_acronyms_are_no_text_in_capitals(text):
    assert not is_in_capitals(text)


@pytest.mark.parametrize(
    ("text", "language", "usual"),
    [
        ("TWO DOGS AND I.", "en", "Two dogs and I."),
        ("TWO DOGS AND I.", None, "Two dogs and i."),
        ("¿DOS PERROS?", "es", "¿Dos perros?"),
        ("<ph_1> SEES {Name} AT WWW.X.DE", "en", "<ph_1> Sees {Name} at WWW.X.DE"),
        ("DIYARBAKIR İYİ", "tr", "Dıyarbakır iyi"),
        ("ΔΥΟ ΣΚΥΛΟΣ", "el", "Δυο σκυλος"),
        ("{x} 12", "de", "{x} 12"),
        ("{A} {B} 3 É {C}", "fr", "{A} {B} 3 É {C}"),
        ("I SEE {i} AT HTTP://A.ORG/i", "en", "I see {i} at HTTP://A.ORG/i"),
    ],
)
def test_the_usual_case_has_one_capital_and_keeps_items(text, language, usual):
    assert in_usual_case(text, language) == usual
    assert len(usual) == len(text)


def test_terms_stay_as_they_are():
    text = "USE IT: THE API"
    assert in_usual_case(text, "en", [(0, 3), (12, 15)]) == "USE it: the API"


@pytest.mark.parametrize(
    ("text", "language", "capitals"),
    [
        ("Zwei Straßen, <ph_1> {name}.", "de", "ZWEI STRAẞEN, <ph_1> {name}."),
        ("iyi ışık", "tr", "İYİ IŞIK"),
        ("iyi", "en", "IYI"),
        ("ﬁsh ŉ", None, "ﬁSH ŉ"),  # as long as before
    ],
)
def test_capitals_are_as_long_as_the_text_and_keep_items(text, language, capitals):
    assert in_capitals(text, language) == capitals
