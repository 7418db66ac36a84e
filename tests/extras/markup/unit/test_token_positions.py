"""Tokens are found where SentencePiece has read or written them, whatever it made of the text."""

import itertools
import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.extras.markup.token_positions import token_spans
from keras_transformer.text import Tokenizer

KINDS = {
    "unigram": {},
    "bytes": {"vocabulary_size": 309, "byte_fallback": True},
    "lower": {"vocabulary_size": 48, "normalization": "nmt_nfkc_cf"},
    "identity": {"normalization": "identity"},
    "words": {"vocabulary_size": 40, "whole_words": True, "placeholders": 0},
}
# What a normalization changes or drops, what has no token, and what looks like a token.
ODD = [
    *"😀 😀😀😀 \u00ad \u200b ﬁ ｏｎｅ ½ é e\u0301 犬 我有一只狗 ß İ \u00a0 \u3000".split(" "),
    *"नमस्ते “ ’ … ㍿ Ω Ǆ ﷺ 한국 <unk> </s> <ph_1> \u200d \u2028 \ufeff <0x41>".split(" "),
    *("  ", " ", "👨\u200d👩\u200d👧", "dog", " cat", "A ", "ﬁ.", "a\u200bb"),
]


@pytest.fixture(scope="module")
def tokenizers(sentences):
    return {
        name: Tokenizer.train_from_texts(
            sentences, **{"vocabulary_size": 53, "placeholders": 2, **options}
        )
        for name, options in KINDS.items()
    }


def of_characters(spans, text):
    """Pairs of the spans' characters, without spaces."""
    begins, ends = (side.tolist() for side in spans)
    characters = "".join(text.split())
    return [characters[begin:end] for begin, end in zip(begins, ends, strict=True)]


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=30)
@given(parts=st.lists(st.one_of(st.sampled_from(ODD), st.text(max_size=3)), max_size=8))
def test_the_spans_of_any_text_are_in_order_and_its_tokens(name, parts, tokenizers):
    tokenizer, text = tokenizers[name], "".join(parts).replace("▁", "")
    tokens, spans = tokenizer.pieces(text), tokenizer.spans(text)
    assert len(spans) == len(tokens) == len(tokenizer.tokenize(text))
    for (begin, end), (next_begin, next_end) in itertools.pairwise([(0, 0), *spans]):
        is_same = (begin, end) == (next_begin, next_end)  # bytes of a character
        assert is_same or begin <= end <= next_begin <= next_end, spans
    covered = "".join(text[begin:end] for begin, end in dict.fromkeys(spans))
    assert text.strip() in covered or name != "identity"
    if all(map(is_one_character, text.replace(" ", ""))):  # No token is a part of a character.
        for token, (begin, end) in zip(tokens, spans, strict=True):
            part = normalized(text[begin:end], name)
            is_byte = token.startswith("<0x")
            assert is_byte or token.replace("▁", " ").split() == part.split(), (token, part)


def is_one_character(character):
    """Whether normalization leaves one character, whatever is beside it."""
    is_visible = unicodedata.category(character)[0] in "LNPS"
    return is_visible and len(unicodedata.normalize("NFKC", character).casefold()) == 1


def normalized(text, name):
    text = text if name == "identity" else unicodedata.normalize("NFKC", text)
    return text.casefold() if name == "lower" else text


# Tokens, a text, and the characters of each token.
READ = {
    "▁A ▁dog .": ("unigram", "A dog.", ["A", "dog", "."]),
    "emoji": ("unigram", "😀 A 犬.", ["", "😀", "A", "", "犬", "."]),
    "several signs are one unknown token": ("unigram", "😀犬 A", ["", "😀犬", "A"]),
    "bytes": ("bytes", "A 😀.", ["A", "", *["😀"] * 4, "."]),
    "bytes of signs that touch": ("bytes", "é犬", ["", *["é"] * 2, *["犬"] * 3]),
    "a symbol": ("unigram", "A <ph_2>.", ["A", "", "<ph_2>", "."]),
    "composed": ("bytes", "e\u0301", ["", *["e\u0301"] * 2]),
    "wide": ("unigram", "Ａ  ｄｏｇ.", ["Ａ", "ｄｏｇ", "."]),
    "case": ("lower", "A DOG.", ["A", "DOG", "."]),
    "words": ("words", "A zebra runs", ["A", "zebra", "runs"]),
    "an unknown word": ("words", "  zzz 犬  dog ", ["zzz", "犬", "dog"]),
}


@pytest.mark.parametrize("case", READ)
def test_each_token_that_was_read_has_its_characters(case, tokenizers):
    name, text, expected = READ[case]
    tokens = tokenizers[name].pieces_of(tokenizers[name].tokenize(text))
    for longer in ("", " A dog."):  # An engine may have read the beginning of a text.
        spans = token_spans(tokens, text + longer, tokenizers[name])
        pairs = zip(of_characters(spans, text + longer), expected, strict=False)
        # Letters of one word may be several tokens.
        assert merged(of_characters(spans, text + longer), expected) == expected, list(pairs)


def merged(parts, expected):
    """Joins parts of the words that are expected."""
    words, rest = [], list(parts)
    for word in expected:
        part = rest.pop(0)
        while part != word and rest and word.startswith(part + rest[0]):
            part += rest.pop(0)
        words.append(part)
    return words + rest


WRITTEN = [
    ("▁ a ▁ d o", "a do", ["", "a", "", "d", "o"]),
    ("▁ <unk> ▁ a", "⁇ a", ["", "⁇", "", "a"]),
    ("▁ a ▁ <0xF0> <0x9F> <0x98> <0x80> n", "a 😀n", ["", "a", "", *["😀"] * 4, "n"]),
    ("a <0xC3> <0xA9> <0xF0>", "aé\ufffd", ["a", "é", "é", "\ufffd"]),
    ("a <ph_2> ▁ d", "a<ph_2> d", ["a", "<ph_2>", "", "d"]),
    # Steps change texts: capitals, also longer ones, other spaces, and no invented placeholder.
    ("a ▁ <unk> ▁ d", "A ⁇ D", ["A", "", "⁇", "", "D"]),
    ("a ▁ <unk> ▁ d", "A  ⁇\u00a0D\n", ["A", "", "⁇", "", "D"]),
    ("<0xC3> <0x9F> ▁ <0xC3> <0x9F>", "SS SS", ["SS", "SS", "", "SS", "SS"]),
    ("|a ▁ <unk>", "a ⁇", ["", "a", "", "⁇"]),
]


@pytest.mark.parametrize(("tokens", "text", "expected"), WRITTEN)
def test_each_token_that_was_written_has_its_characters(tokens, text, expected, tokenizers):
    tokens = re.split("[ |]", tokens)
    spans = token_spans(tokens, text, tokenizers["bytes"], is_written=True)
    assert of_characters(spans, text) == expected


def test_tokens_that_a_text_has_no_more_are_at_its_end(tokenizers):
    spans = token_spans(["<unk>", "▁", *["<unk>"] * 3], "犬犬 犬", tokenizers["unigram"])
    assert [side.tolist()[-1] for side in spans] == [3, 3]


def test_tokens_without_a_tokenizer_follow_one_another():
    assert of_characters(token_spans("▁a bc ▁d".split(), "a bc d"), "a bc d") == ["a", "bc", "d"]
