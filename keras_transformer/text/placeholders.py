"""Placeholders: numbered tokens in the place of what is not translated, equal on both sides."""

import re
import zlib
from collections.abc import Iterable
from typing import NamedTuple

_ITEM = r"""
    (?:https?|ftp)://[^\s<>"]*[^\s<>".,;:!?)\]}'’”»]        # a URL
  | www\.[^\s<>"]*[^\s<>".,;:!?)\]}'’”»]
  | [\w.+-]+@[\w-]+(?:\.[\w-]+)+                            # an e-mail address
  | \$?\{\{?[^\s{}]*\}\}?                                   # {name}, ${name}, {{name}}
  | %(?:\(\w+\)|\d+\$)?[-+\#0]*\d*(?:\.\d+)?[sdifgxXc@](?!\w)  # %s, %(name)s, %1$d
  | <ph_\d+>|&lt;ph_\d+&gt;                                 # a placeholder's own name
"""
TAG = r"""</?[A-Za-z](?:[^<>"']|"[^"]*"|'[^']*')*>"""
"""A tag of XML or HTML."""
_NUMBER = r"(?<!\w)\d+(?:[.,:/-]\d+)*(?!\w)"

ITEM = re.compile(_ITEM, re.VERBOSE)
"""A URL, an e-mail address, a field such as {name} or %s."""
ITEM_OR_NUMBER = re.compile(f"{_ITEM} | {_NUMBER}", re.VERBOSE)
"""An `ITEM`, or a number."""
_IN_TRAINING = {
    numbers: re.compile(f"{TAG} | {pattern.pattern}", re.VERBOSE)
    for numbers, pattern in ((False, ITEM), (True, ITEM_OR_NUMBER))
}


class Placeholders(NamedTuple):
    """Placeholders of a vocabulary: their number, and whether numbers become some."""

    size: int = 0
    numbers: bool = False

    @property
    def symbols(self) -> list[str]:
        """Their tokens; `<ph_0>`, which no text has, where numbers become placeholders."""
        numbers = [symbol(0)] if self.size and self.numbers else []
        return numbers + [symbol(number) for number in range(1, self.size + 1)]

    @classmethod
    def of_symbols(cls, symbols: Iterable[str]) -> "Placeholders":
        """The placeholders among the symbols of a vocabulary."""
        found = {each for each in symbols if each.startswith("<ph_")}
        return cls(len(found - {symbol(0)}), symbol(0) in found)


def symbol(number: int) -> str:
    """The token of a placeholder, counted from 1."""
    return f"<ph_{number}>"


def with_placeholders(source: str, target: str, placeholders: Placeholders) -> tuple[str, str]:
    """Puts placeholders for what both sides of a training pair have in common.

    URLs, e-mail addresses, fields and tags that stand equally often on both sides. They are counted
    from a number that the text decides, so that all tokens are learned; what is left over stays.

    >>> with_placeholders("Ask a@b.org, {me}.", "Fragen Sie a@b.org, {me}.", Placeholders(1))
    ('Ask <ph_1>, {me}.', 'Fragen Sie <ph_1>, {me}.')
    """
    count, numbers = placeholders
    pattern = _IN_TRAINING[numbers]
    sides = [pattern.findall(side) for side in (source, target)]
    common = [x for x in dict.fromkeys(sides[0]) if sides[0].count(x) == sides[1].count(x)]
    occurrences = [(item, turn) for item in common for turn in range(sides[0].count(item))]
    first = zlib.crc32(source.encode()) % count
    chosen = {
        key: symbol((first + place) % count + 1) for place, key in enumerate(occurrences[:count])
    }
    return _replaced(source, pattern, chosen), _replaced(target, pattern, chosen)


def _replaced(text: str, pattern: re.Pattern, chosen: dict[tuple[str, int], str]) -> str:
    seen: dict[str, int] = {}

    def replace(match: re.Match) -> str:
        turn = seen.setdefault(match[0], 0)
        seen[match[0]] += 1
        return chosen.get((match[0], turn), match[0])

    return pattern.sub(replace, text)
