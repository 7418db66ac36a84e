"""Texts in capitals are read in their usual case, and translations become capitals again."""

import pytest

from keras_transformer.text.capitals import in_capitals, in_usual_case, is_in_capitals


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TWO DOGS", True),
        ("ZWEI STRAẞEN!", True),
        ("ДВЕ СОБАКИ", True),
        ("SNOW", False),  # an abbreviation, maybe
        ("I A", False),
        ("Two Dogs", False),
        ("TWO DOGS of it", False),
        ("TWO a DOGS", False),
        ("两只狗 小狗", False),  # without case
        ("SEE {name} AND <ph_1> NOW", True),
        ("SEE https://a.b/c NOW", True),
        ("SEE www.x.de NOW", True),
        ("WRITE TO me@x.org NOW", True),
        ("{name} DOGS", False),
        ("", False),
    ],
)
def test_a_text_in_capitals_has_two_words_of_capitals_and_no_small_letter(text, expected):
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
