"""Vocabularies know what their texts have: every word of every line, and every character."""

import itertools
import os
import warnings

import pytest

from keras_transformer.errors import InputError
from keras_transformer.ids import UNK_ID
from keras_transformer.text import Tokenizer


@pytest.mark.parametrize("separator", [" ", " \u2585 "])
@pytest.mark.parametrize("word", ["ab", "語文"])
def test_words_of_lines_with_the_reserved_character_are_learned(word, separator, sentences):
    """Each is learned as one token, which its characters alone are not."""
    line = separator.join([word] * 30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The reserved character cannot be a token.
        tokenizer = Tokenizer.train_from_texts([line, *sentences[:50]], vocabulary_size=45)
    assert any(word in piece for piece in tokenizer.pieces(word))


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


def test_each_unknown_word_is_one_token(word_tokenizer):
    for words in itertools.product(("man", "qq", "zz"), repeat=3):
        ids = word_tokenizer.tokenize(" ".join(words))
        assert [id == UNK_ID for id in ids] == [word != "man" for word in words]


@pytest.mark.parametrize(
    "option", [{"byte_fallback": True}, {"split_digits": True}, {"placeholders": 2}]
)
def test_whole_words_have_no_parts(option):
    ((name, value),) = option.items()
    with pytest.raises(InputError, match=f"has no parts of words. Received: {name}={value}."):
        Tokenizer.train_from_texts(["a b"], 9, whole_words=True, **option)
