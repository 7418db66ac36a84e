"""Aligns the words of a translation with the words of its source.

A position is the number of characters before it, without spaces.
"""

import bisect
import itertools
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import regex

from keras_transformer.engine.steps.glossary import origins
from keras_transformer.extras.markup.joining import Word, space_of
from keras_transformer.extras.markup.protecting import STAND_IN, Protected, Span
from keras_transformer.extras.markup.token_positions import positions_before, token_spans
from keras_transformer.text.patterns import GRAPHEME, UNIT
from keras_transformer.text.symbols import PLACEHOLDER
from keras_transformer.text.tags import TAG
from keras_transformer.text.vocabulary import SPACE

TINY = 1e-7
"""A difference of attention that only decides between equal choices."""

_WORD = regex.compile(rf"{PLACEHOLDER.pattern}|{STAND_IN.pattern}|{UNIT}", regex.V1)
_GRAPHEME = regex.compile(GRAPHEME)
_WORD_CHARACTER, _NUMBER_AT_END = re.compile(r"\w"), re.compile(r"(?<!\d)\d+\Z")
_SPECIAL, _UNKNOWN = ("<s>", "</s>", "<pad>"), "<unk>"


class Alignment:
    """The words, signs and placeholders of a translation, and what they attend to.

    If the translation has enough characters, there are as many words as the elements need.

    Args:
        translation: Translation of `protected.text_to_read`.
        protected: The source.
        text_read: That text with annotated terms, if the model has read them.
        tokenizers: `Tokenizer`s of the source and of the translation; see `token_spans`.

    Attributes:
        before: Position of each offset in the source.
        source_words: Match of each word of the source.
        source_parts: Its tags and items.
        words: `Word`s of the translation.
        is_sign: True for each word that is a sign or an item.
        num_words_before: Number of words before each word, and of all, without placeholders.
        words_at_cuts: Words that begin at a tag or an item inside a copied word, or between copied
            words that touch, by the position of the tag.
    """

    def __init__(
        self,
        translation: Any,
        protected: Protected,
        text_read: str | None,
        tokenizers: tuple[Any, Any] = (None, None),
    ):
        self.before, self._text_to_read = positions_before(protected.text), protected.text_to_read
        self.source_words = list(_WORD.finditer(protected.text))
        offsets = np.array([match.span() for match in self.source_words], int).reshape(-1, 2)
        self._source_begins, self._source_ends = self.before[offsets].T
        self._cuts: dict[int, set[int]] = {}  # positions of tags inside copied source words
        attention = _attention(translation, protected.text, text_read, tokenizers)
        spans = list(_all_spans(protected.spans))
        self.source_parts = protected.source_parts
        self._source_texts = {match[0] for match in self.source_words}
        self._items = {  # by the name in the text: a placeholder or a stand-in
            protected.text[span.start : span.stop]: span
            for span in spans
            if not span.is_element and self.source_parts[span.first].is_item
        }
        words_read = self._read_words(translation.text, attention)
        self._set_columns(words_read)  # Copies are found by attention.
        self.words = self._with_copied_words(words_read, spans)
        missing = sum(span.min_words for span in protected.spans)
        missing -= sum(word.part_index is None for word in self.words)
        if missing > 0:
            self.words = _with_parts(self.words, missing)
        if self.words is not words_read:
            self._set_columns(self.words)
        is_word = np.array([word.part_index is None for word in self.words], bool)
        begins = [_WORD_CHARACTER.match(word.text) is not None for word in self.words]
        self.is_sign = ~(is_word & np.array(begins, bool))
        self.num_words_before = np.cumsum([0, *is_word])
        self.words_at_cuts = self._words_at_cuts()

    def _read_words(self, text, attention):
        """Returns the words of a text; only the first copy of each placeholder is a word."""
        items = dict(self._items)
        if attention is None:  # Each character has its own position, in order.
            size = max(int(self.before[-1]), 1)
            ends = np.arange(1, self.before[-1] + 1) / size
            middles, self._middles = ends - 0.5 / size, np.zeros(0)
            scale = max(int(positions_before(text)[-1]), 1)
        else:
            weights, middles, ends, self._middles = attention
            scale = 1
        middles, ends = middles.tolist(), ends.tolist()  # Faster to search one by one.
        words, slices, end, last = [], [], 0, 0
        for match in _WORD.finditer(text):
            begin, end = end, end + len(match[0])
            tokens = _between(middles, ends, begin / scale, end / scale)
            has_space = text[max(match.start() - 1, 0)].isspace()
            space, last = space_of(text[last : match.start()]), match.end()
            part_index, positions = None, (tokens if attention is None else (np.nan, np.nan))
            if match[0] in self._items or self._is_invented(match[0]):
                item = items.pop(match[0], None)
                if item is None:
                    continue  # The model has invented the name, or written it twice.
                part_index = item.first
                positions = self.before[item.start], self.before[item.stop]
            slices.append(tokens)
            is_placeholder = part_index is not None
            words.append(
                Word(match[0], has_space, len(words), *positions, is_placeholder, part_index, space)
            )
        rows = np.zeros((len(words), len(self._middles)))
        if attention is not None and slices:
            starts, stops = np.array(slices).T
            weights_before = np.concatenate([rows[:1], np.cumsum(weights, axis=0)])
            rows = weights_before[stops] - weights_before[starts]
            rows /= np.maximum(rows.sum(axis=1, keepdims=True), 1e-9)
        self._cumulated = np.cumsum(np.pad(rows, ((0, 0), (1, 0))), axis=1)
        return words

    def _is_invented(self, text):
        """Returns whether a word looks like the name of an item, but is none of the source."""
        is_stand_in = STAND_IN.fullmatch(text) and any(map(STAND_IN.fullmatch, self._items))
        return text.startswith("<ph_") or (is_stand_in and text not in self._source_texts)

    def _set_columns(self, words):
        """Sets what `attention_before` reads of words."""
        self._rows = np.array([word.row for word in words], int)
        self._begins = np.array([word.begin for word in words], float)
        self._ends = np.array([word.end for word in words], float)
        self._is_exact = np.array([word.is_exact for word in words], bool)
        self._is_known = ~np.isnan(self._begins)

    def _words_at_cuts(self):
        cuts = set().union(*self._cuts.values())
        begins = {index: word.begin for index, word in enumerate(self.words) if word.is_exact}
        words_at_cuts = {begin: index for index, begin in begins.items() if begin in cuts}
        for index, (left, right) in enumerate(itertools.pairwise(self.words), 1):
            if left.is_exact and right.is_exact and left.end == right.begin:
                words_at_cuts.setdefault(right.begin, index)
        return words_at_cuts

    def attention_before(self, position: int, exact_position: int) -> np.ndarray:
        """Returns the attention of each word to the source before a position.

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

    def attention_inside(self, span: Span) -> np.ndarray:
        """Returns the attention of each word to an element and the words that are partly in it."""
        start, stop = self.before[span.start], self.before[span.stop]
        (begin, _), (_, end) = self._span_of_word(start), self._span_of_word(stop)
        return self.attention_before(end, stop) - self.attention_before(begin, start)

    def _span_of_word(self, position):
        """Returns begin and end of the word around a position, unless the word was copied."""
        word = self._source_word_around(position)
        if word is None or word in self._cuts:
            return position, position
        return self._source_begins[word], self._source_ends[word]

    def _attention_to_word(self, word):
        begin, end = self._source_begins[word], self._source_ends[word]
        return self.attention_before(end, end) - self.attention_before(begin, begin)

    def _source_word_around(self, position):
        """Returns the source word that a position is inside of, or None."""
        word = int(np.searchsorted(self._source_begins, position)) - 1
        return word if word >= 0 and position < self._source_ends[word] else None

    def _with_copied_words(self, words, spans):
        """Returns words; where a word with tags inside was copied, its parts are words."""
        cuts_by_source_word = self._source_words_with_tags(spans)
        if not cuts_by_source_word:
            return words
        copies = copied_words(
            [match[0] for match in self.source_words],
            [word.text for word in words],
            self._attention_to_word,
            cuts_by_source_word,
        )
        words_by_number: dict[str, list[int]] = {}
        starts = {int(self.before[span.start]) for span in spans}
        parts: dict[int, list[Word]] = {}
        for source_word, cuts in cuts_by_source_word.items():
            text, begin = self.source_words[source_word][0], int(self._source_begins[source_word])
            positions = [begin, *sorted(cuts), begin + len(text)]
            if source_word in copies:
                word, size = copies[source_word], len(text)
            elif len(cuts) == 1 and positions[1] in starts:
                # A word with the number of a footnote: only the number is copied.
                size = positions[2] - positions[1]
                words_by_number = words_by_number or _words_by_number(words)
                candidates = words_by_number.get(text[-size:], ())
                word = self._best_copy(source_word, candidates, parts)
                if word is None:
                    continue
                if len(words[word].text) == size:
                    positions = positions[1:]
            else:
                continue
            parts[word] = _cut(words[word], size, positions)
            self._cuts[source_word] = cuts
        if not parts:
            return words
        return [part for index, word in enumerate(words) for part in parts.get(index, [word])]

    def _source_words_with_tags(self, spans):
        """Returns the source words with a tag inside or at the border of a touching word.

        The values are the positions of the tags inside.
        """
        cuts_by_source_word: dict[int, set[int]] = {}
        # Its words are those of the text with all spaces.
        words_read = _WORD.finditer(self._text_to_read)
        touching = {
            int(self._source_ends[index]): (index, index + 1)
            for index, (left, right) in enumerate(itertools.pairwise(words_read))
            if left.end() == right.start()
        }
        for span in spans:
            for offset in (span.start, span.stop):
                position = int(self.before[offset])
                if (source_word := self._source_word_around(position)) is not None:
                    cuts_by_source_word.setdefault(source_word, set()).add(position)
            # A token may have both a sign and a word, of which only one is in an element.
            for offset in (span.start, span.stop):
                for source_word in touching.get(int(self.before[offset]), ()):
                    cuts_by_source_word.setdefault(source_word, set())
        return cuts_by_source_word

    def _best_copy(self, source_word, words, parts):
        """Returns the word that attends most to a source word and has no parts yet, or None."""
        attention = self._attention_to_word(source_word)
        words = [word for word in words if word not in parts and attention[word] > 0]
        return max(words, key=lambda word: attention[word], default=None)


def copied_words(
    source: Sequence[str],
    target: Sequence[str],
    attention: Callable[[int], np.ndarray],
    wanted: Collection[int],
) -> dict[int, int]:
    """Returns the target words that are copies of source words, in any case.

    Of several equal target words, a copy belongs to the source word that it attends to most. Where
    attention tells nothing, the source gives the order.

    Args:
        source: Words of the source.
        target: Words of the translation.
        attention: Returns the attention of each target word to a source word, float `(target,)`.
        wanted: Indices of the source words whose copies are wanted.

    Returns:
        Index of the copy by the index of the source word, without words that have none.
    """
    equal_in_source = _indices_by_text(word.casefold() for word in source)
    equal_in_target = _indices_by_text(word.casefold() for word in target)
    copies = {}
    for text in {source[index].casefold() for index in wanted}:
        originals = equal_in_source[text]
        length = len(source[originals[0]])
        candidates = [
            index for index in equal_in_target.get(text, ()) if len(target[index]) == length
        ]
        if not candidates:
            continue
        # One row at a time: all rows of a word that a text repeats would fill the memory.
        source_order, target_order = (
            np.linspace(0, 1, len(words)) for words in (originals, candidates)
        )
        best_weights, owners = np.full(len(candidates), -np.inf), np.zeros(len(candidates), int)
        for row, original in enumerate(originals):
            distances = np.abs(source_order[row] - target_order)
            weights = attention(original)[candidates] - TINY * distances
            is_more = weights > best_weights
            best_weights[is_more], owners[is_more] = weights[is_more], row
        for row, original in enumerate(originals):
            owned = np.flatnonzero(owners == row)
            if original in wanted and len(owned):
                copies[original] = candidates[owned[np.argmax(best_weights[owned])]]
    return copies


def _attention(translation, text, text_read, tokenizers=(None, None)):
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
    begins, ends = token_spans(
        [translation.source_tokens[i] for i in source], text_read, tokenizers[0]
    )
    middles = positions[np.minimum((begins + ends) // 2, len(positions) - 1)]
    order = np.argsort(middles, kind="stable")
    order = order[middles[order] >= 0]  # -1: symbols that begin annotations
    begins, ends = token_spans(
        [translation.tokens[i] for i in target], translation.text, tokenizers[1], is_written=True
    )
    return weights[:, order], (begins + ends) / 2, ends, middles[order] + 0.5


def _positions(text, text_read):
    """Returns the positions in a text of the characters that the model has read."""
    if "".join(text_read.split()) != "".join(text.split()):
        return origins(text_read)
    return np.arange(positions_before(text)[-1])


def part_offsets(begins_read: Sequence[int], text: str, text_read: str) -> list[tuple[int, int]]:
    """Returns where the parts of a text begin, as pairs of an offset in it and in what was read.

    Args:
        begins_read: Positions in `text_read` where the parts begin.
        text: Text without markup.
        text_read: The text with annotated terms, if the model has read them.
    """
    before, before_read = positions_before(text), positions_before(text_read)
    # The words of an annotation, which are no part of the text, belong to the term before them.
    positions = np.maximum.accumulate([-1, *_positions(text, text_read)]) + 1
    pairs = (positions[begins_read], before), (begins_read, before_read)
    text_offsets, read_offsets = (
        np.searchsorted(ends, starts, "right") - 1 for starts, ends in pairs
    )
    return list(zip(text_offsets.tolist(), read_offsets.tolist(), strict=True))


def begins_of_parts(parts: Sequence[Any], text_read: str, tokenizer: Any = None) -> np.ndarray:
    """Returns the positions where the parts begin that an engine has made of a long text.

    Without their tokens, the lengths of the translations tell the lengths of the parts.

    Args:
        parts: Translations of the parts.
        text_read: The text.
        tokenizer: `Tokenizer` of the text.
    """
    indices = [_token_indices(part.source_tokens, text_read, part is parts[0]) for part in parts]
    if not all(indices):
        sizes = np.cumsum([0, *(positions_before(part.text)[-1] for part in parts)])
        return positions_before(text_read)[-1] * sizes[:-1] // max(int(sizes[-1]), 1)
    tokens = [
        part.source_tokens[index]
        for part, part_indices in zip(parts, indices, strict=True)
        for index in part_indices
    ]
    first_tokens = np.cumsum([0, *map(len, indices)])[:-1]
    return token_spans(tokens, text_read, tokenizer)[0][first_tokens]


def _token_indices(tokens: Sequence[str], text_read: str, is_first: bool = True) -> list[int]:
    """Returns the indices of the tokens of a text, without special tokens and its tags."""
    indices = [i for i, token in enumerate(tokens) if token not in _SPECIAL]
    text = text_read.lstrip() if is_first else ""
    for _ in range(2):  # The token of a language and that of a corpus begin each part.
        names = [tokens[index].replace(SPACE, "") for index in indices[:2]]
        first = names[:1] == [""]  # A space may be a separate token.
        name = "".join(names[first : first + 1])
        if not TAG.fullmatch(name) or name == _UNKNOWN or text.startswith(name):
            break
        indices = indices[first + 1 :]
    return indices


def _between(middles, ends, begin, end):
    """Returns start and stop of the tokens whose middles are in a word, or of the token around it.

    `middles` and `ends` are lists.
    """
    start, stop = bisect.bisect_left(middles, begin), bisect.bisect_right(middles, end)
    if start >= stop:
        start = max(min(bisect.bisect_right(ends, (begin + end) / 2), len(ends) - 1), 0)
        stop = start + 1 if ends else start
    return start, stop


def _all_spans(spans):
    spans_to_visit = list(spans)
    while spans_to_visit:
        yield (span := spans_to_visit.pop())
        spans_to_visit += span.children


def _words_by_number(words):
    """Returns the indices of words that end with a number, by the number."""
    matches = (_NUMBER_AT_END.search(word.text) for word in words)
    return _indices_by_text(None if match is None else match[0] for match in matches)


def _indices_by_text(texts):
    indices: dict[str, list[int]] = {}
    for index, text in enumerate(texts):
        indices.setdefault(text, []).append(index)
    return indices


def _cut(word, size, positions):
    """Cuts off the last `size` characters of a word at source positions; returns all parts."""
    first = len(word.text) - size
    offset = first - (positions[0] if first == 0 else positions[1])
    ends = [0, *(position + offset for position in positions[1:-1]), len(word.text)]
    return [
        word._replace(
            text=word.text[start:stop],
            has_space=word.has_space and not start,
            begin=begin,
            end=end,
            is_exact=True,
        )
        for (start, stop), (begin, end) in zip(
            itertools.pairwise(ends), itertools.pairwise(positions), strict=True
        )
    ]


def _with_parts(words, missing):
    """Divides the longest words, so that there are more words, as far as their characters go."""
    parts: dict[int, list[str]] = {}
    for index in sorted(range(len(words)), key=lambda index: -len(words[index].text)):
        word = words[index]
        graphemes = _GRAPHEME.findall(word.text) if word.part_index is None else [word.text]
        count = min(len(graphemes), missing + 1)
        ends = [len(graphemes) * part // count for part in range(count + 1)]
        parts[index] = ["".join(graphemes[begin:end]) for begin, end in itertools.pairwise(ends)]
        missing -= count - 1
    return [
        word._replace(text=text, has_space=word.has_space and not part)
        for index, word in enumerate(words)
        for part, text in enumerate(parts[index])
    ]
