"""Glossaries: finds terms in texts, annotates them with translations."""

import bisect
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import regex

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import check_choice, received
from keras_transformer.engine.steps.step import TextEngine, TextStep, check_writes_text
from keras_transformer.text.folding import fold, fold_case
from keras_transformer.text.patterns import UNIT, is_word_end, is_word_start
from keras_transformer.text.symbols import TERM_SYMBOLS
from keras_transformer.text.tables import are_column_names, iterate_rows
from keras_transformer.text.tags import TAG

_BEGIN, _AS, _END = TERM_SYMBOLS
# Without another `_AS`, so that a long row of them takes no time.
_ANNOTATION = re.compile(rf"({_BEGIN} |{_AS} (?:(?!{_AS}).)*?{_END})", re.DOTALL)
# A symbol of the vocabulary, which contains no term; or a word, a character or a sign.
_UNIT = regex.compile(rf"<[\w\-]+>|{TAG.pattern}|{UNIT}", regex.V1)
_SHOWN = 40  # characters of a wrong term
_MAX_IN_TRAINING = 3  # annotated terms per pair
# Maximum ratio of the lengths of an inflected word and its form in the glossary.
_LONGEST_FORM = 1.5
# Characters of a term and of a translation. Each word of a text may begin a term, so that terms as
# long as the text would take a time that grows with its square.
_LONGEST_TERM = 500


class Match(NamedTuple):
    """A term in a text: `text[start:stop]`, and its translation."""

    start: int
    stop: int
    translation: str


class _Terms:
    """Sorted terms, so that the terms at a position are found without trying each of them."""

    def __init__(self, terms: Iterable[str]):
        self._terms = sorted(terms)
        self._longest = max(map(len, self._terms))
        # Lengths of the terms that each term begins with, and of the term itself.
        self._lengths: list[list[int]] = []
        prefixes: list[str] = []
        for term in self._terms:
            while prefixes and not term.startswith(prefixes[-1]):
                prefixes.pop()
            prefixes.append(term)
            self._lengths.append(list(map(len, prefixes)))

    def lengths_at(self, text: str, start: int) -> Sequence[int]:
        """Returns the lengths of the terms that begin at a position, in descending order."""
        # All terms that a text begins with are among those that the nearest term before it begins
        # with, and if the text begins with one of them, then with all shorter ones.
        index = bisect.bisect_right(self._terms, text[start : start + self._longest]) - 1
        if index < 0:
            return ()
        term, lengths = self._terms[index], self._lengths[index]
        if len(lengths) == 1:
            return lengths if text.startswith(term, start) else ()
        count = bisect.bisect_left(
            lengths, True, key=lambda length: not text.startswith(term[:length], start)
        )
        return lengths[:count][::-1]


