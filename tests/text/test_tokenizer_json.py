"""`tokenizer.json` for Hugging Face's `tokenizers`, an independent implementation of unigram."""

import json

import pytest
from small_corpus import PAIRS

from keras_transformer import Tokenizer
from keras_transformer.text.tokenizer_json import tokenizer_json

HOSTILE = [
    *["", "  ", "  a   b ", "</s>", "<s> a </s> <unk> <pad>", "Grüße, señor!", "你好，世界 😀"],
    *["e\u0301\u200b\u00a0ﬁ", "a\x00b\tc\nd", "\u2581a", "a\u2581b", "﷽ ①", "क्‍ष"],
    *["שלום عليكم", "👨‍👩‍👧‍👦", "x²…", "a~b～c", "ＡＢＣ", "İ ß ẞ", "12 345"],
    *["Two dogsled", "gnu gnus Twos dog.", "\u2581 \u2581\u2581a"],
]
TEXTS = [text for pair in PAIRS for text in pair]


def same(tokenizer, texts):
    """Whether the ids and what is made of them are the same."""
    tokenizers = pytest.importorskip("tokenizers", reason="comes with the extra [test]")
    theirs = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(tokenizer)))
    ids = tokenizer.tokenize(texts)
    assert [each.ids for each in theirs.encode_batch(texts)] == ids
    # Of several spaces at the beginning SentencePiece takes all, they take one.
    decoded = [text.lstrip() for text in theirs.decode_batch(ids)]
    assert decoded == [text.lstrip() for text in tokenizer.detokenize(ids)]


@pytest.mark.parametrize("normalization", ["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "identity"])
def test_the_ids_and_texts_are_those_of_sentencepiece(normalization):
    options = {"normalization": normalization, "split_digits": True}
    same(Tokenizer.train_from_texts(TEXTS, 150, **options), HOSTILE + TEXTS)


def test_each_unknown_word_is_one_token():
    tokenizer = Tokenizer.train_from_texts(TEXTS, 40, whole_words=True)
    assert tokenizer.tokenize("A gnus gnu Aman A")[1:4] == [3, 3, 3]
    same(tokenizer, HOSTILE + TEXTS)


def test_unknown_characters_are_spelled_out_as_bytes():
    tokenizer = Tokenizer.train_from_texts(TEXTS, 400, byte_fallback=True)
    same(tokenizer, HOSTILE + TEXTS)
    assert tokenizer.detokenize(tokenizer.tokenize("😀")) == "😀"


def test_dates_have_the_same_ids():
    from keras_transformer.data.dates import date_corpus

    corpus = date_corpus(num_held_out=1000)
    tokenizer = Tokenizer.train_from_texts(corpus.train_source[::10], 400, split_digits=True)
    same(tokenizer, [*corpus.train_source[::9], *corpus.train_target[::9], *corpus.held_out_source])
