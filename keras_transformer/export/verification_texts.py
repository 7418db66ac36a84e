"""Texts to verify an export with."""

import random

_SAMPLE_SIZE = 200


def sample_texts(tokenizer, count=_SAMPLE_SIZE, seed=7):
    """Texts of 1 to 24 random pieces, for models whose corpus is not at hand.

    Args:
        tokenizer: `Tokenizer`.
        count: Number of texts.
        seed: The same seed gives the same texts.

    Returns:
        A list of strings.
    """
    chance = random.Random(seed)
    ids = range(4, tokenizer.vocabulary_size)  # The first four are the special ones.
    return tokenizer.detokenize([chance.choices(ids, k=1 + i % 24) for i in range(count)])


def verification_batches(texts, tokenizer, max_source_length):
    """The texts in batches of several sizes, with the ones that servers get wrong among them.

    Args:
        texts: A list of strings.
        tokenizer: `Tokenizer` of the source side.
        max_source_length: Tokens at which a text is cut.

    Returns:
        A list of lists of strings: an empty batch, batches of one (the empty string, a text
        that is cut), of 3, of 33, and of all the others.
    """
    too_long = " ".join(sample_texts(tokenizer, 24))
    while len(tokenizer.tokenize(too_long)) <= max_source_length:
        too_long = f"{too_long} {too_long}"
    foreign = ["Grüße, señor!", "你好，世界 😀", "e\u0301\u200b\u00a0ﬁ", "a\x00b\tc\nd"]
    blank = ["", " \t\n", "\u3000\u00a0"]
    rest = [*blank[:2], *foreign, *texts, *blank[1:], *texts[:1]]
    batches = [[], [too_long], [""], texts[:1] or foreign[:1]]
    for size in (3, 33):
        batches.append(rest[:size])
        rest = rest[size:]
    return [*batches, rest] if rest else batches


def fitting_texts(texts, tokenizer, length, count=8):
    """The longest texts that fit into a length, one of them as long as words can make it.

    Args:
        texts: A list of strings.
        tokenizer: `Tokenizer` of the source side.
        length: Tokens, the end of the sentence included.
        count: Number of texts to choose, at most.

    Returns:
        A list of strings: an empty one, what was chosen, and words of the texts that fill the
        length.
    """
    sizes = [len(each) + 1 for each in tokenizer.tokenize(texts)]
    fitting = sorted(
        (size, text) for size, text in zip(sizes, texts, strict=True) if size <= length
    )
    words = " ".join(texts).split()[:length]  # A word has one token or more.
    while words and len(tokenizer.tokenize(" ".join(words))) >= length:
        words.pop()
    return ["", *(text for _, text in fitting[-count:]), " ".join(words)]
