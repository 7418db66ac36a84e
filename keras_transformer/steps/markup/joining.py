"""Joins the words, tags and items of a translation with the spaces between them."""

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import regex

from keras_transformer.steps.markup.elements import SEPARATORS
from keras_transformer.steps.markup.protecting import Protected
from keras_transformer.steps.splitting import LETTER

_LETTER = regex.compile(LETTER, regex.V1)
_WITHOUT_SPACE = regex.compile(rf"{LETTER}|[\p{{Pe}}.,]", regex.V1)
_MAX_TAGS = 8  # next to a tag, which may stand for a space


class Unit(NamedTuple):
    """A word, a sign or a placeholder of a translation, or a part of a word."""

    text: str
    has_space: bool  # before it
    row: int  # of the attention
    begin: float = np.nan  # positions in the source, if they are known
    end: float = np.nan
    is_exact: bool = False  # for a part of a word that the model has copied
    piece: int | None = None  # of a placeholder


class Element(NamedTuple):
    """A unit, a tag or an item of the result."""

    text: str
    piece: int | None = None
    unit: Unit | None = None
    is_begin: bool = False  # of an element with words
    is_end: bool = False


def _is_atom(element):
    """Returns True for an item, and for a tag that encloses no words."""
    return (
        element is not None
        and element.piece is not None
        and not (element.is_begin or element.is_end)
    )


def _is_word(element):
    """Returns True for a word or a sign, and False for a placeholder."""
    return element is not None and element.piece is None


def _is_item(element, pieces):
    """Returns True for an item that the model has not written."""
    return _is_atom(element) and element.unit is None and pieces[element.piece].is_item


