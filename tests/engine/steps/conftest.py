"""Sentences and tokenizers, as for the tests of `text`."""

from text_fixtures import (  # noqa: F401
    byte_tokenizer,
    nasty_texts,
    sentences,
    symbol_tokenizer,
    tokenizer,
    word_tokenizer,
)
