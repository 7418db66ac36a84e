"""Aligns the words of a translation with the words of its source.

A position is the number of characters before it, without spaces.
"""

import bisect
import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import regex

from keras_transformer.steps.glossary import origins
from keras_transformer.steps.markup.joining import Unit
from keras_transformer.steps.markup.protecting import SYMBOL, Mark, Protected
from keras_transformer.steps.markup.token_positions import positions_before, token_spans
from keras_transformer.steps.splitting import GRAPHEME, UNIT
from keras_transformer.text.tags import TAG
from keras_transformer.text.vocabulary import SPACE

TINY = 1e-7
"""A difference of attention that only decides between equal choices."""

_UNIT = regex.compile(rf"{SYMBOL.pattern}|{UNIT}", regex.V1)
_GRAPHEME = regex.compile(GRAPHEME)
_WORD, _NUMBER_AT_END = re.compile(r"\w"), re.compile(r"(?<!\d)\d+\Z")
_SPECIAL = ("<s>", "</s>", "<pad>")


class Alignment:
    """The units of a translation (words, signs and placeholders), and what they attend to.

    If the translation has enough characters, there are as many words as the elements need.

    Args:
        translation: Translation of `protected.text`.
        protected: The source.
        text_read: `protected.text` with annotated terms, if the model has read them.

    Attributes:
        before: Position of each offset in the source.
        source_units: Match of each unit of the source.
        units: Units of the translation.
        is_sign: True for each unit that is a sign.
        words_before: Number of words before each unit, and of all words.
        units_at_cuts: Units that begin at a tag inside a copied word, by the tag's position.
    """

    def __init__(self, translation: Any, protected: Protected, text_read: str | None):
        self.before = positions_before(protected.text)
        self.source_units = list(_UNIT.finditer(protected.text))
        offsets = np.array([match.span() for match in self.source_units], int).reshape(-1, 2)
        self._source_begins, self._source_ends = self.before[offsets].T
        self._cuts: dict[int, set[int]] = {}  # positions of tags inside copied source units
        attention = _attention(translation, protected.text, text_read)
        marks = list(_all_marks(protected.marks))
        self._set_units(self._read_units(translation.text, marks, attention))
        self._set_units(self._with_copied_words(marks))
        missing = sum(mark.min_words for mark in protected.marks) - int(self.words_before[-1])
        if missing > 0:
            self._set_units(_with_parts(self.units, missing))

    def _read_units(self, text, marks, attention):
        """Returns the units of a text; only the first copy of each placeholder is a unit."""
        items = {mark.number: mark for mark in marks if mark.number}
        if attention is None:  # Each character has its own position, in order.
            size = max(int(self.before[-1]), 1)
            ends = np.arange(1, self.before[-1] + 1) / size
            middles, self._middles = ends - 0.5 / size, np.zeros(0)
            scale = max(int(positions_before(text)[-1]), 1)
        else:
            weights, middles, ends, self._middles = attention
            scale = 1
        middles, ends = middles.tolist(), ends.tolist()  # Faster to search one by one.
        units, slices, end = [], [], 0
        for match in _UNIT.finditer(text):
            begin, end = end, end + len(match[0])
            tokens = _between(middles, ends, begin / scale, end / scale)
            has_space = text[max(match.start() - 1, 0)].isspace()
            piece, span = None, (tokens if attention is None else (np.nan, np.nan))
            if match[0].startswith("<ph_"):
                item = items.pop(int(match[0][4:-1]), None)
                if item is None:
                    continue  # The model has invented it, or written it twice.
                piece, span = item.first, (self.before[item.start], self.before[item.stop])
            slices.append(tokens)
            units.append(Unit(match[0], has_space, len(units), *span, piece is not None, piece))
        rows = np.zeros((len(units), len(self._middles)))
        if attention is not None and slices:
            starts, stops = np.array(slices).T
            weights_before = np.concatenate([rows[:1], np.cumsum(weights, axis=0)])
            rows = weights_before[stops] - weights_before[starts]
            rows /= np.maximum(rows.sum(axis=1, keepdims=True), 1e-9)
        self._cumulated = np.cumsum(np.pad(rows, ((0, 0), (1, 0))), axis=1)
        return units

    def _set_units(self, units):
        self.units = units
        self._rows = np.array([unit.row for unit in units], int)
        self._begins = np.array([unit.begin for unit in units], float)
        self._ends = np.array([unit.end for unit in units], float)
        self._is_exact = np.array([unit.is_exact for unit in units], bool)
        self._is_known = ~np.isnan(self._begins)
        self.is_sign = np.array([not _WORD.match(unit.text) for unit in units], bool)
        self.words_before = np.cumsum([0, *(unit.piece is None for unit in units)])
        cuts = set().union(*self._cuts.values())
        begins = {index: unit.begin for index, unit in enumerate(units) if unit.is_exact}
        self.units_at_cuts = {begin: index for index, begin in begins.items() if begin in cuts}

    def attention_before(self, position: int, exact_position: int) -> np.ndarray:
        """Returns the attention of each unit to the source before a position.

        Parts of copied words and placeholders are compared with `exact_position`.
        """
        column = np.searchsorted(self._middles, position)
        attention = self._cumulated[self._rows, column]
        if self._is_known.any():
            positions = np.where(self._is_exact, exact_position, position)
            widths = np.maximum(self._ends - self._begins, 1)
            shares = np.clip((positions - self._begins) / widths, 0, 1)
            attention = np.where(self._is_known, shares, attention)
        return attention

    def attention_inside(self, mark: Mark) -> np.ndarray:
        """Returns the attention of each unit to an element and the words that are partly in it."""
        start, stop = self.before[mark.start], self.before[mark.stop]
        (begin, _), (_, end) = self._span_of_word(start), self._span_of_word(stop)
        return self.attention_before(end, stop) - self.attention_before(begin, start)

    def _span_of_word(self, position):
        """Returns begin and end of the word around a position, unless the word was copied."""
        word = self._source_unit_around(position)
        if word is None or word in self._cuts:
            return position, position
        return self._source_begins[word], self._source_ends[word]

    def _attention_to_word(self, word):
        begin, end = self._source_begins[word], self._source_ends[word]
        return self.attention_before(end, end) - self.attention_before(begin, begin)

    def _source_unit_around(self, position):
        """Returns the source unit that a position is inside of, or None."""
        unit = int(np.searchsorted(self._source_begins, position)) - 1
        return unit if unit >= 0 and position < self._source_ends[unit] else None

    def _with_copied_words(self, marks):
        """Returns the units; where a word with tags inside was copied, its parts are units."""
        words = self._words_with_tags(marks)
        copies, notes = self._copies(words), {}
        starts = {int(self.before[mark.start]) for mark in marks}
        parts: dict[int, list[Unit]] = {}
        for word, cuts in words.items():
            text, begin = self.source_units[word][0], int(self._source_begins[word])
            positions = [begin, *sorted(cuts), begin + len(text)]
            if word in copies:
                unit, size = copies[word], len(text)
            elif len(cuts) == 1 and positions[1] in starts:
                # A word with the number of a footnote: only the number is copied.
                size = positions[2] - positions[1]
                notes = notes or self._units_by_number()
                unit = self._best_copy(word, notes.get(text[-size:], ()), parts)
                if unit is None:
                    continue
                if len(self.units[unit].text) == size:
                    positions = positions[1:]
            else:
                continue
            parts[unit] = _cut(self.units[unit], size, positions)
            self._cuts[word] = cuts
        return [part for index, unit in enumerate(self.units) for part in parts.get(index, [unit])]

    def _words_with_tags(self, marks):
        """Returns the source units with a tag inside or at the border of a touching unit.

        The values are the positions of the tags inside.
        """
        cuts_of_words: dict[int, set[int]] = {}
        touching = {
            left.end(): (index, index + 1)
            for index, (left, right) in enumerate(itertools.pairwise(self.source_units))
            if left.end() == right.start()
        }
        for mark in marks:
            for offset in (mark.start, mark.stop):
                position = int(self.before[offset])
                if (word := self._source_unit_around(position)) is not None:
                    cuts_of_words.setdefault(word, set()).add(position)
            # A token may have both a sign and a word, of which only one is in an element.
            for offset in (mark.start, mark.stop):
                for word in touching.get(offset, ()):
                    cuts_of_words.setdefault(word, set())
        return cuts_of_words

    def _units_by_number(self):
        """Returns the units that end with a number, by the number."""
        matches = (_NUMBER_AT_END.search(unit.text) for unit in self.units)
        return _indices_by_text(None if match is None else match[0] for match in matches)

    def _best_copy(self, word, units, parts):
        """Returns the unit that attends most to a word and has no parts yet, or None."""
        attention = self._attention_to_word(word)
        units = [unit for unit in units if unit not in parts and attention[unit] > 0]
        return max(units, key=lambda unit: attention[unit], default=None)

    def _copies(self, words):
        """Returns the units that are copies of source units, by source unit.

        Of several equal words, a copy belongs to the word that it attends to.
        """
        source_texts = [match[0] for match in self.source_units]
        words_of_text = _indices_by_text(text.casefold() for text in source_texts)
        units_of_text = _indices_by_text(unit.text.casefold() for unit in self.units)
        copies = {}
        for text in {source_texts[word].casefold() for word in words}:
            equal_words = words_of_text[text]
            length = len(source_texts[equal_words[0]])
            units = [
                unit for unit in units_of_text.get(text, ()) if len(self.units[unit].text) == length
            ]
            if not units:
                continue
            attention = np.array([self._attention_to_word(word)[units] for word in equal_words])
            # Where attention tells nothing, the order is that of the source.
            orders = (np.linspace(0, 1, count) for count in attention.shape)
            attention -= TINY * np.abs(np.subtract.outer(*orders))
            owners = np.argmax(attention, axis=0)  # --> [units]
            for index, word in enumerate(equal_words):
                owned = np.flatnonzero(owners == index)
                if word in words and len(owned):
                    copies[word] = units[owned[np.argmax(attention[index, owned])]]
        return copies


