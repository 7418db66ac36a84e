"""Puts the markup of a source into its translation.

An element encloses the words that attended to the words in it. The result contains every tag and
item of the source once, whatever the model writes.
"""

import bisect
import dataclasses
import functools
import html
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import regex

from keras_transformer.text.glossary import origins
from keras_transformer.text.markup.joining import Element, Joiner, Unit
from keras_transformer.text.markup.protecting import SYMBOL, Mark, Protected
from keras_transformer.text.markup.token_positions import SPACE, positions_before, token_spans
from keras_transformer.text.splitting import UNIT

_UNIT = regex.compile(rf"{SYMBOL.pattern}|{UNIT}", regex.V1)
_WORD, _NUMBER_AT_END = re.compile(r"\w"), re.compile(r"(?<!\d)\d+\Z")
_SPECIAL = ("<s>", "</s>", "<pad>")
# The token of a corpus or of a language, which begins each part of a split text.
_TAG = re.compile(r"<[a-z0-9][a-z0-9-]*>|>>\S+<<")
_TAKEN = 1e4  # More than the words of a translation can gain.
_TINY, _LESS = 1e-7, 1e-2


class Aligned(Protocol):
    """The fields of an `engine.Translation` that `restore` needs."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def text(self) -> str: ...
    @property
    def tokens(self) -> tuple[str, ...]: ...
    @property
    def source_tokens(self) -> tuple[str, ...]: ...
    @property
    def alignment(self) -> np.ndarray | None: ...
    @property
    def alternatives(self) -> tuple[Any, ...]: ...
    @property
    def parts(self) -> tuple[Any, ...]: ...


_Aligned = TypeVar("_Aligned", bound=Aligned)


def restore(translation: _Aligned, protected: Protected, text_read: str | None = None) -> _Aligned:
    """Puts the markup of a source into its translation, and into the alternatives.

    Args:
        translation: Translation of `protected.text`. Without an alignment, words count as in the
            order of the source.
        protected: The source.
        text_read: `protected.text` with annotated terms, if the model has read them.
    """
    alternatives = tuple(
        restore(alternative, protected, text_read) for alternative in translation.alternatives
    )
    if protected.pieces or "<ph_" in translation.text:
        text = _Restorer(translation, protected, text_read).text()
    else:
        text = _escaped(" ".join(translation.text.split()), protected)
    text = f"{protected.before}{text}{protected.after}"
    return dataclasses.replace(translation, text=text, alternatives=alternatives)


def _escaped(text, protected):
    return html.escape(text, quote=False) if protected.is_html else text


class _Restorer:
    def __init__(self, translation, protected, text_read):
        self._protected, text = protected, translation.text
        self._before = positions_before(protected.text)  # of an offset
        self._items = {mark.number: mark for mark in _all_marks(protected.marks) if mark.number}
        self._source_units = list(_UNIT.finditer(protected.text))
        offsets = np.array([match.span() for match in self._source_units], int).reshape(-1, 2)
        self._unit_begins, self._unit_ends = self._before[offsets].T
        self._units_beside = self._neighbours()
        self._copied: set[int] = set()  # source units with tags inside that were copied
        self._cuts: set[int] = set()  # positions of tags inside them
        attention = _attention(translation, protected.text, text_read)
        self._placed: set[int] = set()
        self._units = self._found_units(text, attention)
        self._set_units(self._units)
        self._set_units(self._with_copied_words())
        missing = sum(mark.min_words for mark in protected.marks) - int(self._words_before[-1])
        if missing > 0:
            self._set_units(_with_parts(self._units, missing))

    def _neighbours(self):
        """Returns the units on both sides of offsets between units that touch."""
        neighbours = {}
        for number, (left, right) in enumerate(itertools.pairwise(self._source_units)):
            if left.end() == right.start():
                neighbours[left.end()] = (number, number + 1)
        return neighbours

    def _found_units(self, text, attention):
        """Returns the units of a translation, and sets the cumulated attention of their rows."""
        target, self._middles, weights = attention
        units, slices, end = [], [], 0
        size = int(self._before[-1])
        if weights is None:  # Each character has its own position, in order.
            ends = np.arange(1, size + 1) / max(size, 1)
            target = ends - 0.5 / max(size, 1), ends
        target = [array.tolist() for array in target]  # Faster to search one by one.
        total = max(len("".join(text.split())), 1)
        for match in _UNIT.finditer(text):
            begin, end = end, end + len(match[0])
            has_space = text[max(match.start() - 1, 0)].isspace()
            piece, span = None, (np.nan, np.nan)
            if match[0].startswith("<ph_"):
                number = int(match[0][4:-1])
                if number not in self._items or number in self._placed:
                    continue  # The model has invented it, or written it twice.
                self._placed.add(number)
                item = self._items[number]
                piece, span = item.first, (self._before[item.start], self._before[item.stop])
            elif weights is None:
                span = _between(*target, begin / total, end / total)
            if weights is not None:
                slices.append(_between(*target, begin, end))
            row_number = len(units)
            units.append(Unit(match[0], has_space, row_number, *span, piece is not None, piece))
        rows = np.zeros((len(units), len(self._middles)))
        if slices:
            starts, stops = np.array(slices).T
            weights_before = np.concatenate([rows[:1], np.cumsum(weights, axis=0)])
            rows = weights_before[stops] - weights_before[starts]
            rows /= np.maximum(rows.sum(axis=1, keepdims=True), 1e-9)
        before_first = np.zeros((len(units), 1))
        self._cumulated = np.concatenate([before_first, np.cumsum(rows, axis=1)], axis=1)
        return units

    def _set_units(self, units):
        self._units = units
        self._rows = np.array([unit.row for unit in units], int)
        self._begins = np.array([unit.begin for unit in units], float)
        self._ends = np.array([unit.end for unit in units], float)
        self._is_exact = np.array([unit.is_exact for unit in units], bool)
        self._is_known = ~np.isnan(self._begins)
        self._is_sign = np.array([not _WORD.match(unit.text) for unit in units], bool)
        self._words_before = np.cumsum([0, *(unit.piece is None for unit in units)])
        begins = ((unit.begin, position) for position, unit in enumerate(units) if unit.is_exact)
        self._parts = {begin: position for begin, position in begins if begin in self._cuts}

    def _attention_before(self, position, exact_position):
        """Returns the attention of each unit to what is before a position in the source."""
        column = np.searchsorted(self._middles, position)
        attention = self._cumulated[self._rows, column]
        if self._is_known.any():
            positions = np.where(self._is_exact, exact_position, position)
            widths = np.maximum(self._ends - self._begins, 1)
            shares = np.clip((positions - self._begins) / widths, 0, 1)
            attention = np.where(self._is_known, shares, attention)
        return attention

    def _attention_inside(self, mark):
        start, stop = self._before[mark.start], self._before[mark.stop]
        return self._attention_before(self._whole_word(stop, 1), stop) - self._attention_before(
            self._whole_word(start, 0), start
        )

    def _whole_word(self, position, is_stop):
        """Returns the begin or the end of the word around a position, unless it was copied."""
        unit = self._unit_around(position)
        if unit is None or unit in self._copied:
            return position
        return (self._unit_ends if is_stop else self._unit_begins)[unit]

    def _unit_around(self, position):
        """Returns the source unit that a position is inside of, or None."""
        unit = int(np.searchsorted(self._unit_begins, position)) - 1
        return unit if unit >= 0 and position < self._unit_ends[unit] else None

    def _with_copied_words(self):
        """Returns the units; where a word with tags inside was copied, its parts are units."""
        cuts_of_words: dict[int, set[int]] = {}  # positions of tags inside source units
        starts = set()
        for mark in _all_marks(self._protected.marks):
            start, stop = int(self._before[mark.start]), int(self._before[mark.stop])
            starts.add(start)
            for position in (start, stop):
                if (word := self._unit_around(position)) is not None:
                    cuts_of_words.setdefault(word, set()).add(position)
            # A token may have both a sign and a word, of which only one is in an element.
            for offset in (mark.start, mark.stop):
                for word in self._units_beside.get(offset, ()):
                    cuts_of_words.setdefault(word, set())
        if not cuts_of_words:
            return self._units
        parts: dict[int, list[Unit]] = {}
        copies = self._copies(cuts_of_words)
        for word, cuts in cuts_of_words.items():
            text = self._source_units[word][0]
            positions = [int(self._unit_begins[word]), *sorted(cuts), int(self._unit_ends[word])]
            if word in copies:
                parts[copies[word]] = _cut(self._units[copies[word]], len(text), positions)
            elif len(cuts) == 1 and positions[1] in starts:
                # A word with the number of a footnote: only the number is copied.
                size = positions[2] - positions[1]
                note = self._ending_with(text[-size:], word, parts)
                if note is None:
                    continue
                if len(self._units[note].text) == size:
                    positions = positions[1:]
                parts[note] = _cut(self._units[note], size, positions)
            else:
                continue
            self._copied.add(word)
            self._cuts |= cuts
        return [
            part for number, unit in enumerate(self._units) for part in parts.get(number, [unit])
        ]

    def _copies(self, words):
        """Returns the units that are copies of source units, by source unit.

        Of several equal words, a copy belongs to the word that it attends to.
        """
        words_of_text, copies_of_text = (
            _positions_of_texts(unit.casefold() for unit in units)
            for units in (
                (match[0] for match in self._source_units),
                (unit.text for unit in self._units),
            )
        )
        copies = {}
        for text in {self._source_units[word][0].casefold() for word in words}:
            equal_words = words_of_text[text]
            length = len(self._source_units[equal_words[0]][0])
            units = [
                unit
                for unit in copies_of_text.get(text, ())
                if len(self._units[unit].text) == length
            ]
            if not units:
                continue
            attention = np.array([self._attention_to_word(word)[units] for word in equal_words])
            # Where attention tells nothing, the order is that of the source.
            orders = (np.linspace(0, 1, count) for count in attention.shape)
            attention -= _TINY * np.abs(np.subtract.outer(*orders))
            owners = np.argmax(attention, axis=0)  # --> [units]
            for position, word in enumerate(equal_words):
                owned = np.flatnonzero(owners == position)
                if word in words and len(owned):
                    copies[word] = units[owned[np.argmax(attention[position, owned])]]
        return copies

    def _attention_to_word(self, word):
        begin, end = self._unit_begins[word], self._unit_ends[word]
        return self._attention_before(end, end) - self._attention_before(begin, begin)

    def _ending_with(self, digits, word, parts):
        """Returns the unit with a number at its end that attends best to a word, or None."""
        units = self._units_by_number.get(digits) if digits.isdecimal() else None
        if units is None:
            return None
        attention = self._attention_to_word(word)[units]
        attention[[unit in parts for unit in units]] = 0
        best = int(np.argmax(attention))
        return units[best] if attention[best] > 0 else None

    @functools.cached_property
    def _units_by_number(self):
        """Units that end with a number, by the number."""
        matches = (_NUMBER_AT_END.search(unit.text) for unit in self._units)
        return _positions_of_texts(None if match is None else match[0] for match in matches)

    def text(self) -> str:
        """Returns the translation with its markup."""
        self._elements: list[Element] = []
        # A stack, because marks may be nested more deeply than function calls.
        writers = [self._write(self._protected.marks, 0, len(self._units))]
        while writers:
            if (arguments := next(writers[-1], None)) is None:
                writers.pop()
            else:
                writers.append(self._write(*arguments))
        return Joiner(self._protected, self._source_units).joined(self._elements)

    def _write(self, marks, lower, upper):
        """Writes sibling marks and the units around them; yields arguments of nested calls."""
        position = lower
        for start, stop, mark in self._ranges(marks, lower, upper):
            self._words(position, start)
            encloses = start < stop
            self._piece(mark.first, is_begin=encloses)
            yield mark.children, start, stop
            self._piece(mark.last, is_end=encloses)
            position = stop
        self._words(position, upper)

    def _words(self, start, stop):
        for unit in self._units[start:stop]:
            if unit.piece is None:
                self._elements.append(Element(_escaped(unit.text, self._protected), None, unit))
            else:
                self._piece(unit.piece, unit)

    def _piece(self, piece, unit=None, is_begin=False, is_end=False):
        if piece is not None:
            literal = self._protected.pieces[piece].literal
            self._elements.append(Element(literal, piece, unit, is_begin, is_end))

    def _ranges(self, marks, lower, upper):
        """Returns the ranges of units of sibling marks, in order, without overlaps."""
        marks = [mark for mark in marks if not mark.number or mark.number not in self._placed]
        ranges: dict[int, tuple[int, int]] = {}
        missing = sum(mark.min_words for mark in marks)
        begin, end, words = lower, upper, self._words_before
        if marks and marks[0].is_element and marks[0].first is None:  # began in an earlier text
            size = marks[0].min_words
            missing -= size
            first = np.searchsorted(words, words[begin] + size)
            last = np.searchsorted(words, words[end] - missing, "right") - 1
            begin = self._best_position(self._before[marks[0].stop], begin, end, first, last)
            ranges[0] = (lower, begin)
        if marks and marks[-1].is_element and marks[-1].last is None:  # ends in a later text
            size = marks[-1].min_words
            first = np.searchsorted(words, words[begin] + missing - size)
            last = np.searchsorted(words, words[end] - size, "right") - 1
            end = self._best_position(self._before[marks[-1].start], begin, end, first, last)
            ranges[len(marks) - 1] = (end, upper)
        ranges |= self._ranges_of_elements(marks, begin, end, ranges)
        is_inside = np.zeros(end - begin + 1, bool)
        for start, stop in ranges.values():
            is_inside[max(start - begin + 1, 0) : max(stop - begin, 0)] = True
        for order, mark in enumerate(marks):
            if order not in ranges:
                start = self._before[mark.start]
                position = self._parts.get(start, -1)  # inside a copied word
                if not begin <= position <= end or is_inside[position - begin]:
                    position = self._best_position(start, begin, end, is_excluded=is_inside)
                ranges[order] = (position, position)
        ordered = sorted((*span, order) for order, span in ranges.items())
        return [(start, stop, marks[order]) for start, stop, order in ordered]

    def _ranges_of_elements(self, marks, lower, upper, ranges):
        """Returns the ranges of elements with words, by their position in `marks`.

        An element gets the units that attend more to words in it than to others. Without such units
        it gets the nearest ones, because an element with words never loses all.
        """
        elements = [
            order
            for order, mark in enumerate(marks)
            if mark.is_element
            and order not in ranges
            and self._before[mark.stop] > self._before[mark.start]
        ]
        ranges = {}
        if not elements or lower == upper:
            return ranges
        is_free = np.ones(upper - lower, bool)
        words = self._words_before[lower : upper + 1]
        missing = sum(marks[order].min_words for order in elements)
        has_enough = missing <= words[-1] - words[0]
        for must in (False, True):
            for order in elements:
                mark, size = marks[order], marks[order].min_words
                if order in ranges or (must and not size):
                    continue
                gains = self._attention_inside(mark)[lower:upper] - 0.5
                if must:  # The nearest of equal units, and rather a word than a sign.
                    start = self._before[mark.start]
                    near = self._best_position(start, lower, upper) - lower
                    gains -= _TINY * np.abs(np.arange(len(gains)) + 0.5 - near)
                    gains -= _LESS * self._is_sign[lower:upper]
                gains[~is_free] = -_TAKEN
                start, stop, total = _best_range(gains)
                if total <= _TINY and not must:
                    continue
                count = words[stop] - words[start]
                free_words = np.diff(words)[is_free].sum()
                max_words = free_words - (missing - size) if has_enough else count
                if must or count < size:
                    start, stop = _best_window(gains, words, size)
                elif count > max_words:
                    begin, end = _best_window(gains[start:stop], words[start : stop + 1], max_words)
                    start, stop = start + begin, start + end
                if start < stop and is_free[start:stop].all():
                    is_free[start:stop] = False
                    ranges[order] = (lower + start, lower + stop)
                    missing -= size
                elif has_enough and size:
                    return self._in_order(marks, elements, lower)
        return ranges

    def _in_order(self, marks, elements, lower):
        """Returns the smallest ranges of elements, one after the other."""
        ranges, words = {}, self._words_before
        for order in elements:
            if size := marks[order].min_words:
                upper = int(np.searchsorted(words, words[lower] + size))
                ranges[order] = (lower, upper)
                lower = upper
        return ranges

    def _best_position(self, position, lower, upper, first=None, last=None, is_excluded=None):
        """Returns the position that agrees best with the words around a source position.

        Args:
            position: Place in the source.
            lower, upper: Units to choose from.
            first, last: Bounds of the position; the first one counts more.
            is_excluded: Bool `(upper - lower + 1,)`, for each position.
        """
        first, last = lower if first is None else first, upper if last is None else last
        if not self._before[-1]:
            return upper
        gains = self._attention_before(position, position)[lower:upper] - 0.5
        gains = np.concatenate([[0.0], np.cumsum(gains)])
        if is_excluded is not None:
            gains[is_excluded] = -np.inf
        first = min(max(first, lower), upper)
        last = max(min(last, upper), first)
        return first + int(np.argmax(gains[first - lower : last - lower + 1]))


def _all_marks(marks) -> Iterator[Mark]:
    marks_to_visit = list(marks)
    while marks_to_visit:
        yield (mark := marks_to_visit.pop())
        marks_to_visit += mark.children


def _positions_of_texts(texts):
    positions: dict[str, list[int]] = {}
    for position, text in enumerate(texts):
        positions.setdefault(text, []).append(position)
    return positions


def _cut(unit, size, positions):
    """Cuts off the last `size` characters of a unit at source positions; returns all parts."""
    first = len(unit.text) - size
    offset = first - (positions[0] if first == 0 else positions[1])
    ends = [position + offset for position in positions[1:-1]]
    texts = [unit.text[begin:end] for begin, end in itertools.pairwise([0, *ends, len(unit.text)])]
    return [
        unit._replace(
            text=text,
            has_space=unit.has_space and not number,
            begin=begin,
            end=end,
            is_exact=True,
        )
        for number, (text, (begin, end)) in enumerate(
            zip(texts, itertools.pairwise(positions), strict=True)
        )
    ]


def _with_parts(units, missing):
    """Divides the longest words, so that there are more units, as far as their characters go."""
    parts: dict[int, list[str]] = {}
    for number in sorted(range(len(units)), key=lambda number: -len(units[number].text)):
        unit = units[number]
        graphemes = regex.findall(r"\X", unit.text) if unit.piece is None else [unit.text]
        count = min(len(graphemes), missing + 1)
        ends = [len(graphemes) * part // count for part in range(count + 1)]
        parts[number] = ["".join(graphemes[begin:end]) for begin, end in itertools.pairwise(ends)]
        missing -= count - 1
    return [
        unit._replace(text=text, has_space=unit.has_space and not part)
        for number, unit in enumerate(units)
        for part, text in enumerate(parts[number])
    ]


def _best_range(gains):
    """Returns the range with the largest sum, and the sum."""
    sums = np.concatenate([[0.0], np.cumsum(gains)])
    lowest = np.minimum.accumulate(sums[:-1])
    totals = sums[1:] - lowest
    stop = int(np.argmax(totals >= totals.max() - _TINY))
    start = int(np.flatnonzero(sums[: stop + 1] <= lowest[stop] + _TINY)[-1])
    return start, stop + 1, float(totals[stop])


def _best_window(gains, words, size):
    """Returns the range with at least `size` words that has the largest sum, or an empty range.

    Args:
        gains: Float `(units,)`.
        words: Number of words before each unit, `(units + 1,)`.
        size: Number of words.
    """
    starts = np.arange(len(gains))
    stops = np.maximum(np.searchsorted(words, words[starts] + size), starts + 1)
    is_complete = words[np.minimum(stops, len(gains))] - words[starts] >= size
    if not is_complete.any():
        return 0, 0
    sums = np.concatenate([[0.0], np.cumsum(gains)])
    totals = np.where(is_complete, sums[np.minimum(stops, len(gains))] - sums[starts], -np.inf)
    start = int(np.argmax(totals))
    return start, int(stops[start])


def _attention(translation, text, text_read):
    """Returns the positions of the tokens of both sides, and the attention between them.

    Of the target's tokens these are the middles and ends, positions in the translation; of the
    source's tokens the middles, positions in `text`. The attention is None without an alignment.
    """
    parts = translation.parts or (translation,)
    tokens = [[i for i, token in enumerate(part.tokens) if token not in _SPECIAL] for part in parts]
    text_read = text if text_read is None else text_read
    sources = [
        _token_positions(part.source_tokens, text_read, is_first=part is parts[0]) for part in parts
    ]
    positions = origins(text_read) if text_read != text else np.arange(positions_before(text)[-1])
    has_alignment = all(part.alignment is not None for part in parts)
    if not (has_alignment and any(tokens) and any(sources) and len(positions)):
        return None, np.zeros(0), None
    weights = np.zeros((sum(map(len, tokens)), sum(map(len, sources))))
    target_tokens, source_tokens = [], []
    for part, target, source in zip(parts, tokens, sources, strict=True):
        row, column = len(target_tokens), len(source_tokens)
        block = np.asarray(part.alignment, float)[np.ix_(target, source)]
        weights[row : row + len(target), column : column + len(source)] = block
        target_tokens += [part.tokens[i] for i in target]
        source_tokens += [part.source_tokens[i] for i in source]
    begins, ends = token_spans(source_tokens, text_read)
    middles = positions[np.minimum((begins + ends) // 2, len(positions) - 1)]
    order = np.argsort(middles, kind="stable")
    order = order[middles[order] >= 0]  # -1 for the words of an annotation
    begins, ends = token_spans(target_tokens, translation.text)
    return ((begins + ends) / 2, ends), middles[order] + 0.5, weights[:, order]


def _token_positions(tokens: Sequence[str], text_read: str, is_first: bool) -> list[int]:
    """Returns the positions of the tokens of a text, without special tokens and its tag."""
    positions = [i for i, token in enumerate(tokens) if token not in _SPECIAL]
    names = [tokens[position].replace(SPACE, "") for position in positions[:2]]
    first = names[:1] == [""]  # A space may be a separate token.
    if len(names) > first and _TAG.fullmatch(name := names[first]):
        is_in_text = is_first and text_read.lstrip().startswith(name)
        return positions if is_in_text else positions[first + 1 :]
    return positions


def _between(middles, ends, begin, end):
    """Returns start and stop of the tokens whose middles are in a unit, or of the token around it.

    `middles` and `ends` are lists.
    """
    start, stop = bisect.bisect_left(middles, begin), bisect.bisect_right(middles, end)
    if start >= stop:
        start = max(min(bisect.bisect_right(ends, (begin + end) / 2), len(ends) - 1), 0)
        stop = start + 1 if ends else start
    return start, stop