class Glossary:
    """Terms with their translations.

    A term matches only whole words, as written or with an upper-case first letter; the longest term
    wins. In scripts without spaces between words, and in Korean, it matches anywhere. Differences
    that readers do not see, such as kinds of apostrophes and spaces, do not matter: see `fold`.

    Args:
        rows: Terms and translations; a term is translated by its first translation.

    Raises:
        InputError: There are no terms, or a side is blank or has more than 500 characters.

    References: Dinu et al. 2019 (P19-1294) and Exel et al. 2020 (2020.eamt-1.29) for annotations.
    """

    def __init__(self, rows: Iterable[tuple[str, str]]):
        self._translations: dict[str, list[str]] = {}  # of folded terms
        for term, translation in rows:
            if not (isinstance(term, str) and isinstance(translation, str)):
                rule = "A glossary needs terms and translations that are strings."
                raise InputError(f"{rule} Received: {received({term: translation})}.")
            if (size := max(len(term), len(translation))) > _LONGEST_TERM:
                rule = f"A term and its translation must have at most {_LONGEST_TERM} characters"
                raise InputError(f"{rule}. Received: {size}, {term[:_SHOWN]!r}…")
            folded_term = fold(term).text.strip()
            self._translations.setdefault(folded_term, []).append(translation.strip())
        translations = self._translations
        if not translations or not all(
            term and all(map(_is_visible, translations_of_term))
            for term, translations_of_term in translations.items()
        ):
            raise InputError("A glossary needs terms with translations, none of them blank.")
        for term in list(translations):
            translations.setdefault(term[0].upper() + term[1:], translations[term])
        terms_by_unit: dict[str, list[str]] = {}
        for term in translations:
            terms_by_unit.setdefault(_UNIT.search(term)[0], []).append(term)
        self._by_unit = {unit: _Terms(terms) for unit, terms in terms_by_unit.items()}

    @property
    def digest(self) -> str:
        """SHA-256 checksum of the terms and their translations, in any order of the terms."""
        content = json.dumps(self._translations, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Glossary":
        """Reads a table of terms and their translations; raises `InputError` for other rows."""
        rows = list(iterate_rows(path, header=False))
        for number, row in rows:
            if len(row) != 2 or not all(map(_is_visible, row)):
                rule = "expected a term and its translation with one tab between them"
                raise InputError(f"{path}, line {number}: {rule}. Received: {row!r:.60}.")
        if are_column_names(first_row := rows[0][1]):
            rule = f"{path}, line 1: expected a term and its translation"
            raise InputError(f"{rule}. Received: {first_row!r:.60}, names of columns. Delete them.")
        try:
            return cls((term, translation) for _, (term, translation) in rows)
        except InputError as error:
            raise InputError(f"{path}: {error.message}") from None

    def matches(self, text: str, target: str | None = None) -> list[Match]:
        """Finds the terms of a text; with a `target` only terms whose translation it contains.

        In a target, a translation may have upper-case letters and be inflected: its last word may
        be up to one and a half times as long.
        """
        matches, end = [], 0
        folded = fold(text)
        ends_word = functools.cache(functools.partial(is_word_end, folded.text))
        words = None if target is None else _UNIT.findall(fold_case(target))
        for unit in _UNIT.finditer(folded.text):
            start, terms = unit.start(), self._by_unit.get(unit[0])
            if start < end or terms is None or not is_word_start(folded.text, start):
                continue
            for length in terms.lengths_at(folded.text, start):
                stop = start + length
                span = folded.span(start, stop) if ends_word(stop) else None
                if span is None:
                    continue
                end, translations = stop, self._translations[folded.text[start:stop]]
                if words is not None:
                    translations = [
                        translation for translation in translations if _is_among(translation, words)
                    ]
                matches += [Match(*span, translation) for translation in translations[:1]]
                break
        return matches

    def in_training(self, source: str, target: str, rng: np.random.Generator) -> tuple[str, str]:
        """Annotates up to three sampled terms of a source whose translations are in the target."""
        matches = self.matches(source, target)
        count = min(len(matches), int(rng.integers(1, _MAX_IN_TRAINING + 1)))
        positions = sorted(rng.permutation(len(matches))[:count].tolist())
        return annotate(source, [matches[position] for position in positions]), target


def _is_visible(text: str) -> bool:
    return bool(fold(text).text.strip())


def _is_among(phrase: str, words: list[str]) -> bool:
    *first, last = _UNIT.findall(fold_case(phrase))
    size = len(first) + 1
    return any(
        word.startswith(last)
        and len(word) <= _LONGEST_FORM * len(last)
        and words[position - len(first) : position] == first
        for position, word in enumerate(words[size - 1 :], start=size - 1)
    )


def annotate(text: str, matches: Iterable[Match]) -> str:
    """Puts translations behind the terms of a text, between `TERM_SYMBOLS`.

    In the text itself, names of these symbols lose their first character: `term_as>`.

    >>> annotate("a rack.", [Match(2, 6, "Gestell")])
    'a <term_begin> rack<term_as> Gestell<term_end>.'
    """
    parts, position = [], 0
    for start, stop, translation in matches:
        parts += [_plain(text[position:start]), f"{_BEGIN} {_plain(text[start:stop])}"]
        parts.append(f"{_AS} {_plain(translation)}{_END}")
        position = stop
    return "".join([*parts, _plain(text[position:])])


def _plain(text: str) -> str:
    return text.replace("<term_", "term_")


def origins(text: str) -> np.ndarray:
    """Maps the characters of an annotated text to positions in the plain text, without spaces.

    Returns int `(characters,)`, with -1 for added characters. A translation's characters have the
    position of its term's last character.
    """
    positions: list[int] = []
    count = 0  # of the plain text's characters so far
    for number, part in enumerate(_ANNOTATION.split(text)):
        size = len("".join(part.split()))
        if number % 2:
            positions += [-1 if part.startswith(_BEGIN) else count - 1] * size
        else:
            positions += range(count, count + size)
            count += size
    return np.array(positions, int)


class GlossaryStep(TextStep):
    """Has the translations of a glossary's terms written.

    Args:
        glossary: The terms.
        annotates: Whether the model reads the translations; otherwise the search forces them.
    """

    def __init__(self, glossary: Glossary, annotates: bool):
        self._glossary, self._annotates = glossary, annotates

    def before(self, text, language=None, target_language=None):
        if self._annotates:
            text = annotate(text, self._glossary.matches(text))
        return [(text, None)]

    def phrases(self, text):
        matches = () if self._annotates else self._glossary.matches(text)
        return [match.translation for match in matches]


def glossary_step(
    engine: TextEngine,
    glossary: "str | os.PathLike | Mapping[str, str] | Glossary | None" = None,
    glossary_by: str | None = None,
) -> GlossaryStep:
    """Makes the step of the options `glossary` and `glossary_by`."""
    if glossary is None:
        rule = "`glossary_by` needs a `glossary`."
        raise InputError(f"{rule} Received: glossary_by={glossary_by!r}.")
    check_writes_text(engine, "glossary")
    return GlossaryStep(glossary_of(glossary), _annotates_terms(engine, glossary_by))


def _annotates_terms(engine, glossary_by):
    """Returns True if the model reads terms' translations, False if the search forces them."""
    is_able = engine.text_features.annotates_terms
    if glossary_by is not None:
        check_choice("glossary_by", glossary_by, ("constraints", "annotations"))
    if is_able and glossary_by != "constraints":
        return True
    if glossary_by == "annotations":
        rule = "`glossary_by: annotations` needs a model trained with `data.glossary`."
        raise InputError(rule)
    if "phrases" in engine.capabilities:
        return False
    if glossary_by is not None:
        raise engine.error_of_lack("phrases", "glossary_by")
    raise InputError("`glossary` needs a run folder, or a model trained with `data.glossary`.")


def glossary_of(glossary: str | os.PathLike | Mapping[str, str] | Glossary) -> Glossary:
    """Makes a glossary of terms, or reads a file, once for many calls until it changes."""
    if isinstance(glossary, Glossary):
        return glossary
    if isinstance(glossary, Mapping):
        return Glossary(glossary.items())
    if not isinstance(glossary, (str, os.PathLike)):
        rule = "`glossary` must be a path, a dict of terms, or a `Glossary`."
        raise InputError(f"{rule} Received: glossary={received(glossary)}.")
    path = os.fspath(glossary)
    # A pipe also changes when it is read, and cannot be read again.
    status = os.stat(path) if os.path.isfile(path) else None
    # A relative path is another file in another working directory.
    version = status and (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
    return _load_glossary(path, version)


@functools.lru_cache(maxsize=1)
def _load_glossary(path, version):
    return Glossary.load(path)