def _attention(translation, text, text_read):
    """Returns the attention between tokens, and where the tokens are; None without an alignment.

    Returns:
        Float `(target tokens, source tokens)`, without special tokens. The positions of the
        middles and ends of the target tokens in the translation. The positions of the middles of
        the source tokens in `text`.
    """
    text_read = text if text_read is None else text_read
    target = [i for i, token in enumerate(translation.tokens) if token not in _SPECIAL]
    source = _token_indices(translation.source_tokens, text_read)
    positions = _positions(text, text_read)
    if translation.alignment is None or not (target and source and len(positions)):
        return None
    weights = np.asarray(translation.alignment, float)[np.ix_(target, source)]
    begins, ends = token_spans([translation.source_tokens[i] for i in source], text_read)
    middles = positions[np.minimum((begins + ends) // 2, len(positions) - 1)]
    order = np.argsort(middles, kind="stable")
    order = order[middles[order] >= 0]  # -1 for the words of an annotation
    begins, ends = token_spans([translation.tokens[i] for i in target], translation.text)
    return weights[:, order], (begins + ends) / 2, ends, middles[order] + 0.5


def _positions(text, text_read):
    """Returns the positions in a text of the characters that the model has read."""
    return origins(text_read) if text_read != text else np.arange(positions_before(text)[-1])


def part_offsets(
    parts: Sequence[Any], text: str, text_read: str | None = None
) -> list[tuple[int, int]]:
    """Returns where the parts of a text that was split begin, without the first part.

    Args:
        parts: Translations of the parts. Without their tokens, the lengths of the translations
            tell the lengths of the parts.
        text: Text without markup.
        text_read: The text with annotated terms, if the model has read them.

    Returns:
        Pairs of an offset in `text` and in `text_read`.
    """
    text_read = text if text_read is None else text_read
    before, before_read = positions_before(text), positions_before(text_read)
    indices = [_token_indices(part.source_tokens, text_read, part is parts[0]) for part in parts]
    if all(indices):
        tokens = [
            part.source_tokens[index]
            for part, part_indices in zip(parts, indices, strict=True)
            for index in part_indices
        ]
        first_tokens = np.cumsum(list(map(len, indices)))[:-1]
        positions_read = token_spans(tokens, text_read)[0][first_tokens]
    else:
        sizes = np.cumsum([positions_before(part.text)[-1] for part in parts])
        positions_read = before_read[-1] * sizes[:-1] // max(int(sizes[-1]), 1)
    # The words of an annotation, which are no part of the text, belong to the term before them.
    positions = np.maximum.accumulate([-1, *_positions(text, text_read)]) + 1
    pairs = (positions[positions_read], before), (positions_read, before_read)
    text_offsets, read_offsets = (
        np.searchsorted(ends, starts, "right") - 1 for starts, ends in pairs
    )
    return list(zip(text_offsets.tolist(), read_offsets.tolist(), strict=True))


def _token_indices(tokens: Sequence[str], text_read: str, is_first: bool = True) -> list[int]:
    """Returns the indices of the tokens of a text, without special tokens and its tags."""
    indices = [i for i, token in enumerate(tokens) if token not in _SPECIAL]
    text = text_read.lstrip() if is_first else ""
    for _ in range(2):  # The token of a language and that of a corpus begin each part.
        names = [tokens[index].replace(SPACE, "") for index in indices[:2]]
        first = names[:1] == [""]  # A space may be a separate token.
        if len(names) == first or not TAG.fullmatch(name := names[first]) or text.startswith(name):
            break
        indices = indices[first + 1 :]
    return indices


def _between(middles, ends, begin, end):
    """Returns start and stop of the tokens whose middles are in a unit, or of the token around it.

    `middles` and `ends` are lists.
    """
    start, stop = bisect.bisect_left(middles, begin), bisect.bisect_right(middles, end)
    if start >= stop:
        start = max(min(bisect.bisect_right(ends, (begin + end) / 2), len(ends) - 1), 0)
        stop = start + 1 if ends else start
    return start, stop


def _all_marks(marks):
    marks_to_visit = list(marks)
    while marks_to_visit:
        yield (mark := marks_to_visit.pop())
        marks_to_visit += mark.children


def _indices_by_text(texts):
    indices: dict[str, list[int]] = {}
    for index, text in enumerate(texts):
        indices.setdefault(text, []).append(index)
    return indices


def _cut(unit, size, positions):
    """Cuts off the last `size` characters of a unit at source positions; returns all parts."""
    first = len(unit.text) - size
    offset = first - (positions[0] if first == 0 else positions[1])
    ends = [0, *(position + offset for position in positions[1:-1]), len(unit.text)]
    return [
        unit._replace(
            text=unit.text[start:stop],
            has_space=unit.has_space and not start,
            begin=begin,
            end=end,
            is_exact=True,
        )
        for (start, stop), (begin, end) in zip(
            itertools.pairwise(ends), itertools.pairwise(positions), strict=True
        )
    ]


def _with_parts(units, missing):
    """Divides the longest words, so that there are more units, as far as their characters go."""
    parts: dict[int, list[str]] = {}
    for index in sorted(range(len(units)), key=lambda index: -len(units[index].text)):
        unit = units[index]
        graphemes = _GRAPHEME.findall(unit.text) if unit.piece is None else [unit.text]
        count = min(len(graphemes), missing + 1)
        ends = [len(graphemes) * part // count for part in range(count + 1)]
        parts[index] = ["".join(graphemes[begin:end]) for begin, end in itertools.pairwise(ends)]
        missing -= count - 1
    return [
        unit._replace(text=text, has_space=unit.has_space and not part)
        for index, unit in enumerate(units)
        for part, text in enumerate(parts[index])
    ]
