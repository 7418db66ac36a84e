"""Sentences and tokenizers, as for the tests of `text`."""

from text_fixtures import byte_tokenizer, sentences, tokenizer  # noqa: F401
