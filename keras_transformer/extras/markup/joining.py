"""Joins the words, tags and items of a translation with the spaces between them."""

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import regex

from keras_transformer.extras.markup.protecting import Protected
from keras_transformer.text.elements import SEPARATORS
from keras_transformer.text.patterns import CLOSING_MARK, LETTER, OPENING_MARK, UNSPACED

_LETTER = regex.compile(LETTER, regex.V1)
_OPENING, _CLOSING = (regex.compile(mark, regex.V1) for mark in (OPENING_MARK, CLOSING_MARK))
# Korean has spaces, although not before endings.
_WITHOUT_SPACES = regex.compile(rf"[{UNSPACED}--\p{{Script=Hangul}}]", regex.V1)
_WITHOUT_SPACE = regex.compile(rf"{LETTER}|[\p{{Pe}}.,]", regex.V1)
_NO_BREAK_SPACES = ("\u00a0", "\u202f")
_MAX_TAGS = 8  # next to a tag, which may stand for a space


def space_of(spaces: str) -> str:
    """Returns the space that white space between words becomes: a no-break space stays."""
    return spaces if spaces in _NO_BREAK_SPACES else " "


class Word(NamedTuple):
    """A word, a sign or a placeholder of a translation, or a part of a word."""

    text: str
    has_space: bool  # before it
    row: int  # of the attention
    begin: float = np.nan  # positions in the source, if they are known
    end: float = np.nan
    is_exact: bool = False  # for a part of a word that the model has copied
    part_index: int | None = None  # of a placeholder, in `Protected.source_parts`
    space: str = " "  # another one if the model has written it, such as a no-break space


class Placed(NamedTuple):
    """A word, a tag or an item at its place in the result."""

    text: str
    part_index: int | None = None
    word: Word | None = None
    is_begin: bool = False  # of an element with words
    is_end: bool = False


@dataclasses.dataclass(slots=True)
class Slot:
    """The place between two neighbours of the result, where a space may be.

    Attributes:
        before: The first neighbour, None at the beginning.
        after: The second neighbour, None at the end.
        in_source: Whether they have a space between them in the source; None if they were not
            neighbours there.
        text_before: Text of the word or item before `after`.
        has_space: Whether a space is there; None as long as no rule says it.
    """

    before: Placed | None
    after: Placed | None
    in_source: bool | None
    text_before: str
    has_space: bool | None = None

    @property
    def is_inner(self) -> bool:
        """True if it is neither at the beginning nor at the end of the text."""
        return self.before is not None and self.after is not None

    @property
    def takes_space(self) -> bool:
        """True if a space may be added: not at an end of the text or inside an element's border."""
        if self.before is None or self.after is None:
            return False
        return not (self.before.is_begin or self.after.is_end)


