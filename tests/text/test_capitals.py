"""Texts in capitals are read in their usual case, and translations become capitals again."""

import pytest

from keras_transformer.text.capitals import in_capitals, in_usual_case, is_in_capitals

IN_CAPITALS = ["TWO RABBITS", "ZWEI STRAẞEN!", "ДВЕ СОБАКИ", "ΔΥΟ ΣΚΥΛΟΙ", "INSIDE www.x.de NOW"]
IN_CAPITALS += [
    "SEE {name} AND <ph_1> INSIDE",
    "INSIDE https://a.b/c NOW",
    "LETTER TO me@x.org NOW",
]
# All there is may be a name; no word of six letters; small letters; items.
OTHERS = ["RABBITS", "TWO DOGS PLAY", "I A", "Two Rabbits", "TWO RABBITS of it", "TWO a RABBITS"]
OTHERS += ["{name} RABBITS", "{longname} A DOG", ""]
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
ROWS = [(text, True) for text in IN_CAPITALS]
ROWS += [(text, False) for text in OTHERS + ACRONYMS + CASELESS]


@pytest.mark.parametrize(("text", "expected"), ROWS)
def test_a_text_in_capitals_has_a_long_word_among_others_and_no_small_letter(text, expected):
    assert is_in_capitals(text) is expected


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
