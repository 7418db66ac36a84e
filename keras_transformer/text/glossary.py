"""Glossaries: terms with translations, found in texts, annotated, learned from pairs."""

import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import regex

from keras_transformer.errors import InputError
from keras_transformer.files import iterate_lines
from keras_transformer.text.splitting import UNIT, are_whole_words

TERM_SYMBOLS = ("<term_begin>", "<term_as>", "<term_end>")
"""Tokens of an annotation: `a <term_begin> rack<term_as> Gestell<term_end> of steel`."""
_BEGIN, _AS, _END = TERM_SYMBOLS
_ANNOTATION = re.compile(rf"({_BEGIN} |{_AS} .*?{_END})", re.DOTALL)
# A symbol of the vocabulary, in which there is no term; or a word, a character or a sign.
_UNIT = regex.compile(rf"<[\w\-]+>|{UNIT}", regex.V1)
_MOST_IN_TRAINING = 3  # annotated terms of a pair
# Times that an inflected word is as long as the translation in the glossary.
_LONGEST_FORM = 1.5
_WORD = regex.compile(r"[\p{L}\p{M}]+(?:-[\p{L}\p{M}]+)*")
MIN_PAIRS, MIN_PROBABILITY = 2, 0.5
_ITERATIONS = 5
_MOST_LINKS = 50_000_000  # two gigabytes


class Match(NamedTuple):
    """A term in a text: `text[start:stop]`, and its translation."""

    start: int
    stop: int
    translation: str


class Glossary:
    """Terms with their translations.

    A term is found as whole words, as it is written or with its first letter in capitals, the
    longest first. In scripts without spaces between words, and in Korean, it is found anywhere.

    Args:
        rows: Terms and translations; the first translation of a term is what it is translated to.

    Raises:
        InputError: There is no term, or a side is blank.

    References: Dinu et al. 2019 (P19-1294) and Exel et al. 2020 (2020.eamt-1.29) for annotations.
    """

    def __init__(self, rows: Iterable[tuple[str, str]]):
        self._translations: dict[str, list[str]] = {}
        for term, translation in rows:
            self._translations.setdefault(term.strip(), []).append(translation.strip())
        translations = self._translations
        if not translations or not all(
            term and all(translations_of_term)
            for term, translations_of_term in translations.items()
        ):
            raise InputError("A glossary needs terms with translations, none of them blank.")
        for term in list(translations):
            translations.setdefault(term[0].upper() + term[1:], translations[term])
        self._by_unit: dict[str, list[str]] = {}
        for term in sorted(translations, key=len, reverse=True):
            self._by_unit.setdefault(_UNIT.findall(term)[0], []).append(term)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Glossary":
        """Reads `term<TAB>translation` lines; `InputError` for another line."""
        rows = [line.split("\t") for line in iterate_lines(path)]
        for number, row in enumerate(rows, start=1):
            if len(row) != 2 or not all(map(str.strip, row)):
                rule = "expected a term and its translation with one tab between them"
                raise InputError(f"{path}, line {number}: {rule}. Received: {row!r:.60}.")
        return cls((term, translation) for term, translation in rows)

    def matches(self, text: str, target: str | None = None) -> list[Match]:
        """The terms of a text; with a `target` those that it has a translation of.

        A translation is in a target with its first letters in capitals, and inflected: its last
        word may be half as long again.
        """
        matches, end = [], 0
        words = None if target is None else _UNIT.findall(target.casefold())
        for unit in _UNIT.finditer(text):
            start = unit.start()
            if start < end:
                continue
            for term in self._by_unit.get(unit[0], ()):
                stop = start + len(term)
                if not (text.startswith(term, start) and are_whole_words(text, start, stop)):
                    continue
                end, translations = stop, self._translations[term]
                if words is not None:
                    translations = [
                        translation for translation in translations if _is_among(translation, words)
                    ]
                matches += [Match(start, stop, translation) for translation in translations[:1]]
                break
        return matches

    def in_training(self, source: str, target: str, rng: np.random.Generator) -> tuple[str, str]:
        """A pair, up to three drawn terms of its source annotated that its target translates."""
        matches = self.matches(source, target)
        count = min(len(matches), int(rng.integers(1, _MOST_IN_TRAINING + 1)))
        places = sorted(rng.permutation(len(matches))[:count].tolist())
        return annotate(source, [matches[place] for place in places]), target


