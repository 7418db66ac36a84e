"""Puts the markup of a source into its translation.

An element encloses the words that attended to the words in it. The result contains every tag and
item of the source once, whatever the model writes. There are three steps: align the words of both
sides, choose a span of words for each element, and write words and tags.
"""

import bisect
import dataclasses
import html
import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from keras_transformer.extras.markup.aligning import TINY, Alignment, begins_of_parts, part_offsets
from keras_transformer.extras.markup.joining import Joiner, Placed, between_words, space_of
from keras_transformer.extras.markup.protecting import Protected, Span, divide

_TAKEN = 1e4  # More than the words of a translation can gain.
_SIGN_PENALTY = 1e-2
_SPACES = re.compile(r"\s+")


_Text = TypeVar("_Text", bound=Any)  # an `engine.Translation`


def restore(
    translation: _Text,
    protected: Protected,
    texts_read: Sequence[str] | None = None,
    tokenizers: tuple[Any, Any] = (None, None),
) -> _Text:
    """Puts the markup of a source into its translation, and into the alternatives.

    The translation of an attribute in a later text is written there, and its own text is empty.
    The later text's alternatives also get the first translation of the attribute.

    Args:
        translation: Translation of `protected.text_to_read`. Without an alignment, words count as
            in the order of the source.
        protected: The source.
        texts_read: That text as the model has read it, with annotated terms; or the texts whose
            translations are its `parts`.
        tokenizers: `Tokenizer`s of the source and of the translation, which know where the tokens
            of a text are that they have normalized. None if tokens are never changed.
    """
    alternatives = tuple(
        restore(alternative, protected, texts_read, tokenizers)
        for alternative in translation.alternatives
    )
    text = _restored(translation, protected, texts_read or [protected.text], tokenizers)
    if protected.value is not None:
        protected.value.text, text = text, ""
    return dataclasses.replace(translation, text=text, alternatives=alternatives)


def _restored(translation, protected, texts_read, tokenizers):
    parts = translation.parts
    if len(texts_read) == 1:
        parts = [part for part in parts if part.text.strip() or part.source_tokens]
    parts = parts if len(parts) > 1 else [translation]
    if not protected.source_parts and "<ph_" not in translation.text:
        texts = [_SPACES.sub(_space_of, part.text.strip()) for part in parts]
        text = _escaped(_joined(translation.text, parts, texts), protected)
    elif len(parts) > 1:
        # Each by itself, because time and memory grow with the product of both sides' lengths.
        return _restored_parts(translation, parts, protected, texts_read, tokenizers)
    else:
        alignment = Alignment(translation, protected, "".join(texts_read), tokenizers)
        target_spans = _TargetSpans(alignment).of(protected.spans)
        all_placed = _written(alignment.words, target_spans, protected)
        text = Joiner(protected, alignment.source_words).joined(all_placed)
    return f"{protected.before}{_quoted(text, protected.quote)}{protected.after}"


def _space_of(match):
    return space_of(match[0])


def _quoted(text, quote):
    """Returns the value of an attribute between two quotation marks, or another text as it is."""
    return text.replace(quote, "&#39;" if quote == "'" else "&quot;") if quote else text


def _restored_parts(translation, parts, protected, texts_read, tokenizers):
    """Returns the restored parts of a text, with the white space between their translations."""
    text_read = "".join(texts_read)
    if len(texts_read) > 1:
        sizes = [len("".join(text.split())) for text in texts_read]
        begins = np.cumsum([0, *sizes[:-1]])
    else:  # An engine has split a long text.
        begins = begins_of_parts(parts, text_read, tokenizers[0])
    offsets = part_offsets(begins[1:], protected.text, text_read)
    texts = divide(protected, [start for start, _ in offsets])
    bounds = itertools.pairwise([0, *(start for _, start in offsets), len(text_read)])
    restored = [
        _restored(part, text, [text_read[start:stop]], tokenizers)
        for part, text, (start, stop) in zip(parts, texts, bounds, strict=True)
    ]
    return _joined(translation.text, parts, restored)


def _joined(translation, parts, texts):
    """Joins the restored texts of parts with the white space between them in the translation."""
    pieces, position = [], 0
    for part, piece in zip(parts, texts, strict=True):
        text = part.text.strip()
        start = translation.index(text, position)
        if pieces:
            pieces[-1] = pieces[-1].rstrip()
            pieces += [translation[position:start], piece.lstrip()]
        else:
            pieces = [piece]
        position = start + len(text)
    return "".join(pieces)


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
            literal = protected.source_parts[index].written
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
        self._is_between_words = between_words(alignment.words)
        indices = (word.part_index for word in alignment.words)
        self._written_parts = {index for index in indices if index is not None}
        source_parts = alignment.source_parts
        self._written_starts = sorted(source_parts[index].start for index in self._written_parts)

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
            and (span.has_text or self._has_written_item(span))
        }
        if elements and begin < end:
            ranges |= _ElementRanges(self._alignment, elements, begin, end).chosen()
        ranges |= self._points(spans, ranges, begin, end)
        order = sorted(ranges, key=lambda index: (ranges[index], index))
        return [_TargetSpan(spans[index], *ranges[index], depth) for index in order]

    def _has_written_item(self, span):
        """Returns whether the model has written the placeholder of an item in an element."""
        index = bisect.bisect_left(self._written_starts, span.start)
        return index < len(self._written_starts) and self._written_starts[index] < span.stop

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
        """Returns empty ranges, outside all `ranges`, for the spans that have none there.

        They are not inside of words, as far as there are other places.
        """
        is_inside = np.zeros(upper - lower + 1, bool)
        for start, stop in ranges.values():
            is_inside[max(start - lower + 1, 0) : max(stop - lower, 0)] = True
        is_excluded = is_inside | ~self._is_between_words[lower : upper + 1]
        if is_excluded.all():
            is_excluded = is_inside
        points = {}
        for index, span in enumerate(spans):
            if index in ranges:
                continue
            # The middle of a stand-in that the model has not written.
            position = (self._before[span.start] + self._before[span.stop]) / 2
            word = self._alignment.words_at_cuts.get(position, -1)
            if not lower <= word <= upper or is_inside[word - lower]:
                gains = np.where(
                    is_excluded, -np.inf, _gains_before(self._alignment, position, lower, upper)
                )
                word = lower + int(np.argmax(gains))
            points[index] = (word, word)
        return points

    def _boundary(self, offset, lower, upper, min_words, min_words_after):
        """Returns the word that begins best at an offset of the source.

        At least `min_words` are before it and `min_words_after` after it, if there are enough.
        """
        counts = self._num_words_before
        first = np.searchsorted(counts, counts[lower] + min_words)
        last = np.searchsorted(counts, counts[upper] - min_words_after, "right") - 1
        first = min(max(first, lower), upper)
        last = max(min(last, upper), first)
        gains = _gains_before(self._alignment, self._before[offset], lower, upper)
        return first + int(np.argmax(gains[first - lower : last - lower + 1]))


