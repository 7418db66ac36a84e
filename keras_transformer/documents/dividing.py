"""Borders between the words of a text: where lines may break, at a width."""

import unicodedata
from collections.abc import Sequence

import regex

_IDEOGRAPHS = r"\p{Han}\p{Hiragana}\p{Katakana}"
# White space, except spaces that do not break; and between the signs of Chinese and Japanese.
_BORDER = regex.compile(
    rf"[\s--[\u00a0\u2007\u202f\ufeff]]+"
    rf"|(?<=[{_IDEOGRAPHS}][\p{{Pe}}\p{{Pf}}、。，．！？：；]*+)(?=[\p{{Ps}}\p{{Pi}}]?[{_IDEOGRAPHS}])",
    regex.V1,
)


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
