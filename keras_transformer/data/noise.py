"""Noise: changes training pairs to look like careless writing, differently in every epoch."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import regex

from keras_transformer.base.ids import EOS_ID, UNK_ID
from keras_transformer.base.options import option, options_class
from keras_transformer.data.pairs import EncodedPairs
from keras_transformer.text.patterns import ITEM
from keras_transformer.text.tags import TAG

_SAMPLE = 500  # pairs that show how much longer noise makes a text
_NEARLY_ALL = 0.95
_WORDS_PER_TYPO = 6
# Most probable tokenizations that `subwords` samples from, and the exponent of their probabilities.
_TOKENIZATIONS, _ALPHA = 16, 0.2
# Noise does not change tags, also of imported models, placeholders, addresses and fields.
_UNCHANGED = regex.compile(rf"(<[^<>\s]+>|{TAG.pattern}|{ITEM.pattern})", regex.V1)
_SIGN = r"[\p{Terminal_Punctuation}…]"
_PUNCTUATION = regex.compile(rf"(?<!{_SIGN}){_SIGN}++(?=\s|$)")  # A run is read once.
_LETTER = regex.compile(r"[\p{L}\p{M}]")

PairChange = Callable[[str, str, np.random.Generator], tuple[str, str]]


def _share(meaning):
    return option(0.0, f"Share of an epoch's pairs {meaning}.", ge=0, le=1)


@options_class
class Noise:
    """Shares of the training pairs that are changed, each pair in at most one way."""

    upper_case: float = _share("in upper case, both sides")
    title_case: float = _share("in Title Case, both sides")
    typos: float = _share("whose source has a typo in about every sixth word")
    no_punctuation: float = _share("without punctuation, both sides")
    subwords: float = _share("whose source has other subword tokens, sampled")

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the kinds of noise whose share is not 0."""
        shares = {name: getattr(self, name) for name in (*_CHANGES, "subwords")}
        return {name: share for name, share in shares.items() if share}


def _upper(text: str, rng: np.random.Generator) -> str:
    return text.upper()


def _title(text: str, rng: np.random.Generator) -> str:
    return re.sub(r"(?<!\S)\w", lambda match: match[0].upper(), text)


def _without_punctuation(text: str, rng: np.random.Generator) -> str:
    return _PUNCTUATION.sub("", text)


def _with_typos(text: str, rng: np.random.Generator) -> str:
    """Swaps two letters, or drops, doubles or replaces a letter, in some long words."""
    words = text.split(" ")
    long = [index for index, word in enumerate(words) if len(_LETTER.findall(word)) > 3]
    count = min(len(long), -(-len(words) // _WORDS_PER_TYPO))
    for index in rng.permutation(long)[:count].tolist():
        word = words[index]
        position = int(rng.integers(len(word) - 1))
        first, second, kind = word[position], word[position + 1], int(rng.integers(4))
        letter = chr(ord("a") + int(rng.integers(26)))
        middle = (second + first, second, first + first + second, letter + second)[kind]
        words[index] = word[:position] + middle + word[position + 2 :]
    return " ".join(words)


def _change(change: Callable[[str, np.random.Generator], str], is_on_both: bool) -> PairChange:
    def of_text(text, rng):
        parts = _UNCHANGED.split(text)
        return "".join(part if index % 2 else change(part, rng) for index, part in enumerate(parts))

    def of_pair(source, target, rng):
        return of_text(source, rng), of_text(target, rng) if is_on_both else target

    return of_pair


_CHANGES: dict[str, PairChange] = {
    "upper_case": _change(_upper, True),
    "title_case": _change(_title, True),
    "typos": _change(_with_typos, False),
    "no_punctuation": _change(_without_punctuation, True),
}


class PairNoise:
    """Noise on pairs of texts, or of ids, whose texts are tokenized again.

    Args:
        noise: Shares and options.
        tokenizers: Tokenizers of the sources and the targets, for ids; a classifier's labels are
            not changed.
        terms: Share of a further kind, and its function that changes a pair.

    Attributes:
        shares: Share of each kind; kinds count from 1, and 0 means no noise.
    """

    def __init__(
        self,
        noise: Noise,
        tokenizers: tuple[Any, Any] = (None, None),
        terms: tuple[float, PairChange] | None = None,
    ):
        self._noise, self._tokenizers = noise, tokenizers
        self.shares = list(noise.shares.values())
        self._changes = [_CHANGES.get(name) for name in noise.shares]
        if terms is not None:
            self.shares.append(terms[0])
            self._changes.append(terms[1])

    def texts(
        self, pairs: Iterable[tuple[str, str]], seed: int | np.random.Generator
    ) -> Iterator[tuple[str, str]]:
        """Yields pairs with their share of noise, for a vocabulary that includes noisy text."""
        rng, ends = np.random.default_rng(seed), np.cumsum(self.shares)
        for source, target in pairs:
            kind = int(np.searchsorted(ends, rng.random(), side="right"))
            change = self._changes[kind] if kind < len(ends) else None
            if change is not None:
                source, target = change(source, target, rng)
            yield source, target

    def change(
        self, kind: int, source: np.ndarray, target: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Changes the ids of a pair; a side that the vocabulary cannot spell stays unchanged."""
        change, sides = self._changes[kind - 1], [source[:-1], target]
        of_source, of_target = self._tokenizers
        is_text = hasattr(of_target, "detokenize")
        texts = of_source.detokenize(sides[0]), of_target.detokenize(target) if is_text else ""
        if change is None:
            new_ids = [of_source.sample(texts[0], _TOKENIZATIONS, _ALPHA, rng), []]
        else:
            changed = change(*texts, rng)
            new_ids = [
                tokenizer.tokenize(new) if new != old else []
                for tokenizer, new, old in zip(self._tokenizers, changed, texts, strict=True)
            ]
        for side, ids in enumerate(new_ids):
            if ids and UNK_ID not in ids and UNK_ID not in sides[side]:
                sides[side] = np.array(ids, np.int32)
        return np.append(sides[0], EOS_ID).astype(np.int32), sides[1]

    def stretches(self, pairs: EncodedPairs) -> tuple[list[float], int]:
        """Estimates how much longer noise makes pairs, from a sample of the pairs.

        Returns:
            For each kind the ratio that the lengths of nearly all pairs stay below, and the largest
            number of columns, over the kinds, that nearly all pairs need.
        """
        rows = np.unique(np.linspace(0, len(pairs) - 1, _SAMPLE).astype(int))
        ratios, longest = [], 0
        for kind in range(1, len(self.shares) + 1):
            columns = []
            for row in rows.tolist():
                rng = np.random.default_rng((0, row))
                sides = pairs.source(row), pairs.target(row)
                noisy_sides = self.change(kind, *sides, rng)
                columns.append(
                    [max(len(source), len(target) + 1) for source, target in (sides, noisy_sides)]
                )
            before, after = np.transpose(columns)
            ratios.append(max(1.0, float(np.quantile(after / before, _NEARLY_ALL))))
            longest = max(longest, int(np.quantile(after, _NEARLY_ALL, method="higher")))
        return ratios, longest
