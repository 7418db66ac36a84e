"""Divides texts at borders between words: into lines of a width, or as a source is divided."""

import dataclasses
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import regex

from keras_transformer.text.patterns import ITEM

_IDEOGRAPHS = r"\p{Han}\p{Hiragana}\p{Katakana}"
# White space, except spaces that do not break; and between the signs of Chinese and Japanese.
_BORDER = regex.compile(
    rf"[\s--[\u00a0\u2007\u202f\ufeff]]+"
    rf"|(?<=[{_IDEOGRAPHS}][\p{{Pe}}\p{{Pf}}、。，．！？：；]*+)(?=[\p{{Ps}}\p{{Pi}}]?[{_IDEOGRAPHS}])",
    regex.V1,
)

_MARK = regex.compile(r"[\p{Terminal_Punctuation}…]")
# A border that is so many characters away is as bad as two words in a wrong part, and a border
# after a mark may be six characters away.
_TOLERANCE, _MARK_GAIN = 30, 0.04


def borders(text: str) -> list[tuple[int, int]]:
    """Returns where a line of a text may break: ends of what is before, beginnings of what follows.

    >>> borders("two dogs"), borders("我的狗。")
    ([(3, 4)], [(1, 1), (2, 2)])
    """
    return [match.span() for match in _BORDER.finditer(text) if 0 < match.start() < len(text)]


def columns(text: str) -> int:
    """Returns the number of columns of a text on a terminal, where ideographs have two."""
    return sum(
        2 if unicodedata.east_asian_width(sign) in "WF" else not unicodedata.combining(sign)
        for sign in text
    )


def wrapped(text: str, width: int, first_width: int | None = None) -> list[str]:
    """Returns the lines of a text, each with as many words as fit, and at least one.

    Args:
        text: A text.
        width: Number of columns of a line.
        first_width: The same of the first line, if that is another one.
    """
    lines, start, last = [], 0, (0, 0)  # the last border where the line may end
    room = width if first_width is None else first_width
    used = 0  # columns from `start` to the last border
    for stop, following in [*borders(text), (len(text), len(text))]:
        more = columns(text[max(last[0], start) : stop])
        if last[0] > start and used + more > room:
            lines.append(text[start : last[0]])
            start, used, room = last[1], 0, width
            more = columns(text[start:stop])
        used += more
        last = (stop, following)
    return [*lines, text[start:]]


def nearest_borders(positions: Sequence[float], targets: Sequence[float]) -> list[int]:
    """Returns the indices of ascending positions near ascending targets, each position once.

    There are as many as there are targets, or fewer if there are fewer positions.

    >>> nearest_borders([2, 5, 9], [4, 4.5])
    [1, 2]
    """
    count = min(len(positions), len(targets))
    chosen, index = [], 0
    for number, target in enumerate(targets[:count], 1):
        last = len(positions) - count + number - 1  # The following targets need some, too.
        while index < last and abs(positions[index + 1] - target) <= abs(positions[index] - target):
            index += 1
        chosen.append(index)
        index += 1
    return chosen


def divided(
    text: str,
    sources: Sequence[str],
    translation: Any = None,
    places: Sequence[tuple[int, int]] | None = None,
) -> list[str]:
    """Divides the translation of a source that has parts, at borders of words near the source's.

    Args:
        text: The translation.
        sources: Parts of the source, with a space between them.
        places: Where the translation may be divided; by default at its `borders`.
        translation: `Translation` with an alignment of the words of both sides; without one,
            lengths tell where the parts end.

    Returns:
        As many parts. Those without words are empty, and are the last.
    """
    places = borders(text) if places is None else places
    count = min(len(sources) - 1, len(places))
    if count == 0:
        return [text, *[""] * (len(sources) - 1)]
    costs = _costs(text, places, sources, translation)
    # best[n, b]: the least cost of the first n + 1 borders, of which the last is b.
    best, previous = costs[0], np.zeros((count, len(places)), int)
    for number in range(1, count):
        lowest = np.minimum.accumulate(best)
        is_lowest = best <= lowest
        last_lowest = np.maximum.accumulate(np.where(is_lowest, np.arange(len(best)), 0))
        previous[number, 1:] = last_lowest[:-1]
        best = np.concatenate([[np.inf], lowest[:-1]]) + costs[number]
    chosen = [int(np.argmin(best))]
    for number in range(count - 1, 0, -1):
        chosen.append(int(previous[number, chosen[-1]]))
    parts, position = [], 0
    for index in reversed(chosen):
        parts.append(text[position : places[index][0]])
        position = places[index][1]
    return [*parts, text[position:], *[""] * (len(sources) - 1 - count)]


def _costs(text, places, sources, translation):
    """Returns how badly each part of a source ends at each border, float `(parts, borders)`."""
    ends, source = np.cumsum([len(source) + 1 for source in sources])[:-1] - 1, " ".join(sources)
    stops = np.array([stop for stop, _ in places])
    shares = ends / len(source)
    # Parts of unusual lengths are hard to read in the time of a cue.
    costs = ((stops - shares[:, None] * len(text)) / _TOLERANCE) ** 2
    costs -= _MARK_GAIN * np.array([_MARK.match(text, stop - 1) is not None for stop in stops])
    if translation is not None and translation.alignment is not None:
        costs -= _gains(text, stops, ends, source, translation)
    return costs


def _gains(text, stops, ends, source, translation):
    """Returns how well words before each border attend to words before each end of a part.

    Addresses, which the model may not have read, are where the source has them.
    """
    from keras_transformer.extras.markup.aligning import Alignment
    from keras_transformer.extras.markup.protecting import Protected

    places = {match[0]: match.start() for match in ITEM.finditer(source)}
    items = [(match.end(), places.get(match[0])) for match in ITEM.finditer(text)]
    translation = dataclasses.replace(translation, text=ITEM.sub("", text))
    protected = Protected(ITEM.sub("", source), [], [], [], False)
    alignment = Alignment(translation, protected, None)
    widths = np.cumsum([0, *(len(word.text) for word in alignment.words)])
    num_words = np.searchsorted(widths, _sizes(text)[stops])
    rows = []
    for end, position in zip(ends, _sizes(source)[ends], strict=True):
        attention = alignment.attention_before(position, position) - 0.5
        rows.append(np.concatenate([[0.0], np.cumsum(attention)])[num_words])
        for stop, place in items:
            if place is not None:
                rows[-1] += (stops >= stop) * (0.5 if place < end else -0.5)
    return np.array(rows)


def _sizes(text):
    """Returns for each offset the number of characters before it, without spaces and addresses."""
    is_word = ~np.fromiter(map(str.isspace, text), bool, len(text))
    for match in ITEM.finditer(text):
        is_word[match.start() : match.end()] = False
    return np.concatenate([[0], np.cumsum(is_word)])
