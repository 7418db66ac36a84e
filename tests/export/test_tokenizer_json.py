"""`tokenizer.json` for Hugging Face's `tokenizers`, an independent implementation of unigram."""

import json
import pathlib

import numpy as np
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as schema
from small_corpus import PAIRS

from keras_transformer import Tokenizer
from keras_transformer.errors import InputError
from keras_transformer.export.tokenizer_json import (
    needed_rules,
    tokenizer_json,
    without_needless_rules,
)

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


@pytest.mark.tensorflow
def test_an_imported_vocabulary_keeps_its_segmentation():
    importing = pytest.importorskip("keras_transformer.importing", reason="needs Keras")
    folder = pathlib.Path(__file__).parents[1] / "data" / "marian" / "opus"
    _, source, _, _ = importing.import_model(folder)
    tokenizers = pytest.importorskip("tokenizers", reason="comes with the extra [test]")
    theirs = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(source)))
    texts = ["the old child sees a small house", "la kato movas", "kaj 1 domon", *HOSTILE]
    found = [row.ids for row in theirs.encode_batch(texts)]
    size = source.vocabulary_size
    assert any(id >= size for row in found for id in row)
    known = [[id if id < size else 3 for id in row] for row in found]
    assert known == source.tokenize(texts)


@pytest.fixture(scope="module")
def rules(tokenizer):
    return sentencepiece.SentencePieceNormalizer(model_proto=tokenizer.model_bytes).Decompile()


def same_ids(model_bytes, smaller, given):
    """Whether tensorflow-text's operation gives the same ids of the texts with both models."""
    import tensorflow_text

    both = (tensorflow_text.FastSentencepieceTokenizer(each) for each in (model_bytes, smaller))
    one, other = (each.tokenize(given) for each in both)
    return np.array_equal(one.values, other.values) and np.array_equal(
        one.row_splits, other.row_splits
    )


@pytest.mark.tensorflow
def test_all_texts_keep_their_ids_with_a_hundredth_of_the_rules(tokenizer, rules, texts):
    smaller = without_needless_rules(tokenizer.model_bytes)
    assert len(rules) > 200_000
    assert len(tokenizer.model_bytes) - len(smaller) > 200_000
    sources = [source for source, _ in rules]
    assert same_ids(tokenizer.model_bytes, smaller, [f"laufe{each}n" for each in sources])
    characters = [chr(each) for each in range(1, 0x30000) if not 0xD800 <= each < 0xE000]
    assert same_ids(tokenizer.model_bytes, smaller, characters)
    # Rules and words in any order, of which some rules for several characters overlap.
    chance = np.random.default_rng(11)
    parts = [*sources, *characters[:0x3100], *(" ".join(texts).split() * 50)]
    mixed = chance.choice(np.array(parts, dtype=object), (20_000, 7)).sum(axis=1)
    assert same_ids(tokenizer.model_bytes, smaller, mixed.tolist())
    # Such a comparison does find a rule that is missing.
    model = schema.ModelProto.FromString(tokenizer.model_bytes)
    fewer = sentencepiece.SentencePieceNormalizer(norm_map=[("Ａ", "A")])
    model.normalizer_spec.precompiled_charsmap = schema.NormalizerSpec.FromString(
        fewer.serialized_normalizer_spec()
    ).precompiled_charsmap
    assert not same_ids(tokenizer.model_bytes, model.SerializeToString(), mixed.tolist())


def test_it_is_the_same_tokenizer_to_sentencepiece(tokenizer):
    smaller = Tokenizer(without_needless_rules(tokenizer.model_bytes))
    text = "Ｚｗｅｉ ﬁne cafe\u0301 \u00ad ½"
    assert smaller.tokenize(text) == tokenizer.tokenize(text)
    ids = range(tokenizer.vocabulary_size)
    assert smaller.pieces_of(ids) == tokenizer.pieces_of(ids)


def test_a_tokenizer_without_rules_stays_as_it_is(texts):
    model_bytes = Tokenizer.train_from_texts(
        texts, vocabulary_size=53, normalization="identity"
    ).model_bytes
    assert without_needless_rules(model_bytes) == model_bytes


def test_an_old_sentencepiece_is_named(tokenizer, monkeypatch):
    monkeypatch.delattr(sentencepiece.SentencePieceNormalizer, "Decompile")
    with pytest.raises(InputError, match=r"newer SentencePiece.*keras-transformer-nmt\[litert\]"):
        without_needless_rules(tokenizer.model_bytes)


@pytest.mark.parametrize(
    ("rule", "needed"),
    [
        (("Ａ", "a"), True),
        (("b", "ｂ"), True),
        (("ab\u0308", "x"), True),
        (("\u00ad", ""), True),  # Gone, instead of a piece for the unknown.
        (("ｶ", "カ"), False),
        (("ｶﾞ", "ガ"), False),
    ],
)
def test_a_rule_is_needed_if_a_known_character_or_nothing_is_on_a_side(rule, needed):
    assert needed_rules([rule], {"a", "b"}) == [rule] * needed


def test_a_rule_that_hides_a_needed_one_is_needed():
    # Without "xy", the "y" would become "a"; without "zxy" the same, from its second character on.
    rules = [("y", "a"), ("xy", "ξ"), ("zxw", "ζ"), ("qv", "ω"), ("v", "ν")]
    assert needed_rules(rules, {"a"}) == [("y", "a"), ("xy", "ξ"), ("zxw", "ζ")]
