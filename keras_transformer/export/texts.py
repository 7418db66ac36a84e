"""Texts that exports are verified with and warmed up by."""

import random
from collections.abc import Sequence

from keras_transformer.inputs import bucket, length_buckets


def sample_texts(tokenizer, count: int = 200) -> list[str]:
    """Makes texts of 1 to 24 random tokens, for models whose corpus is not at hand."""
    chance = random.Random(7)
    ids = range(4, tokenizer.vocabulary_size)  # The first four are the special ones.
    return tokenizer.detokenize([chance.choices(ids, k=1 + i % 24) for i in range(count)])


def text_batches(texts: Sequence[str], tokenizer, max_source_length: int) -> dict[str, list[str]]:
    """Returns the texts in named batches, with the ones that servers get wrong among them.

    `all` the texts with blank and foreign ones, and of these `not_blank`; `too_long`, one that is
    cut; `many`, 224 texts of one padded length, for which one program does, and of these `few` and
    `one`; `none`.
    """
    too_long = " ".join(sample_texts(tokenizer, 24))
    while len(tokenizer.tokenize(too_long)) <= max_source_length:
        too_long = f"{too_long} {too_long}"
    foreign = ["Grüße, señor!", "你好，世界 😀", "e\u0301\u200b\u00a0ﬁ", "a\x00b\tc\nd"]
    blank = ["", " \t\n", "\u3000\u00a0"]
    buckets, by_length = length_buckets(max_source_length), {}
    for text in texts or foreign[:1]:
        length = min(len(tokenizer.tokenize(text)) + 1, max_source_length)
        by_length.setdefault(bucket(length, buckets), []).append(text)
    most = max(by_length.values(), key=len)
    many = [most[i % len(most)] for i in range(224)]
    every = [*blank, *foreign, *texts, *blank[1:], *texts[:1]]
    return {
        "all": every,
        "not_blank": [text for text in every if text.strip()],
        "too_long": [too_long],
        "many": many,
        "few": many[:32],
        "one": many[:1],
        "none": [],
    }


def fitting_texts(texts: Sequence[str], tokenizer, length: int, count: int = 8) -> list[str]:
    """Returns an empty text, the longest that fit into `length` tokens including EOS, and words
    that fill it."""
    sizes = [len(each) + 1 for each in tokenizer.tokenize(texts)]
    fitting = sorted(
        (size, text) for size, text in zip(sizes, texts, strict=True) if size <= length
    )
    words = " ".join(texts).split()[:length]  # A word has one token or more.
    while words and len(tokenizer.tokenize(" ".join(words))) >= length:
        words.pop()
    return ["", *(text for _, text in fitting[-count:]), " ".join(words)]