def _is_among(phrase: str, words: list[str]) -> bool:
    *first, last = _UNIT.findall(phrase.casefold())
    size = len(first) + 1
    return any(
        word.startswith(last)
        and len(word) <= _LONGEST_FORM * len(last)
        and words[place - len(first) : place] == first
        for place, word in enumerate(words[size - 1 :], start=size - 1)
    )


def annotate(text: str, matches: Iterable[Match]) -> str:
    """Puts translations behind the terms of a text, between `TERM_SYMBOLS`.

    The names of these symbols in the text itself lose their sign: `<term_as>` is `term_as>`.

    >>> annotate("a rack.", [Match(2, 6, "Gestell")])
    'a <term_begin> rack<term_as> Gestell<term_end>.'
    """
    parts, place = [], 0
    for start, stop, translation in matches:
        parts += [_plain(text[place:start]), f"{_BEGIN} {_plain(text[start:stop])}"]
        parts.append(f"{_AS} {_plain(translation)}{_END}")
        place = stop
    return "".join([*parts, _plain(text[place:])])


def _plain(text: str) -> str:
    return text.replace("<term_", "term_")


def without_annotations(text: str) -> str:
    """A text as it was before `annotate`."""
    return _ANNOTATION.sub("", text)


def origins(text: str) -> np.ndarray:
    """Places of the characters of an annotated text in the text without, spaces not counted.

    Int `(characters,)`, -1 for none; a translation has the place of its term's last character.
    """
    found: list[int] = []
    for turn, part in enumerate(_ANNOTATION.split(text)):
        size, count = len("".join(part.split())), max(found, default=-1) + 1
        if turn % 2:
            found += [-1 if part.startswith(_BEGIN) else count - 1] * size
        else:
            found += range(count, count + size)
    return np.array(found, int)


def learn_terms(
    pairs: Iterable[tuple[str, str]],
    min_pairs: int = MIN_PAIRS,
    min_probability: float = MIN_PROBABILITY,
) -> Iterator[tuple[str, str]]:
    """Yields words and their translations, the most probable first, by IBM's Model 1.

    Args:
        pairs: Texts; the first ones count, up to 50 million pairs of words.
        min_pairs: Fewest pairs that have both words.
        min_probability: Least probability of the word where its translation stands; a word may
            have several translations, of a probability of 0.1 at least.

    Reference: Brown et al. 1993 (J93-2003).
    """
    numbers: tuple[dict, dict] = {"": 0}, {"": 0}  # of words; "" is the origin of words without
    links, starts, count = [np.zeros((4, 0), np.int32)], [0, 0], 0
    for pair in pairs:
        words = [dict.fromkeys(["", *_WORD.findall(text)]) for text in pair]
        one, other = (
            np.array([ids.setdefault(word, len(ids)) for word in side], np.int32)
            for ids, side in zip(numbers, words, strict=True)
        )
        sides = (one, np.arange(len(one)) + starts[0]), (other, np.arange(len(other)) + starts[1])
        grids = [np.repeat(column, len(other)) for column in sides[0]]
        grids += [np.tile(column, len(one)) for column in sides[1]]
        links.append(np.array(grids, np.int32))
        starts = [starts[0] + len(one), starts[1] + len(other)]
        if (count := count + len(one) * len(other)) > _MOST_LINKS:
            break
    source, of_source, target, of_target = np.concatenate(links, axis=1)
    keys = source.astype(np.int64) * len(numbers[1]) + target
    keys, kind, counts = np.unique(keys, return_inverse=True, return_counts=True)
    sources, targets = np.divmod(keys, len(numbers[1]))
    ahead = _model_1(kind, sources, of_target)
    back = _model_1(kind, targets, of_source)
    is_kept = (counts >= min_pairs) & (ahead >= 0.1) & (back >= min_probability)
    is_kept &= (sources > 0) & (targets > 0)
    by_number: list[list[str]] = [[*side] for side in numbers]
    for place in np.lexsort((-ahead, sources)):
        if is_kept[place]:
            yield by_number[0][sources[place]], by_number[1][targets[place]]


def _model_1(kind: np.ndarray, given: np.ndarray, token: np.ndarray) -> np.ndarray:
    """The probability of each kind of link, that of a word where the `given` one stands.

    Args:
        kind: Int `(links,)`.
        given: Int `(kinds,)`, words.
        token: Int `(links,)`, tokens that have one link each.
    """
    probability = np.ones(len(given))
    for _ in range(_ITERATIONS):
        share = probability[kind]
        share /= np.bincount(token, share)[token]
        expected = np.bincount(kind, share)
        probability = expected / np.bincount(given, expected)[given]
    return probability
