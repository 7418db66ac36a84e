"""Vocabularies know what their texts have: every word of every line, and every character."""

import itertools
import os
import random
import time
import unicodedata

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from small_corpus import PAIRS

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import UNK_ID
from keras_transformer.text import Tokenizer


@pytest.mark.parametrize("separator", [" ", " \u2585 "])
@pytest.mark.parametrize("word", ["ab", "語文"])
def test_words_of_lines_with_the_reserved_character_are_learned(word, separator, sentences):
    """Each is learned as one token, which its characters alone are not."""
    line = separator.join([word] * 30)
    tokenizer = Tokenizer.train_from_texts([line, *sentences[:50]], vocabulary_size=45)
    assert any(word in piece for piece in tokenizer.pieces(word))


def test_words_of_lines_that_are_longer_than_the_trainers_limit_of_bytes_are_learned():
    words = random.Random(0).choices(["語文", "文字", "字典", "典籍", "籍貫"], k=12_000)
    assert len(line := " ".join(words)) < 65_536 < len(line.encode())
    pieces = Tokenizer.train_from_texts([line], vocabulary_size=16).pieces(line)
    assert pieces.count("▁語文") == words.count("語文")


@pytest.mark.parametrize(
    ("rare", "line"), [("語", 0), ("</s>", 9_999), ("<ＰＡＤ>", 9_999), ("語", 10_000)]
)
def test_a_character_of_one_line_is_known_also_if_only_a_name_of_a_special_token_has_it(rare, line):
    texts = ["".join(letters) for letters in itertools.product("abcdefghij", repeat=4)]
    texts.insert(line, rare)
    tokenizer = Tokenizer.train_from_texts(texts, vocabulary_size=40)
    assert all(UNK_ID not in tokenizer.tokenize(character) for character in rare)


# Names of special tokens, also in wide characters, which normalization makes plain, and signs that
# cannot be tokens.
PARTS = ["<unk>", "<s>", "</s>", "<pad>", "＜ｐａｄ＞", "＜/ｓ＞", "▅", "\0", "語", "é", "zz", " "]


@settings(max_examples=50)
@given(texts=st.lists(st.lists(st.sampled_from(PARTS), min_size=1).map("".join), min_size=1))
@example(texts=["</s>"])
@example(texts=["<unk> </s>", "a"])
@example(texts=["zzz zz"] * 9 + ["x ▅ y▅", "w\0v"])
def test_the_smallest_vocabulary_has_a_token_for_each_character_that_can_be_one(texts):
    plain = unicodedata.normalize("NFKC", "".join(texts))
    assume(characters := {*plain} - {*" ▅\0"})
    tokenizer = Tokenizer.train_from_texts(texts, len(characters) + 5)
    lacking = {sign: sum(sign in text for text in texts) for sign in "▅\0"}
    lacking = {sign: count for sign, count in lacking.items() if count}
    assert tokenizer.unknown_characters(texts) == lacking
    for character in characters:
        assert UNK_ID not in tokenizer.tokenize(character), character
    with pytest.raises(InputError, match=f"at least {len(characters) + 5},"):
        Tokenizer.train_from_texts(texts, len(characters) + 4)
    in_bytes = Tokenizer.train_from_texts(texts, len(characters) + 261, byte_fallback=True)
    assert UNK_ID not in itertools.chain(*in_bytes.tokenize(texts))


def test_a_sample_is_of_texts_that_are_read_once_and_always_the_same():
    words = [f"{a}{b}{c}" for a in "abcdef" for b in "ghijkl" for c in "mnopqr"]
    options = {"vocabulary_size": 60, "sample_sentences": 150}
    one, again = (Tokenizer.train_from_texts(iter(words), **options) for _ in range(2))
    assert one == again != Tokenizer.train_from_texts(words, 60)
    # A sample of all texts, of which blank texts are none.
    some = [text for word in words[:150] for text in (word, "", " ")]
    assert Tokenizer.train_from_texts(some, **options) == Tokenizer.train_from_texts(some, 60)


def test_an_error_of_the_texts_is_the_error_of_the_sampled_vocabulary(tmp_path):
    (tmp_path / "text").write_bytes(b"a\n" * 200 + b"\xff\n")
    with pytest.raises(InputError, match=r"^\S*text, line 201: expected UTF-8"):
        Tokenizer.train(tmp_path / "text", 9, sample_sentences=101)


def test_a_corpus_that_is_there_many_times_takes_hardly_longer():
    """The trainer takes time in the square of a repeat, which lines in one order would be."""
    sources, targets = map(list, zip(*PAIRS, strict=True))
    start = time.perf_counter()
    Tokenizer.train_from_texts(sources * 60 + targets * 60, vocabulary_size=150)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("coverage", [0.98, 0.999, 1.0])
def test_only_full_coverage_makes_tokens_of_all_characters(coverage, sentences):
    texts = [*sentences[:50], "語"]
    tokenizer = Tokenizer.train_from_texts(texts, 45, character_coverage=coverage)
    assert (UNK_ID in tokenizer.tokenize("語")) == (coverage < 1)


def test_a_vocabulary_does_not_depend_on_the_number_of_cores(monkeypatch, sentences):
    models = set()
    for count in (1, 3, 64, None):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        models.add(Tokenizer.train_from_texts(sentences[:50], 45).model_bytes)
    assert len(models) == 1
