"""Puts the markup of a source into its translation.

An element encloses the words that attended to the words in it. The result contains every tag and
item of the source once, whatever the model writes. There are three steps: align the words of both
sides, choose a span of words for each element, and write words and tags.
"""

import dataclasses
import html
import itertools
from typing import Any, NamedTuple, TypeVar

import numpy as np

from keras_transformer.steps.markup.aligning import TINY, Alignment, part_offsets
from keras_transformer.steps.markup.joining import Element, Joiner
from keras_transformer.steps.markup.protecting import Mark, Protected, divide

_TAKEN = 1e4  # More than the words of a translation can gain.
_SIGN_PENALTY = 1e-2


_Text = TypeVar("_Text", bound=Any)  # an `engine.Translation`


def restore(translation: _Text, protected: Protected, text_read: str | None = None) -> _Text:
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
    text = _restored(translation, protected, text_read)
    return dataclasses.replace(translation, text=text, alternatives=alternatives)


def _restored(translation, protected, text_read):
    if not protected.pieces and "<ph_" not in translation.text:
        text = _escaped(" ".join(translation.text.split()), protected)
    elif len(translation.parts) > 1:
        # Each by itself, because time and memory grow with the product of both sides' lengths.
        offsets = part_offsets(translation.parts, protected.text, text_read)
        texts = divide(protected, [start for start, _ in offsets])
        texts_read = (
            None if text_read is None else text_read[start:stop]
            for (_, start), (_, stop) in itertools.pairwise([(0, 0), *offsets, (0, None)])
        )
        parts = map(_restored, translation.parts, texts, texts_read)
        return " ".join(filter(None, parts))
    else:
        alignment = Alignment(translation, protected, text_read)
        spans = _Spans(alignment).of(protected.marks)
        elements = _written(alignment.units, spans, protected)
        text = Joiner(protected, alignment.source_units).joined(elements)
    return f"{protected.before}{text}{protected.after}"


def _escaped(text, protected):
    return html.escape(text, quote=False) if protected.is_html else text


class _Span(NamedTuple):
    """The units that a mark encloses, and the number of marks around it."""

    mark: Mark | None
    start: int
    stop: int
    depth: int


def _written(units, spans, protected):
    """Returns units, tags and items in the order of the result."""
    elements: list[Element] = []

    def write_piece(piece, unit=None, is_begin=False, is_end=False):
        if piece is not None:
            literal = protected.pieces[piece].literal
            elements.append(Element(literal, piece, unit, is_begin, is_end))

    def write_units(start, stop):
        for unit in units[start:stop]:
            if unit.piece is None:
                elements.append(Element(_escaped(unit.text, protected), None, unit))
            else:
                write_piece(unit.piece, unit)

    position, open_spans = 0, []
    end = _Span(None, len(units), len(units), depth=0)
    for span in (*spans, end):
        while len(open_spans) > span.depth:
            inner = open_spans.pop()
            write_units(position, inner.stop)
            write_piece(inner.mark.last, is_end=inner.start < inner.stop)
            position = inner.stop
        write_units(position, span.start)
        position = span.start
        if span is not end:
            write_piece(span.mark.first, is_begin=span.start < span.stop)
            open_spans.append(span)
    return elements


