"""Plain text: lines are texts, and all else stays."""

import pytest
from fakes import FakeEngine

from keras_transformer import Translation, Translator
from keras_transformer.extras.documents import translate_document
from keras_transformer.extras.documents.document import Settings
from keras_transformer.extras.documents.plain_text import PlainText


def translated(text, **options):
    translator = Translator(FakeEngine())
    return translate_document(translator, text.encode(), ".txt", **options).decode()


def test_lines_are_translated_and_all_spaces_and_line_ends_stay():
    source = "  Two dogs.\r\n\r\n\tThey play. \u00a0\n\n\n12:30\nEnd\r"
    assert translated(source) == source.upper()


WRAPPED = """\
Dear Ms Gold,

  the quick brown dog
jumps over the lazy
cat.

- one item that has
  two lines
- another
=====
"""


@pytest.mark.parametrize(
    ("text", "is_wrapped", "texts"),
    [
        ("one a\n\n two\r\nthree\rfour", False, ["one a", "two", "three", "four"]),
        (
            WRAPPED,
            True,
            [
                "Dear Ms Gold,",
                "the quick brown dog jumps over the lazy cat.",
                "- one item that has two lines",
                *["- another", "====="],
            ],
        ),
        # A line without letters is by itself.
        ("one\n-----\ntwo\nthree\n", True, ["one", "-----", "two three"]),
    ],
)
def test_a_line_or_a_wrapped_paragraph_is_one_text(text, is_wrapped, texts):
    assert PlainText(text, Settings(is_wrapped=is_wrapped)).texts == texts


def test_a_translation_is_wrapped_at_the_same_width_and_a_copy_stays_as_it_is():
    document = PlainText(WRAPPED, Settings(is_wrapped=True))
    texts = [Translation(text, 0.0) for text in document.texts]
    assert document.written(texts) == WRAPPED
    texts[1] = Translation("a b c d e f g h i j k l m n o p q", 0.0)
    texts[2] = Translation("- ein Eintrag mit mehr als zwei Zeilen", 0.0)
    assert document.written(texts) == WRAPPED.replace(
        "  the quick brown dog\njumps over the lazy\ncat.",
        "  a b c d e f g h i j\nk l m n o p q",  # 21 columns
    ).replace("- one item that has\n  two lines", "- ein Eintrag mit\n  mehr als zwei\n  Zeilen")


def test_lines_of_a_wrapped_text_end_as_the_source_s_do():
    assert translated("one\r\ntwo\r\n", wrapped=True) == "ONE\r\nTWO\r\n"


@pytest.mark.parametrize("text", ["", "\n", " \r\n\t"])
def test_a_document_without_words_stays_as_it_is(text):
    assert translated(text) == translated(text, wrapped=True) == text
