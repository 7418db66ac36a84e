"""`tokenizer.json` for Hugging Face's `tokenizers`, an independent implementation of unigram."""

import json
import unicodedata

import pytest
from small_corpus import PAIRS

from keras_transformer import Tokenizer
from keras_transformer.errors import VerificationError
from keras_transformer.export.tokenizer_json import tokenizer_json, verify_tokenizer_json

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


def test_tags_and_placeholders_are_tokens_in_any_text():
    tokenizer = Tokenizer.train_from_texts(TEXTS, 150, tags=("2de",), placeholders=9)
    texts = ["<2de> A dog.", "a<ph_1>b (<ph_9>) <ph_10>", "<2de><ph_2>", "<PH_1>"]
    assert 4 in tokenizer.tokenize(texts[0]) and 13 in tokenizer.tokenize(texts[1])
    same(tokenizer, [*texts, *HOSTILE])


def test_each_unknown_word_is_one_token():
    tokenizer = Tokenizer.train_from_texts(TEXTS, 40, whole_words=True)
    assert tokenizer.tokenize("A gnus gnu Aman A")[1:4] == [3, 3, 3]
    same(tokenizer, HOSTILE + TEXTS)


def test_unknown_characters_are_spelled_out_as_bytes():
    tokenizer = Tokenizer.train_from_texts(TEXTS, 400, byte_fallback=True)
    same(tokenizer, HOSTILE + TEXTS)
    assert tokenizer.detokenize(tokenizer.tokenize("😀")) == "😀"


@pytest.fixture
def verified(tmp_path):
    """`verified(tokenizer, change)`: what the verification says of a file, changed before."""
    pytest.importorskip("tokenizers", reason="comes with the extra [test]")

    def verified(tokenizer, change=lambda content: None, texts=TEXTS):
        content = tokenizer_json(tokenizer)
        change(content)
        (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        return verify_tokenizer_json(tmp_path / "tokenizer.json", tokenizer, texts)

    return verified


def test_the_texts_that_the_other_library_reads_otherwise_are_named(verified):
    tokenizer = Tokenizer.train_from_texts([*TEXTS, "ガ fi カ"], 150)
    texts = [chr(each) for each in range(1, 0x3000) if not unicodedata.combining(chr(each))]
    report = verified(tokenizer, texts=[*texts, *TEXTS, "a \ufb01\u0301", "\uff76\uff9e b"])
    assert {"a \ufb01\u0301", "\uff76\uff9e b"} <= set(report["outside"])
    assert all(any(ord(c) > 127 for c in text) for text in report["outside"])
    assert report["texts"] > len(texts) and len(report["outside"]) < 7


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["normalizer"]["normalizers"].pop(0),  # the rules of Unicode
        lambda content: content["normalizer"]["normalizers"].pop(),  # the space at the beginning
        lambda content: content["model"]["vocab"].insert(60, content["model"]["vocab"].pop()),
        lambda content: content["model"].update(unk_id=2),
        lambda content: content["decoder"]["decoders"].pop(0),
    ],
)
def test_a_file_that_is_not_the_tokenizer_is_refused(verified, change):
    tokenizer = Tokenizer.train_from_texts(TEXTS, 150)
    with pytest.raises(VerificationError, match="must give the ids and texts of SentencePiece"):
        verified(tokenizer, change)
