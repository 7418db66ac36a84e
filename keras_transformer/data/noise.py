"""Noise: training pairs as careless people write them, made anew in every epoch."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pydantic

from keras_transformer.config import EOS_ID, UNK_ID
from keras_transformer.data.pairs import EncodedPairs
from keras_transformer.declaration import declared, option
from keras_transformer.errors import InputError

_SAMPLE = 500  # pairs that tell how much longer noise makes a text
_TYPO_EVERY = 6  # words
# Tags and placeholders stay as they are.
_SYMBOL = re.compile(r"(<[^<>\s]+>)")


def _share(meaning):
    return option(0.0, f"Share of an epoch's pairs {meaning}.", ge=0, le=1)


@declared
class Noise:
    """Shares of the training pairs that are changed, each pair in one way at most."""

    upper_case: float = _share("in capitals, both sides")
    title_case: float = _share("with A Capital In Front Of Each Word, both sides")
    typos: float = _share("whose source has a typing error in about each sixth word")
    no_punctuation: float = _share("without punctuation, both sides")
    subwords: float = _share("whose source is cut into other tokens, drawn at random")
    subword_nbest: int = option(16, "Most probable tokenizations that `subwords` draws from.", ge=2)
    subword_alpha: float = option(
        0.2, "Exponent of their probabilities: 0 draws all alike.", ge=0, le=10
    )

    @pydantic.model_validator(mode="after")
    def _check_shares(self) -> "Noise":
        if (total := sum(self.shares.values())) > 1 + 1e-9:
            raise InputError(f"The shares of `data.noise` must be at most 1 in all: {total:.4g}.")
        return self

    @property
    def shares(self) -> dict[str, float]:
        """The kinds of noise that are asked for, with their shares."""
        given = {name: getattr(self, name) for name in (*_CHANGES, "subwords")}
        return {name: share for name, share in given.items() if share}


def _upper(text: str, rng: np.random.Generator) -> str:
    return text.upper()


def _title(text: str, rng: np.random.Generator) -> str:
    return re.sub(r"(?<!\S)\w", lambda match: match[0].upper(), text)


def _without_punctuation(text: str, rng: np.random.Generator) -> str:
    return re.sub(r"[.,;:!?…。，！？]+(?=\s|$)", "", text)


def _with_typos(text: str, rng: np.random.Generator) -> str:
    """Swaps two letters, drops one, doubles one or puts another in its place."""
    words = text.split(" ")
    long = [place for place, word in enumerate(words) if sum(map(str.isalpha, word)) > 3]
    count = min(len(long), -(-len(words) // _TYPO_EVERY))
    for place in rng.permutation(long)[:count].tolist():
        word = words[place]
        at = int(rng.integers(len(word) - 1))
        first, second, kind = word[at], word[at + 1], rng.integers(4)
        other = chr(ord("a") + int(rng.integers(26)))
        middle = (second + first, second, first + first + second, other + second)[kind]
        words[place] = word[:at] + middle + word[at + 2 :]
    return " ".join(words)


_CHANGES: dict[str, tuple[Callable[[str, np.random.Generator], str], bool]] = {
    # The change, and whether the target has it too.
    "upper_case": (_upper, True),
    "title_case": (_title, True),
    "typos": (_with_typos, False),
    "no_punctuation": (_without_punctuation, True),
}


def _changed(text: str, change: Callable, rng: np.random.Generator) -> str:
    parts = _SYMBOL.split(text)
    return "".join(part if place % 2 else change(part, rng) for place, part in enumerate(parts))


def noisy_texts(
    pairs: Iterable[tuple[str, str]], noise: Noise, seed: int
) -> Iterator[tuple[str, str]]:
    """Yields pairs with their share of noise, for a vocabulary that shall know what it makes."""
    rng, names = np.random.default_rng(seed), list(noise.shares)
    ends = np.cumsum(list(noise.shares.values()))
    for source, target in pairs:
        kind = int(np.searchsorted(ends, rng.random(), side="right"))
        if kind < len(names) and names[kind] in _CHANGES:
            change, both = _CHANGES[names[kind]]
            source = _changed(source, change, rng)
            target = _changed(target, change, rng) if both else target
        yield source, target


class PairNoise:
    """Noise on ids: the text that they stand for, changed and tokenized anew.

    Args:
        noise: Shares and options.
        tokenizers: Of the sources and the targets; labels of a classifier stay as they are.

    Attributes:
        shares: Share of each kind, which counts from 1; 0 is none.
    """

    def __init__(self, noise: Noise, tokenizers: tuple[Any, Any]):
        self._noise, self._tokenizers = noise, tokenizers
        self._names, self.shares = list(noise.shares), list(noise.shares.values())

    def change(
        self, kind: int, source: np.ndarray, target: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ids of a pair, changed; a side that the vocabulary cannot spell stays."""
        name = self._names[kind - 1]
        change, both = _CHANGES.get(name, (None, False))
        source = self._side(0, source[:-1], change, rng)
        if both and hasattr(self._tokenizers[1], "sample"):
            target = self._side(1, target, change, rng)
        return np.append(source, EOS_ID).astype(np.int32), target

    def _side(self, side, ids, change, rng):
        tokenizer = self._tokenizers[side]
        if UNK_ID in ids:
            return ids
        text = tokenizer.detokenize(ids)
        if change is None:
            noise = self._noise
            found = tokenizer.sample(text, noise.subword_nbest, noise.subword_alpha, rng)
        else:
            found = tokenizer.tokenize(_changed(text, change, rng))
        return np.array(found, np.int32) if found and UNK_ID not in found else ids

    def stretches(self, pairs: EncodedPairs) -> list[float]:
        """Ratios by which each kind lengthens nearly all pairs, on a sample of them."""
        rows = np.unique(np.linspace(0, len(pairs) - 1, _SAMPLE).astype(int))
        found = []
        for kind in range(1, len(self.shares) + 1):
            ratios = []
            for row in rows.tolist():
                rng = np.random.default_rng((0, row))
                sides = pairs.source(row), pairs.target(row)
                made = self.change(kind, *sides, rng)
                before, after = (max(len(one), len(two) + 1) for one, two in (sides, made))
                ratios.append(after / before)
            found.append(max(1.0, float(np.quantile(ratios, 0.95))))
        return found
