"""Joins the words, tags and items of a translation with the spaces between them."""

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import regex

from keras_transformer.steps.markup.protecting import Protected
from keras_transformer.text.elements import SEPARATORS
from keras_transformer.text.patterns import LETTER

_LETTER = regex.compile(LETTER, regex.V1)
_WITHOUT_SPACE = regex.compile(rf"{LETTER}|[\p{{Pe}}.,]", regex.V1)
_MAX_TAGS = 8  # next to a tag, which may stand for a space


class Word(NamedTuple):
    """A word, a sign or a placeholder of a translation, or a part of a word."""

    text: str
    has_space: bool  # before it
    row: int  # of the attention
    begin: float = np.nan  # positions in the source, if they are known
    end: float = np.nan
    is_exact: bool = False  # for a part of a word that the model has copied
    part_index: int | None = None  # of a placeholder, in `Protected.source_parts`


class Placed(NamedTuple):
    """A word, a tag or an item at its place in the result."""

    text: str
    part_index: int | None = None
    word: Word | None = None
    is_begin: bool = False  # of an element with words
    is_end: bool = False


def _is_atom(placed):
    """Returns True for an item, and for a tag that encloses no words."""
    return (
        placed is not None
        and placed.part_index is not None
        and not (placed.is_begin or placed.is_end)
    )


def _is_plain_word(placed):
    """Returns True for a word or a sign, and False for a tag, an item or a placeholder."""
    return placed is not None and placed.part_index is None


def _is_added_atom(placed):
    """Returns True for an item that the model has not written, and for a tag without words."""
    return _is_atom(placed) and placed.word is None


def _is_item(placed, source_parts):
    """Returns True for an item that the model has not written."""
    return _is_added_atom(placed) and source_parts[placed.part_index].is_item


