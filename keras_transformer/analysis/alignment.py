"""Word alignment by attention."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.analysis.attention import is_special, merge_words, words_of

Links = frozenset[tuple[int, int]]
"""Pairs of a source word and a target word, both counted from 0."""


class WordAlignment(NamedTuple):
    """Attention of each target word to each source word.

    Attributes:
        weights: Float32 `(target words, source words)`, without the special tokens.
        source_words: The words of the columns.
        target_words: The words of the rows.
    """

    weights: np.ndarray
    source_words: list[str]
    target_words: list[str]

    def links(self) -> Links:
        """Links each target word with the source word that it attended to most."""
        if not self.weights.size:
            return frozenset()
        return frozenset((int(row.argmax()), i) for i, row in enumerate(self.weights))


def word_alignment(
    weights: np.ndarray, source_tokens: Sequence[str], target_tokens: Sequence[str]
) -> WordAlignment:
    """Merges attention between tokens to words: sum over a word's keys, mean of its queries.

    Args:
        weights: Float `(target, source)`: the row of a token is the step that writes it. As
            `Translation.alignment`, or a mean over heads of `Attention.cross`.
        source_tokens: Tokens with `"▁"` for a space, EOS included.
        target_tokens: Tokens likewise.
    """
    merged = merge_words(weights, words_of(target_tokens), words_of(source_tokens))
    source, target = _words(source_tokens), _words(target_tokens)
    kept = merged[np.ix_(list(target), list(source))]
    return WordAlignment(kept, list(source.values()), list(target.values()))


def _words(tokens):
    """Maps places to words, without the special tokens."""
    texts: dict[int, str] = {}
    for word, token in zip(words_of(tokens), tokens, strict=True):
        if not is_special(token):
            texts[word] = texts.get(word, "") + token.removeprefix("▁")
    return texts


def pharaoh(links: Links) -> str:
    """Writes links as `0-0 1-2`, source first, in the order of the target."""
    ordered = sorted(links, key=lambda link: (link[1], link[0]))
    return " ".join(f"{source}-{target}" for source, target in ordered)
