"""Learns terms and their translations from pairs of texts, for a glossary."""

import math
import numbers
from collections.abc import Iterable, Iterator

import numpy as np
import regex

from keras_transformer.base.options import check
from keras_transformer.extras.corpora.model_1 import Sentences, Translations, model_1
from keras_transformer.text.folding import fold

_WORD = regex.compile(r"[\p{L}\p{M}]+(?:-[\p{L}\p{M}]+)*")
MIN_PAIRS, MIN_PROBABILITY = 2, 0.5
_MIN_FORWARD = 0.1
_MAX_LINKS = 50_000_000  # pairs of words; about a minute and 700 MB
_MAX_LINKS_OF_PAIR = 1_000_000  # A longer pair is no sentence, and tells nothing about its words.


def learn_terms(
    pairs: Iterable[tuple[str, str]],
    min_pairs: int = MIN_PAIRS,
    min_probability: float = MIN_PROBABILITY,
) -> Iterator[tuple[str, str]]:
    """Yields words and their translations, the most probable first, by IBM's Model 1.

    Args:
        pairs: Pairs of texts; only the first 50 million pairs of words count. Pairs of texts with
            more than a million, such as two texts of 1,000 different words, are skipped.
        min_pairs: Minimum number of pairs that contain both words.
        min_probability: Minimum probability of the word, given its translation, from 0 to 1. The
            probability of the translation, given the word, must be at least 0.1.

    Raises:
        InputError: An option is out of range.

    Reference: Brown et al. 1993 (J93-2003).
    """
    check("min_pairs", min_pairs, "a positive integer", numbers.Integral, 1)
    check("min_probability", min_probability, "a number from 0 to 1", numbers.Real, 0, 1)
    return _learned(pairs, min_pairs, min_probability)


def _learned(pairs, min_pairs, min_probability):
    ids_of_sides: tuple[dict, dict] = {"": 0}, {"": 0}  # "" is Model 1's NULL word
    sentences: tuple[list, list] = [], []
    num_links = 0
    for pair in pairs:
        words_of_sides = [dict.fromkeys(["", *_WORD.findall(fold(text).text)]) for text in pair]
        links_of_pair = math.prod(map(len, words_of_sides))
        if links_of_pair > _MAX_LINKS_OF_PAIR:
            continue
        num_links += links_of_pair
        if num_links > _MAX_LINKS:
            break
        for words, ids, side in zip(words_of_sides, ids_of_sides, sentences, strict=True):
            side.append([ids.setdefault(word, len(ids)) for word in words])
    sources, targets = map(Sentences.of, sentences)
    backward = _probable(model_1(targets, sources), min_probability)
    likely = {
        (source, target)
        for target, source in zip(backward.sources.tolist(), backward.targets.tolist(), strict=True)
    }
    forward = _probable(model_1(sources, targets), _MIN_FORWARD)
    by_number: list[list[str]] = [[*side] for side in ids_of_sides]
    for position in np.lexsort((-forward.probabilities, forward.sources)):
        source, target = int(forward.sources[position]), int(forward.targets[position])
        if forward.counts[position] < min_pairs or not source or not target:
            continue
        if (source, target) in likely:
            yield by_number[0][source], by_number[1][target]


def _probable(blocks: Iterable[Translations], min_probability: float) -> Translations:
    """Returns the pairs of words with at least a probability."""
    parts = [Translations(*np.zeros((4, 0), int))]
    for block in blocks:
        is_probable = block.probabilities >= min_probability
        parts.append(Translations(*(column[is_probable] for column in block)))
    return Translations(*map(np.concatenate, zip(*parts, strict=True)))