class Joiner:
    """Decides on spaces as they are in the source, where the source says something.

    Args:
        protected: The source.
        source_words: Matches of its words.
    """

    def __init__(self, protected: Protected, source_words: Sequence[regex.Match]):
        self._text, self._source_parts = protected.text, protected.source_parts
        self._word_ending = {match.end(): match[0] for match in source_words}
        self._word_beginning = {match.start(): match[0] for match in source_words}

    def joined(self, all_placed: Sequence[Placed]) -> str:
        """Returns the result."""
        out: list[str] = []
        left, gap = None, []  # the last word, and what follows it
        for placed in (*all_placed, None):
            is_plain = not gap and (left is None or _is_plain_word(left))
            if (
                placed is not None
                and placed.word is not None
                and is_plain
                and _is_plain_word(placed)
            ):
                out += [" "] * (placed.word.has_space and bool(out)) + [placed.text]
                left = placed
                continue
            gap.append(placed)
            if placed is None or placed.word is not None:
                for space, following in zip(self._spaces(left, gap), gap, strict=True):
                    if following is not None:
                        out += [" "] * (space and bool(out)) + [following.text]
                left, gap = placed, []
        return "".join(out)

    def _spaces(self, left, gap):
        """Returns whether a space precedes each tag and item after a word, and the next word.

        Args:
            left: The word, None at the beginning.
            gap: What is placed after it, up to the next word, or None at the end.
        """
        right = gap[-1]
        pairs = list(itertools.pairwise((left, *gap)))
        in_source = [self._space_in_source(*pair) for pair in pairs]
        next_text = right.text if right is not None else ""
        text_before = self._texts_before(left, gap)
        spaces = [
            self._space_between(*pair, known, text, next_text)
            for pair, known, text in zip(pairs, in_source, text_before, strict=True)
        ]
        _move_out_of_elements(spaces, pairs)
        # An item or an empty element has its own space before it and after it, as a word has.
        are_atoms = list(map(_is_added_atom, gap))
        atoms = np.flatnonzero(are_atoms).tolist()
        for first, last in itertools.pairwise([-1, *atoms, len(gap) - 1]):
            is_missing = first >= 0 and self._space_after(gap[first], next_text)
            is_missing |= are_atoms[last] and self._space_before(gap[last], text_before[last])
            if is_missing and None in in_source[first + 1 : last + 1]:
                self._add_space(spaces, gap, left, range(first + 1, last + 1))
        is_wanted = self._is_space_wanted(left, right, in_source)
        if is_wanted and not any(map(self._is_separator, gap)):
            self._add_space(spaces, gap, left, range(len(gap)))
        return [bool(space) for space in spaces]

    def _texts_before(self, left, gap):
        """Returns for each part of a gap the text of the word or item before it."""
        texts = [left.text if left is not None else ""]
        for placed in gap[:-1]:
            texts.append(placed.text if _is_item(placed, self._source_parts) else texts[-1])
        return texts

    def _space_between(self, before, after, known, text, next_text):
        """Returns whether a space is between two neighbours, None if nothing says it.

        Args:
            before: The first neighbour, None at the beginning.
            after: The second neighbour, None at the end.
            known: Whether they have a space between them in the source, or None.
            text: Text of the word or item before `after`.
            next_text: Text of the word after the gap.
        """
        space = known if _is_atom(before) or _is_atom(after) else None
        if space is None and _is_added_atom(before):
            space = self._space_after(before, next_text)
        if known is None and _is_added_atom(after):
            space = bool(space) or self._space_before(after, text)
        return space

    def _is_space_wanted(self, left, right, in_source):
        """Returns whether a space is somewhere between two words."""
        if None not in in_source:  # All of it is as it was.
            return any(in_source)
        is_wanted = left is not None and right is not None and right.word.has_space
        return is_wanted and not self._touch(left, right)

    @staticmethod
    def _add_space(spaces, gap, left, positions):
        """Adds a space before one of some parts of a gap, unless there is one."""
        if any(spaces[position] for position in positions):
            return
        positions = [
            position
            for position in positions
            if gap[position] is not None
            and not gap[position].is_end
            and (not gap[position - 1].is_begin if position else left is not None)
        ]
        undecided_positions = [position for position in positions if spaces[position] is None]
        if positions:
            spaces[(undecided_positions or positions)[0]] = True

    def _space_in_source(self, before, after):
        """Returns whether two parts had a space between them, None if there was something else."""
        if before is None or after is None or before.part_index is None or after.part_index is None:
            return None
        if after.part_index != before.part_index + 1:
            return None
        stop = self._source_parts[before.part_index].stop
        start = self._source_parts[after.part_index].start
        text = self._text[stop:start]
        return bool(text) if not text.strip() else None

    def _space_before(self, placed, text):
        """Returns whether a space is between a text and an item or an empty element after it."""
        index = placed.part_index
        part = self._source_parts[index]
        start = part.start
        for before in self._source_parts[max(index - _MAX_TAGS, 0) : index][::-1]:
            if before.is_item or before.stop != start:
                break
            start = before.start  # without the space that a tag stands for
        last = self._text[start - 1] if start else " "
        if last.isspace():
            return True
        # A sign may be missing in the translation, and an item must not join the word before.
        is_beside_sign = part.is_item and not _LETTER.match(last)
        return is_beside_sign and bool(_LETTER.match(text[-1:]))

    def _space_after(self, placed, text):
        """Returns whether a space is between an item or an empty element and a text after it."""
        index = placed.part_index
        part = self._source_parts[index]
        stop = part.stop
        for after in self._source_parts[index + 1 : index + 1 + _MAX_TAGS]:
            if after.is_item or after.start != stop:
                break
            stop = after.stop
        first = self._text[stop : stop + 1]
        if first.isspace():
            return True
        is_beside_sign = part.is_item and not _LETTER.match(first)
        return is_beside_sign and bool(_LETTER.match(text[:1]))

    def _is_separator(self, placed):
        """Returns True for a tag such as `<br>`, which separates words without a space."""
        if not _is_atom(placed) or self._source_parts[placed.part_index].is_item:
            return False
        name = re.match(r"<([^\s/>]*)", placed.text.lower())
        return name is not None and name[1] in SEPARATORS

    def _touch(self, left, right):
        """Returns True if a placeholder and a word touch each other in the source."""
        if right.part_index is not None:
            start = self._source_parts[right.part_index].start
            if left.part_index is not None:
                return self._source_parts[left.part_index].stop == start
            return self._word_ending.get(start) == left.word.text
        if left.part_index is None:
            return False
        stop, text = self._source_parts[left.part_index].stop, right.word.text
        if self._word_beginning.get(stop) != text:
            return False
        # Some languages have a space before the sign at an end, as in `{name} !`.
        following = self._text[stop + len(text) :][:1]
        return bool(_WITHOUT_SPACE.match(text)) or bool(following.strip())


def _move_out_of_elements(spaces, pairs):
    """Moves a space at the beginning of an element before it, and a space at its end behind it.

    Args:
        spaces: Whether a space is between the parts of each pair; changed.
        pairs: Pairs of neighbours, None at both ends of the text.
    """
    is_owed = False  # a space before an end, which follows the element instead
    for index, (before, after) in enumerate(pairs):
        if before is None or after is None:
            spaces[index] = False
        elif before.is_begin:
            if spaces[index]:
                first = index - 1
                while first > 0 and pairs[first][0].is_begin:
                    first -= 1
                spaces[first] = pairs[first][0] is not None
            spaces[index] = False
        elif after.is_end:
            is_owed, spaces[index] = is_owed or bool(spaces[index]), False
        elif is_owed:
            is_owed, spaces[index] = False, True
