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
from keras_transformer.steps.markup.joining import Joiner, Placed
from keras_transformer.steps.markup.protecting import Protected, Span, divide

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
    if not protected.source_parts and "<ph_" not in translation.text:
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
        target_spans = _TargetSpans(alignment).of(protected.spans)
        all_placed = _written(alignment.words, target_spans, protected)
        text = Joiner(protected, alignment.source_words).joined(all_placed)
    return f"{protected.before}{text}{protected.after}"


def _escaped(text, protected):
    return html.escape(text, quote=False) if protected.is_html else text


class _TargetSpan(NamedTuple):
    """The words of a translation that a span encloses, and the number of spans around it."""

    span: Span | None
    start: int
    stop: int
    depth: int


def _written(words, target_spans, protected):
    """Returns words, tags and items in the order of the result."""
    all_placed: list[Placed] = []

    def write_part(index, word=None, is_begin=False, is_end=False):
        if index is not None:
            literal = protected.source_parts[index].literal
            all_placed.append(Placed(literal, index, word, is_begin, is_end))

    def write_words(start, stop):
        for word in words[start:stop]:
            if word.part_index is None:
                all_placed.append(Placed(_escaped(word.text, protected), None, word))
            else:
                write_part(word.part_index, word)

    position, open_spans = 0, []
    end = _TargetSpan(None, len(words), len(words), depth=0)
    for target_span in (*target_spans, end):
        while len(open_spans) > target_span.depth:
            inner = open_spans.pop()
            write_words(position, inner.stop)
            write_part(inner.span.last, is_end=inner.start < inner.stop)
            position = inner.stop
        write_words(position, target_span.start)
        position = target_span.start
        if target_span is not end:
            write_part(target_span.span.first, is_begin=target_span.start < target_span.stop)
            open_spans.append(target_span)
    return all_placed