def between_words(words: Sequence[Word]) -> np.ndarray:
    """Returns whether an item fits before each word, and at the end: not inside `bem-vindo`.

    It may where the translation has a space, between words and the marks around them, in scripts
    without spaces, and next to a placeholder.

    Returns:
        Bool `(words + 1,)`.
    """
    has_space = np.array([True, *(word.has_space for word in words[1:]), True])
    opens, closes = has_space.copy(), has_space.copy()
    for index, word in enumerate(words):  # after marks that follow a space
        opens[index + 1] |= opens[index] and (word.text == '"' or bool(_OPENING.match(word.text)))
    for index in range(len(words) - 1, -1, -1):  # before marks that a space follows
        mark = words[index].text
        closes[index] |= closes[index + 1] and (mark == '"' or bool(_CLOSING.match(mark)))
    is_free = opens | closes
    for index, (left, right) in enumerate(itertools.pairwise(words), 1):
        is_free[index] |= (
            left.part_index is not None
            or right.part_index is not None
            or bool(_WITHOUT_SPACES.match(left.text) or _WITHOUT_SPACES.match(right.text))
        )
    return is_free


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
        left: Placed | None = None  # the last word
        gap: list[Placed | None] = []  # what follows it
        for placed in (*all_placed, None):
            word = None if placed is None else placed.word
            is_between_words = not gap and (left is None or _is_plain_word(left))
            if word is not None and is_between_words and _is_plain_word(placed):
                _append(out, placed, word.has_space, word.space)
                left = placed
                continue
            gap.append(placed)
            if placed is None or word is not None:
                slots = self._decided_slots(left, gap)
                is_alone = sum(bool(slot.has_space) for slot in slots) == 1
                space = word.space if word is not None and is_alone else " "
                for slot in slots:
                    if slot.after is not None:
                        _append(out, slot.after, slot.has_space, space)
                left, gap = placed, []
        return "".join(out)

    def _decided_slots(self, left, gap):
        """Returns the slots between a word and the next word; later rules see earlier decisions.

        Args:
            left: The word, None at the beginning.
            gap: What is placed after it, up to the next word, or None at the end.
        """
        slots = self._slots(left, gap)
        self._space_atoms_from_neighbours(slots)
        _move_spaces_out_of_elements(slots)
        self._space_atoms_from_words(slots)
        self._space_words_from_words(slots)
        return slots

    def _slots(self, left, gap):
        """Returns the undecided slots between a word and the next word."""
        slots, text = [], "" if left is None else left.text
        for before, after in itertools.pairwise((left, *gap)):
            if _is_item(before, self._source_parts):
                text = before.text
            slots.append(Slot(before, after, self._space_in_source(before, after), text))
        return slots

    def _space_atoms_from_neighbours(self, slots):
        """Rule 1: a slot next to an item or an empty element is as in the source."""
        next_word = _word_after(slots)
        for slot in slots:
            if _is_atom(slot.before) or _is_atom(slot.after):
                slot.has_space = slot.in_source
            if slot.has_space is None and _is_added_atom(slot.before):
                slot.has_space = self._space_after(slot.before, next_word)
            if slot.in_source is None and _is_added_atom(slot.after):
                has_space_before = self._space_before(slot.after, slot.text_before, next_word)
                slot.has_space = bool(slot.has_space) or has_space_before

    def _space_atoms_from_words(self, slots):
        """Rule 3: an item or an empty element has its own space before and after it, as a word has.

        The space may be at any slot up to the next item, empty element or word.
        """
        next_word = _word_after(slots)
        for run in _split_at_atoms(slots):
            before, after = run[0].before, run[-1].after
            is_missing = (_is_added_atom(before) and self._space_after(before, next_word)) or (
                _is_added_atom(after) and self._space_before(after, run[-1].text_before, next_word)
            )
            if is_missing and any(slot.in_source is None for slot in run):
                _add_space(run)

    def _space_words_from_words(self, slots):
        """Rule 4: two words have a space between them where the source or the model has one."""
        left, right = slots[0].before, slots[-1].after
        if all(slot.in_source is not None for slot in slots):  # All of it is as it was.
            is_wanted = any(slot.in_source for slot in slots)
        elif left is None or right is None:
            is_wanted = False
        else:
            is_wanted = right.word.has_space and not self._touch(left, right)
        if is_wanted and not any(self._is_separator(slot.after) for slot in slots):
            _add_space(slots)

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

    def _space_before(self, placed, text, next_word):
        """Returns whether a space is between a text and an item or an empty element after it."""
        index = placed.part_index
        part = self._source_parts[index]
        start = part.start
        for before in self._source_parts[max(index - _MAX_TAGS, 0) : index][::-1]:
            if before.is_item or before.stop != start:
                break
            start = before.start  # without the space that a tag stands for
        is_item = part.is_item or self._encloses_item(index, 1)
        if is_item and (_OPENING.match(text[-1:]) or text == '"' and _touches(next_word)):
            return False
        last = self._text[start - 1] if start else " "
        if last.isspace():
            return True
        # A sign may be missing in the translation, and an item must not join the word before.
        return is_item and not _LETTER.match(last) and bool(_LETTER.match(text[-1:]))

    def _space_after(self, placed, word):
        """Returns whether a space is between an item or an empty element and a word after it."""
        text = "" if word is None else word.text
        index = placed.part_index
        part = self._source_parts[index]
        stop = part.stop
        for after in self._source_parts[index + 1 : index + 1 + _MAX_TAGS]:
            if after.is_item or after.start != stop:
                break
            stop = after.stop
        is_item = part.is_item or self._encloses_item(index, -1)
        if is_item and (_CLOSING.match(text) or text == '"'):
            is_opening = text == '"' and not word.row  # the first word
            return word.has_space or is_opening  # as French has before `!`
        first = self._text[stop : stop + 1]
        if first.isspace():
            return True
        return is_item and not _LETTER.match(first) and bool(_LETTER.match(text[:1]))

    def _encloses_item(self, index, step):
        """Returns whether only tags are between a tag and an item after it, or before it."""
        position = self._source_parts[index].start
        for other in range(index + step, index + step * (_MAX_TAGS + 1), step):
            if not 0 <= other < len(self._source_parts):
                return False
            part = self._source_parts[other]
            if position != (part.start if step > 0 else part.stop):
                return False
            if part.is_item:
                return True
            if part.start != part.stop:
                return False
        return False

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


def _touches(word):
    """Returns True for a word that has touched a quotation mark, which thus opens a quotation."""
    return word is not None and not word.has_space and bool(_LETTER.match(word.text))


def _append(out, placed, has_space, space):
    """Adds a word, a tag or an item, after a space if it has one and is not the first."""
    if has_space and out:
        out.append(space)
    out.append(placed.text)


def _word_after(slots):
    """Returns the word after slots, None at the end."""
    placed = slots[-1].after
    return None if placed is None else placed.word


def _split_at_atoms(slots):
    """Returns slots in runs, which end before items and elements that the model has not written."""
    runs: list[list[Slot]] = [[]]
    for slot in slots:
        runs[-1].append(slot)
        if _is_added_atom(slot.after):
            runs.append([])
    return runs


def _add_space(slots):
    """Adds a space at one of some slots, unless there is one: outside of elements, undecided first.

    Nothing is added if all slots are at the ends of the text or inside borders of elements.
    """
    if any(slot.has_space for slot in slots):
        return
    allowed = [slot for slot in slots if slot.takes_space]
    undecided = [slot for slot in allowed if slot.has_space is None]
    if allowed:
        (undecided or allowed)[0].has_space = True


def _move_spaces_out_of_elements(slots):
    """Rule 2: a space at the beginning of an element moves before it, and one at its end behind it.

    The ends of the text have no space.
    """
    is_owed = False  # a space before an end, which follows the element instead
    for index, slot in enumerate(slots):
        if not slot.is_inner:
            slot.has_space = False
        elif slot.before.is_begin:
            if slot.has_space:
                first = index - 1
                while first > 0 and slots[first].before.is_begin:
                    first -= 1
                slots[first].has_space = slots[first].before is not None
            slot.has_space = False
        elif slot.after.is_end:
            is_owed, slot.has_space = is_owed or bool(slot.has_space), False
        elif is_owed:
            is_owed, slot.has_space = False, True