class _Spans:
    """Chooses the units of a translation that each mark encloses."""

    def __init__(self, alignment: Alignment):
        self._alignment, self._before = alignment, alignment.before
        self._words_before = alignment.words_before
        self._written_pieces = {unit.piece for unit in alignment.units if unit.piece is not None}

    def of(self, marks: list[Mark]) -> list[_Span]:
        """Returns the spans of marks and of the marks inside them, outer spans first."""
        spans = []
        # A stack, because marks may be nested more deeply than function calls.
        stack = self._siblings(marks, 0, len(self._alignment.units), 0)[::-1]
        while stack:
            spans.append(span := stack.pop())
            children = span.mark.children
            stack += self._siblings(children, span.start, span.stop, span.depth + 1)[::-1]
        return spans

    def _siblings(self, marks, lower, upper, depth):
        """Returns the spans of sibling marks, in order, without overlaps."""
        marks = [mark for mark in marks if mark.first not in self._written_pieces]
        ranges, begin, end = self._open_ranges(marks, lower, upper)
        elements = {
            index: mark
            for index, mark in enumerate(marks)
            if mark.is_element
            and index not in ranges
            and self._before[mark.stop] > self._before[mark.start]
        }
        if elements and begin < end:
            ranges |= self._ranges(elements, begin, end)
        ranges |= self._points(marks, ranges, begin, end)
        order = sorted(ranges, key=lambda index: (ranges[index], index))
        return [_Span(marks[index], *ranges[index], depth) for index in order]

    def _open_ranges(self, marks, lower, upper):
        """Returns the ranges of elements that began or end in another text, and the units between.

        Returns:
            Ranges by the index of the mark, and the first unit and the end of the rest.
        """
        ranges: dict[int, tuple[int, int]] = {}
        begin, end = lower, upper
        min_words = sum(mark.min_words for mark in marks)
        if marks and (first := marks[0]).is_element and first.first is None:
            min_words -= first.min_words
            begin = self._boundary(first.stop, begin, end, first.min_words, min_words)
            ranges[0] = (lower, begin)
        if marks and (last := marks[-1]).is_element and last.last is None:
            min_words -= last.min_words
            end = self._boundary(last.start, begin, end, min_words, last.min_words)
            ranges[len(marks) - 1] = (end, upper)
        return ranges, begin, end

    def _points(self, marks, ranges, lower, upper):
        """Returns empty ranges, outside all `ranges`, for the marks that have none there."""
        is_inside = np.zeros(upper - lower + 1, bool)
        for start, stop in ranges.values():
            is_inside[max(start - lower + 1, 0) : max(stop - lower, 0)] = True
        points = {}
        for index, mark in enumerate(marks):
            if index in ranges:
                continue
            position = self._before[mark.start]
            unit = self._alignment.units_at_cuts.get(position, -1)
            if not lower <= unit <= upper or is_inside[unit - lower]:
                gains = np.where(is_inside, -np.inf, self._gains_before(position, lower, upper))
                unit = lower + int(np.argmax(gains))
            points[index] = (unit, unit)
        return points

    def _boundary(self, offset, lower, upper, min_words, min_words_after):
        """Returns the unit that begins best at an offset of the source.

        At least `min_words` are before it and `min_words_after` after it, if there are so many.
        """
        words = self._words_before
        first = np.searchsorted(words, words[lower] + min_words)
        last = np.searchsorted(words, words[upper] - min_words_after, "right") - 1
        first = min(max(first, lower), upper)
        last = max(min(last, upper), first)
        gains = self._gains_before(self._before[offset], lower, upper)
        return first + int(np.argmax(gains[first - lower : last - lower + 1]))

    def _gains_before(self, position, lower, upper):
        """Returns for each boundary between units how well it agrees with a source position.

        Returns:
            Float `(upper - lower + 1,)`: units before the boundary should attend to words before
            the position, and later units to later words.
        """
        if not self._before[-1]:  # The source has no words.
            return np.arange(upper - lower + 1.0)
        gains = self._alignment.attention_before(position, position)[lower:upper] - 0.5
        return np.concatenate([[0.0], np.cumsum(gains)])

    def _ranges(self, elements, lower, upper):
        """Returns the ranges of elements with words, by their keys in `elements`.

        An element gets the units that attend more to words in it than to others. Without such units
        it gets the nearest ones, because an element with words never loses all.
        """
        ranges: dict[int, tuple[int, int]] = {}
        is_free = np.ones(upper - lower, bool)
        words = self._words_before[lower : upper + 1]
        missing = sum(mark.min_words for mark in elements.values())
        has_enough = missing <= words[-1] - words[0]
        for must in (False, True):
            for index, mark in elements.items():
                size = mark.min_words
                if index in ranges or (must and not size):
                    continue
                gains = self._alignment.attention_inside(mark)[lower:upper] - 0.5
                if must:  # The nearest of equal units, and rather a word than a sign.
                    near = np.argmax(self._gains_before(self._before[mark.start], lower, upper))
                    gains -= TINY * np.abs(np.arange(len(gains)) + 0.5 - near)
                    gains -= _SIGN_PENALTY * self._alignment.is_sign[lower:upper]
                gains[~is_free] = -_TAKEN
                start, stop, total = _best_range(gains)
                if total <= TINY and not must:
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
                    ranges[index] = (lower + start, lower + stop)
                    missing -= size
                elif has_enough and size:
                    return self._ranges_in_order(elements, lower)
        return ranges

    def _ranges_in_order(self, elements, lower):
        """Returns the smallest ranges of elements, one after the other."""
        ranges, words = {}, self._words_before
        for index, mark in elements.items():
            if mark.min_words:
                upper = int(np.searchsorted(words, words[lower] + mark.min_words))
                ranges[index] = (lower, upper)
                lower = upper
        return ranges


def _best_range(gains):
    """Returns the range with the largest sum, and the sum."""
    sums = np.concatenate([[0.0], np.cumsum(gains)])
    lowest = np.minimum.accumulate(sums[:-1])
    totals = sums[1:] - lowest
    stop = int(np.argmax(totals >= totals.max() - TINY))
    start = int(np.flatnonzero(sums[: stop + 1] <= lowest[stop] + TINY)[-1])
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