class _TargetSpans:
    """Chooses the words of a translation that each span encloses."""

    def __init__(self, alignment: Alignment):
        self._alignment, self._before = alignment, alignment.before
        self._num_words_before = alignment.num_words_before
        indices = (word.part_index for word in alignment.words)
        self._written_parts = {index for index in indices if index is not None}

    def of(self, spans: list[Span]) -> list[_TargetSpan]:
        """Returns the target spans of spans and of the spans inside them, outer ones first."""
        target_spans = []
        # A stack, because spans may be nested more deeply than function calls.
        stack = self._siblings(spans, 0, len(self._alignment.words), 0)[::-1]
        while stack:
            target_spans.append(target_span := stack.pop())
            span, start, stop, depth = target_span
            stack += self._siblings(span.children, start, stop, depth + 1)[::-1]
        return target_spans

    def _siblings(self, spans, lower, upper, depth):
        """Returns the target spans of sibling spans, in order, without overlaps."""
        spans = [span for span in spans if span.first not in self._written_parts]
        ranges, begin, end = self._open_ranges(spans, lower, upper)
        elements = {
            index: span
            for index, span in enumerate(spans)
            if span.is_element
            and index not in ranges
            and self._before[span.stop] > self._before[span.start]
        }
        if elements and begin < end:
            ranges |= self._ranges(elements, begin, end)
        ranges |= self._points(spans, ranges, begin, end)
        order = sorted(ranges, key=lambda index: (ranges[index], index))
        return [_TargetSpan(spans[index], *ranges[index], depth) for index in order]

    def _open_ranges(self, spans, lower, upper):
        """Returns the ranges of elements that began or end in another text, and the words between.

        Returns:
            Ranges by the index of the span, and the first word and the end of the rest.
        """
        ranges: dict[int, tuple[int, int]] = {}
        begin, end = lower, upper
        min_words = sum(span.min_words for span in spans)
        if spans and (first := spans[0]).is_element and first.first is None:
            min_words -= first.min_words
            begin = self._boundary(first.stop, begin, end, first.min_words, min_words)
            ranges[0] = (lower, begin)
        if spans and (last := spans[-1]).is_element and last.last is None:
            min_words -= last.min_words
            end = self._boundary(last.start, begin, end, min_words, last.min_words)
            ranges[len(spans) - 1] = (end, upper)
        return ranges, begin, end

    def _points(self, spans, ranges, lower, upper):
        """Returns empty ranges, outside all `ranges`, for the spans that have none there."""
        is_inside = np.zeros(upper - lower + 1, bool)
        for start, stop in ranges.values():
            is_inside[max(start - lower + 1, 0) : max(stop - lower, 0)] = True
        points = {}
        for index, span in enumerate(spans):
            if index in ranges:
                continue
            position = self._before[span.start]
            word = self._alignment.words_at_cuts.get(position, -1)
            if not lower <= word <= upper or is_inside[word - lower]:
                gains = np.where(is_inside, -np.inf, self._gains_before(position, lower, upper))
                word = lower + int(np.argmax(gains))
            points[index] = (word, word)
        return points

    def _boundary(self, offset, lower, upper, min_words, min_words_after):
        """Returns the word that begins best at an offset of the source.

        At least `min_words` are before it and `min_words_after` after it, if there are so many.
        """
        counts = self._num_words_before
        first = np.searchsorted(counts, counts[lower] + min_words)
        last = np.searchsorted(counts, counts[upper] - min_words_after, "right") - 1
        first = min(max(first, lower), upper)
        last = max(min(last, upper), first)
        gains = self._gains_before(self._before[offset], lower, upper)
        return first + int(np.argmax(gains[first - lower : last - lower + 1]))

    def _gains_before(self, position, lower, upper):
        """Returns for each boundary between words how well it agrees with a source position.

        Returns:
            Float `(upper - lower + 1,)`: words before the boundary should attend to words before
            the position, and later words to later words.
        """
        if not self._before[-1]:  # The source has no words.
            return np.arange(upper - lower + 1.0)
        gains = self._alignment.attention_before(position, position)[lower:upper] - 0.5
        return np.concatenate([[0.0], np.cumsum(gains)])

    def _ranges(self, elements, lower, upper):
        """Returns the ranges of elements with words, by their keys in `elements`.

        An element gets the words that attend more to words in it than to others. Without such words
        it gets the nearest ones, because an element with words never loses all.
        """
        ranges: dict[int, tuple[int, int]] = {}
        is_free = np.ones(upper - lower, bool)
        counts = self._num_words_before[lower : upper + 1]
        missing = sum(span.min_words for span in elements.values())
        has_enough = missing <= counts[-1] - counts[0]
        for must in (False, True):
            for index, span in elements.items():
                size = span.min_words
                if index in ranges or (must and not size):
                    continue
                gains = self._alignment.attention_inside(span)[lower:upper] - 0.5
                if must:  # The nearest of equal words, and rather a word than a sign.
                    near = np.argmax(self._gains_before(self._before[span.start], lower, upper))
                    gains -= TINY * np.abs(np.arange(len(gains)) + 0.5 - near)
                    gains -= _SIGN_PENALTY * self._alignment.is_sign[lower:upper]
                gains[~is_free] = -_TAKEN
                start, stop, total = _best_range(gains)
                if total <= TINY and not must:
                    continue
                count = counts[stop] - counts[start]
                free_words = np.diff(counts)[is_free].sum()
                max_words = free_words - (missing - size) if has_enough else count
                if must or count < size:
                    start, stop = _best_window(gains, counts, size)
                elif count > max_words:
                    begin, end = _best_window(
                        gains[start:stop], counts[start : stop + 1], max_words
                    )
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
        ranges, counts = {}, self._num_words_before
        for index, span in elements.items():
            if span.min_words:
                upper = int(np.searchsorted(counts, counts[lower] + span.min_words))
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


def _best_window(gains, counts, size):
    """Returns the range with at least `size` words that has the largest sum, or an empty range.

    Args:
        gains: Float `(words,)`.
        counts: Number of words before each word, `(words + 1,)`.
        size: Number of words.
    """
    starts = np.arange(len(gains))
    stops = np.maximum(np.searchsorted(counts, counts[starts] + size), starts + 1)
    is_complete = counts[np.minimum(stops, len(gains))] - counts[starts] >= size
    if not is_complete.any():
        return 0, 0
    sums = np.concatenate([[0.0], np.cumsum(gains)])
    totals = np.where(is_complete, sums[np.minimum(stops, len(gains))] - sums[starts], -np.inf)
    start = int(np.argmax(totals))
    return start, int(stops[start])
