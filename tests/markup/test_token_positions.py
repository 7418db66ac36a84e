"""Tokens are found where SentencePiece has read them, whatever it has made of the text."""

import random

import pytest
from translations import sentencepiece_pieces

from keras_transformer.markup.token_positions import token_spans
from keras_transformer.text import Tokenizer

# What a normalization changes or drops, what has no token, and what looks like a token.
ODD = [
    *"😀 😀😀😀 \u00ad \u200b ﬁ ｏｎｅ ½ é e\u0301 犬 我有一只狗 ß İ \u00a0 \u3000".split(" "),
    *"नमस्ते “ ’ … ㍿ Ω Ǆ ﷺ 한국 <unk> </s> \u200d \u2028 \ufeff <0x41>".split(" "),
    *("  ", "👨\u200d👩\u200d👧"),
]


@pytest.fixture(scope="module", params=["unigram", "bytes", "lower", "identity"])
def any_tokenizer(request, sentences):
    options = {"unigram": {}, "bytes": {"vocabulary_size": 309, "byte_fallback": True}}
    options["lower"] = {"vocabulary_size": 50, "normalization": "nmt_nfkc_cf"}
    options["identity"] = {"normalization": "identity"}
    return Tokenizer.train_from_texts(
        sentences, **{"vocabulary_size": 53, **options[request.param]}
    )


def spans_of_sentencepiece(tokenizer, text):
    """SentencePiece's own places of the tokens, counted in characters without spaces."""
    pieces = sentencepiece_pieces(tokenizer, text)
    data = text.encode()

    def position(byte):
        return len("".join(data[:byte].decode("utf-8", "ignore").split()))

    return [piece.id for piece in pieces], [(position(p.begin), position(p.end)) for p in pieces]


def differing(tokenizer, text, count=None):
    """The number of tokens whose middle is not where SentencePiece says, and of all tokens."""
    ids, expected = spans_of_sentencepiece(tokenizer, text)
    tokens = tokenizer.pieces_of(ids[:count])
    begins, ends = token_spans(tokens, text)
    distances = [
        abs(begin + end - sum(span)) / 2
        for token, begin, end, span in zip(tokens, begins, ends, expected, strict=False)
        if not token.startswith("<0x")  # All bytes of a character are the character's.
    ]
    return sum(distance > 0.5 for distance in distances), len(tokens)


def test_tokens_of_plain_and_cut_texts_are_where_sentencepiece_read_them(any_tokenizer, sentences):
    for number, text in enumerate(sentences):
        assert differing(any_tokenizer, text)[0] == 0
        assert differing(any_tokenizer, f"{text} {text}", 3 + number % 20)[0] == 0


def test_tokens_of_odd_texts_are_where_sentencepiece_read_them(any_tokenizer, sentences):
    rng = random.Random(0)
    wrong = total = 0
    for text in sentences * 3:
        characters = list(f"{text} {rng.choice(sentences)}")
        for _ in range(rng.randrange(1, 6)):
            characters.insert(rng.randrange(len(characters)), rng.choice(ODD))
        differences, count = differing(any_tokenizer, "".join(characters))
        wrong, total = wrong + differences, total + count
    # A ligature of four words, and an invisible character that became a space, are ambiguous.
    assert wrong < 0.004 * total


MATCHED = [("▁ <unk> ▁one ▁two", "😀😀😀😀 one two", [(0, 0), (0, 4), (4, 7), (7, 10)])]
# A word-level vocabulary, and one without a part of its pieces.
MATCHED += [("<unk> <unk> ▁one <unk>", "aa bb one cc", [(0, 2), (2, 4), (4, 7), (7, 9)])]
MATCHED += [("<0xF0> <0x9F> <0x98> <0x80> x", "😀x", [(0, 1)] * 4 + [(1, 2)])]
MATCHED += [("▁fi ne", "ﬁne", [(0, 1), (1, 3)])]
MATCHED += [("▁a ▁b ▁c", "a\u00ad b\u200bc", [(0, 1), (2, 3), (4, 5)])]
MATCHED += [("▁c ▁d", "a b c d", [(2, 3), (3, 4)])]


@pytest.mark.parametrize(("tokens", "text", "expected"), MATCHED)
def test_each_token_is_matched_with_its_characters(tokens, text, expected):
    begins, ends = token_spans(tokens.split(), text)
    assert list(zip(begins.tolist(), ends.tolist(), strict=True)) == expected
