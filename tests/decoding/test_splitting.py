"""`split_text`: no text is lost, every piece fits, and there are no more than need be."""

import doctest
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.decoding import splitting
from keras_transformer.decoding.splitting import split_text
from keras_transformer.errors import InputError

# What ends sentences, what closes them, every kind of space, and words around them.
MARKS = list("aé漢3.!?…。！？\"'”»“)」（ \t\n\r\u00a0\u2028\u3000\x1c")
texts = st.text(alphabet=MARKS, max_size=60)


def at_most(characters):
    return lambda piece: len(piece) <= characters


def visible(text):
    return "".join(text.split())


def fewest_groups(lengths, limit):
    """Groups of neighbours, joined by one space, of at most `limit`: tries every last group."""
    fewest = [0]
    for end in range(1, len(lengths) + 1):
        fewest.append(
            min(
                fewest[start] + 1
                for start in range(end)
                if sum(lengths[start:end]) + end - start - 1 <= limit
            )
        )
    return fewest[-1]


@settings(max_examples=500, deadline=None)
@given(text=texts, limit=st.integers(1, 61))
def test_no_text_is_lost_and_every_piece_fits(text, limit):
    try:
        pieces = split_text(text, at_most(limit))
    except InputError:
        # Only a sentence can be too long, and no sentence is longer than the text.
        assert len(text.strip()) > limit
        return
    assert visible("".join(pieces)) == visible(text)
    assert all(piece and piece == piece.strip() and len(piece) <= limit for piece in pieces)


@settings(max_examples=200, deadline=None)
@given(words=st.lists(st.integers(1, 12), min_size=1, max_size=17), spare=st.integers(0, 30))
def test_there_are_as_few_pieces_as_possible(words, spare):
    parts = ["a" * length + "." for length in words]
    lengths = [len(part) for part in parts]
    limit = max(lengths) + spare
    pieces = split_text(" ".join(parts), at_most(limit))
    assert " ".join(pieces) == " ".join(parts)
    assert len(pieces) == fewest_groups(lengths, limit)


@pytest.mark.parametrize(
    "expected",
    [
        ["One.", "Two!", "Three?", "Four…", "five"],
        ["Really?!", "Wait...", "No."],
        ['He said: "Stop."', "(Nobody did.)", "“It ended.”", "‘So?’", "[It did.]"],
        ["„Nein.“", "»Doch!«", "So."],
        ["«\u00a0Oui.\u00a0»", "Non."],
        ["It is 3.14 or v1.2.x, and (a.b) too!", "e.g.this one.", "Next."],
    ],
)
@pytest.mark.parametrize("space", [" ", "\n", "  \t", "\r\n\r\n", "\u2028"])
def test_sentences_end_at_a_mark_before_a_space(expected, space):
    # Nothing longer is accepted, and nothing shorter either.
    assert split_text(space.join(expected), expected.__contains__) == expected


def test_chinese_and_japanese_sentences_end_without_a_space():
    expected = ["他说：“你好。”", "然后呢？", "真的！？」", "「はい。」", "そう", "終わり。"]
    text = "".join(expected[:4]) + "\n" + "\n".join(expected[4:])
    assert split_text(text, expected.__contains__) == expected


def test_a_text_that_fits_is_one_piece_with_its_line_breaks():
    assert split_text(" One.\nTwo. \n", at_most(9)) == ["One.\nTwo."]


@pytest.mark.parametrize("text", ["", " ", "\n\u2028\t"])
def test_a_blank_text_has_no_pieces(text):
    assert split_text(text, at_most(0)) == []


def test_line_breaks_end_what_has_no_mark():
    text = "A heading\nAn item\r\nAnother\u2028Last"
    expected = ["A heading", "An item", "Another", "Last"]
    assert split_text(text, expected.__contains__) == expected


@pytest.mark.parametrize("text", ["Short. {} End.", "{}", "Short. {}", "{}\nEnd."])
def test_a_sentence_that_does_not_fit_is_told_in_one_line(text):
    long = "This one, which has 3.14 commas, goes on and on."
    with pytest.raises(InputError) as error:
        split_text(text.format(long), at_most(47))
    message = str(error.value)
    assert "\n" not in message and "must fit" in message
    assert "48 characters" in message and f"{long[:40]!r}." in message


def test_a_sentence_of_exactly_the_limit_fits():
    assert split_text("aaaa. bbbb. c.", at_most(5)) == ["aaaa.", "bbbb.", "c."]


@pytest.mark.parametrize("text", ["." * 100_000 + "a", ".)" * 50_000, "。" * 100_000 + "a"])
def test_long_rows_of_marks_take_time_in_proportion(text):
    start = time.perf_counter()
    assert visible("".join(split_text(text, at_most(100_001)))) == text
    with pytest.raises(InputError):
        split_text(text, at_most(0))
    assert time.perf_counter() - start < 2


def test_the_example_holds():
    assert doctest.testmod(splitting).failed == 0