def _gains_before(alignment, position, lower, upper):
    """Returns for each boundary between words how well it agrees with a source position.

    Returns:
        Float `(upper - lower + 1,)`: words before the boundary should attend to words before
        the position, and later words to later words.
    """
    if not alignment.before[-1]:  # The source has no words.
        return np.arange(upper - lower + 1.0)
    gains = alignment.attention_before(position, position)[lower:upper] - 0.5
    return np.concatenate([[0.0], np.cumsum(gains)])


class _ElementRanges:
    """Chooses the words of sibling elements, so that each word belongs to at most one of them.

    Args:
        alignment: The words of the translation, and what they attend to.
        elements: Elements with words, by the keys of the result.
        lower: The first word that they may enclose.
        upper: The end of these words.
    """

    def __init__(self, alignment: Alignment, elements: dict[int, Span], lower: int, upper: int):
        self._alignment, self._elements = alignment, elements
        self._lower, self._upper = lower, upper
        self._counts = alignment.num_words_before[lower : upper + 1]
        self._is_free = np.ones(upper - lower, bool)
        self._ranges: dict[int, tuple[int, int]] = {}
        # Number of words that elements without a range need: an element with words never loses all.
        self._needed = sum(span.min_words for span in elements.values())
        self._has_enough = self._needed <= self._counts[-1] - self._counts[0]

    def chosen(self) -> dict[int, tuple[int, int]]:
        """Returns the ranges of elements by their keys; an element without need may have none."""
        if self._add_confident_ranges() and self._add_forced_ranges():
            return self._ranges
        return self._ranges_in_order()

    def _add_confident_ranges(self):
        """Gives elements the words that attend more to words in them than to other words.

        Returns:
            False if an element that needs words cannot have them.
        """
        for index, span in self._elements.items():
            gains = self._among_free(self._gains(span))
            start, stop, total = _best_range(gains)
            if total <= TINY:
                continue
            count = self._counts[stop] - self._counts[start]
            max_words = self._max_words(span) if self._has_enough else count
            if count < span.min_words:
                start, stop = _best_window(gains, self._counts, span.min_words)
            elif count > max_words:
                begin, end = _best_window(
                    gains[start:stop], self._counts[start : stop + 1], max_words
                )
                start, stop = start + begin, start + end
            if not self._take(index, start, stop):
                return False
        return True

    def _add_forced_ranges(self):
        """Gives the nearest words to elements that need words and have none.

        Returns:
            False if an element cannot have them.
        """
        for index, span in self._elements.items():
            if index in self._ranges or not span.min_words:
                continue
            position = self._alignment.before[span.start]
            boundaries = _gains_before(self._alignment, position, self._lower, self._upper)
            gains = self._gains(span)
            # The nearest of equal words, and rather a word than a sign.
            gains -= TINY * np.abs(np.arange(len(gains)) + 0.5 - np.argmax(boundaries))
            gains -= _SIGN_PENALTY * self._alignment.is_sign[self._lower : self._upper]
            window = _best_window(self._among_free(gains), self._counts, span.min_words)
            if not self._take(index, *window):
                return False
        return True

    def _ranges_in_order(self):
        """Returns the smallest ranges of elements, one after the other."""
        ranges, counts, lower = {}, self._alignment.num_words_before, self._lower
        for index, span in self._elements.items():
            if span.min_words:
                upper = int(np.searchsorted(counts, counts[lower] + span.min_words))
                ranges[index] = (lower, upper)
                lower = upper
        return ranges

    def _gains(self, span):
        """Returns how much more each word attends to an element than to the rest.

        An element around signs encloses no other words.
        """
        gains = self._alignment.attention_inside(span)[self._lower : self._upper] - 0.5
        if span.min_words:
            return gains
        return np.where(self._alignment.is_sign[self._lower : self._upper], gains, -_TAKEN)

    def _among_free(self, gains):
        return np.where(self._is_free, gains, -_TAKEN)

    def _max_words(self, span):
        """Returns the number of words that an element may take and leave others what they need."""
        free_words = np.diff(self._counts)[self._is_free].sum()
        return free_words - (self._needed - span.min_words)

    def _take(self, index, start, stop):
        """Gives free words to an element; returns False if it needs words and these are not."""
        min_words = self._elements[index].min_words
        if start < stop and self._is_free[start:stop].all():
            self._is_free[start:stop] = False
            self._ranges[index] = (self._lower + start, self._lower + stop)
            self._needed -= min_words
            return True
        return not (self._has_enough and min_words)


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
