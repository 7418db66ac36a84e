"""Learns terms and their translations from pairs of texts, for a glossary."""

from collections.abc import Iterable, Iterator

import numpy as np
import regex

from keras_transformer.corpora.model_1 import Sentences, Translations, model_1
from keras_transformer.steps.folding import fold

_WORD = regex.compile(r"[\p{L}\p{M}]+(?:-[\p{L}\p{M}]+)*")
MIN_PAIRS, MIN_PROBABILITY = 2, 0.5
_MIN_FORWARD = 0.1
_MAX_LINKS = 50_000_000


def learn_terms(
    pairs: Iterable[tuple[str, str]],
    min_pairs: int = MIN_PAIRS,
    min_probability: float = MIN_PROBABILITY,
) -> Iterator[tuple[str, str]]:
    """Yields words and their translations, the most probable first, by IBM's Model 1.

    Args:
        pairs: Pairs of texts; only the first 50 million pairs of words count.
        min_pairs: Minimum number of pairs that contain both words.
        min_probability: Minimum probability of the word, given its translation. The probability of
            the translation, given the word, must be at least 0.1.

    Reference: Brown et al. 1993 (J93-2003).
    """
    numbers: tuple[dict, dict] = {"": 0}, {"": 0}  # of words; "" is the origin of words without
    sentences: tuple[list, list] = [], []
    count = 0
    for pair in pairs:
        for text, ids, side in zip(pair, numbers, sentences, strict=True):
            words = dict.fromkeys(["", *_WORD.findall(fold(text).text)])
            side.append([ids.setdefault(word, len(ids)) for word in words])
        if (count := count + len(sentences[0][-1]) * len(sentences[1][-1])) > _MAX_LINKS:
            break
    sources, targets = map(Sentences.of, sentences)
    backward = _probable(model_1(targets, sources), min_probability)
    likely = {
        (source, target)
        for target, source in zip(backward.sources.tolist(), backward.targets.tolist(), strict=True)
    }
    forward = _probable(model_1(sources, targets), _MIN_FORWARD)
    by_number: list[list[str]] = [[*side] for side in numbers]
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