class Joiner:
    """Decides on spaces as they are in the source, where the source says something.

    Args:
        protected: The source.
        source_units: Matches of its units.
    """

    def __init__(self, protected: Protected, source_units: Sequence[regex.Match]):
        self._text, self._pieces = protected.text, protected.pieces
        self._unit_ending = {match.end(): match[0] for match in source_units}
        self._unit_beginning = {match.start(): match[0] for match in source_units}

    def joined(self, elements: Sequence[Element]) -> str:
        """Returns the result."""
        out: list[str] = []
        left, gap = None, []  # the last unit, and what follows it
        for element in (*elements, None):
            is_plain = not gap and (left is None or _is_word(left))
            if element is not None and element.unit is not None and is_plain and _is_word(element):
                out += [" "] * (element.unit.has_space and bool(out)) + [element.text]
                left = element
                continue
            gap.append(element)
            if element is None or element.unit is not None:
                for space, following in zip(self._spaces(left, gap), gap, strict=True):
                    if following is not None:
                        out += [" "] * (space and bool(out)) + [following.text]
                left, gap = element, []
        return "".join(out)

    def _spaces(self, left, gap):
        """Returns for the tags and items after a unit, and for the next unit, whether a space is
        before each of them.

        Args:
            left: The unit, None at the beginning.
            gap: The elements after it, up to the next unit, or None at the end.
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
        # An item is a word too: it has its own space before it and after it.
        are_items = [_is_item(element, self._pieces) for element in gap]
        items = np.flatnonzero(are_items).tolist()
        for first, last in itertools.pairwise([-1, *items, len(gap) - 1]):
            is_missing = first >= 0 and self._space_after(gap[first], next_text)
            is_missing |= are_items[last] and self._space_before(gap[last], text_before[last])
            if is_missing and None in in_source[first + 1 : last + 1]:
                self._add_space(spaces, gap, left, range(first + 1, last + 1))
        is_wanted = self._is_space_wanted(left, right, in_source)
        if is_wanted and not any(map(self._is_separator, gap)):
            self._add_space(spaces, gap, left, range(len(gap)))
        return [bool(space) for space in spaces]

    def _texts_before(self, left, gap):
        """Returns for each element of a gap the text of the word or item before it."""
        texts = [left.text if left is not None else ""]
        for element in gap[:-1]:
            texts.append(element.text if _is_item(element, self._pieces) else texts[-1])
        return texts

    def _space_between(self, before, after, known, text, next_text):
        """Returns whether a space is between two elements, None if nothing says it.

        Args:
            before: The first element, None at the beginning.
            after: The second element, None at the end.
            known: Whether they have a space between them in the source, or None.
            text: Text of the word or item before `after`.
            next_text: Text of the unit after the gap.
        """
        space = known if _is_atom(before) or _is_atom(after) else None
        if space is None and _is_atom(before) and before.unit is None:
            space = self._space_after(before, next_text)
        if known is None and _is_atom(after) and after.unit is None:
            space = bool(space) or self._space_before(after, text)
        return space

    def _is_space_wanted(self, left, right, in_source):
        """Returns whether a space is somewhere between two units."""
        if None not in in_source:  # All of it is as it was.
            return any(in_source)
        is_wanted = left is not None and right is not None and right.unit.has_space
        return is_wanted and not self._touch(left, right)

    @staticmethod
    def _add_space(spaces, gap, left, positions):
        """Adds a space before one of some elements, unless there is one."""
        if any(spaces[position] for position in positions):
            return
        positions = [
            position
            for position in positions
            if gap[position] is not None
            and not gap[position].is_end
            and (position > 0 or left is not None)
        ]
        undecided_positions = [position for position in positions if spaces[position] is None]
        if positions:
            spaces[(undecided_positions or positions)[0]] = True

    def _space_in_source(self, before, after):
        """Returns whether two pieces had a space between them, None if there was something else."""
        if before is None or after is None or before.piece is None or after.piece is None:
            return None
        if after.piece != before.piece + 1:
            return None
        stop, start = self._pieces[before.piece].stop, self._pieces[after.piece].start
        text = self._text[stop:start]
        return bool(text) if not text.strip() else None

    def _space_before(self, element, text):
        """Returns whether a space is between a text and an item or an empty element after it."""
        piece = self._pieces[element.piece]
        start = piece.start
        for before in self._pieces[max(element.piece - _MAX_TAGS, 0) : element.piece][::-1]:
            if before.is_item or before.stop != start:
                break
            start = before.start  # without the space that a tag stands for
        last = self._text[start - 1] if start else " "
        if last.isspace():
            return True
        # A sign may be missing in the translation, and an item must not join the word before.
        is_beside_sign = piece.is_item and not _LETTER.match(last)
        return is_beside_sign and bool(_LETTER.match(text[-1:]))

    def _space_after(self, element, text):
        """Returns whether a space is between an item or an empty element and a text after it."""
        piece = self._pieces[element.piece]
        stop = piece.stop
        for after in self._pieces[element.piece + 1 : element.piece + 1 + _MAX_TAGS]:
            if after.is_item or after.start != stop:
                break
            stop = after.stop
        first = self._text[stop : stop + 1]
        if first.isspace():
            return True
        is_beside_sign = piece.is_item and not _LETTER.match(first)
        return is_beside_sign and bool(_LETTER.match(text[:1]))

    def _is_separator(self, element):
        """Returns True for a tag such as `<br>`, which separates words without a space."""
        if not _is_atom(element) or self._pieces[element.piece].is_item:
            return False
        name = re.match(r"<([^\s/>]*)", element.text.lower())
        return name is not None and name[1] in SEPARATORS

    def _touch(self, left, right):
        """Returns True if a placeholder and a unit touch each other in the source."""
        if right.piece is not None:
            start = self._pieces[right.piece].start
            if left.piece is not None:
                return self._pieces[left.piece].stop == start
            return self._unit_ending.get(start) == left.unit.text
        if left.piece is None:
            return False
        stop, text = self._pieces[left.piece].stop, right.unit.text
        if self._unit_beginning.get(stop) != text:
            return False
        # Some languages have a space before the sign at an end, as in `{name} !`.
        following = self._text[stop + len(text) :][:1]
        return bool(_WITHOUT_SPACE.match(text)) or bool(following.strip())


def _move_out_of_elements(spaces, pairs):
    """Moves a space at the beginning of an element before it, and a space at its end behind it.

    Args:
        spaces: Whether a space is between the elements of each pair; changed.
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
