"""Placeholders: numbered tokens in the place of what is not translated."""

import collections
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
    first = zlib.crc32(source.encode())
    pattern = _IN_TRAINING[numbers]
    found, other = pattern.findall(source), pattern.findall(target)
    common = [item for item in dict.fromkeys(found) if found.count(item) == other.count(item)]
    turns = [(item, turn) for item in common for turn in range(found.count(item))]
    chosen = {each: symbol((first + i) % count + 1) for i, each in enumerate(turns[:count])}

    def replaced(text):
        seen: collections.Counter[str] = collections.Counter()

        def replace(match):
            seen[match[0]] += 1
            return chosen.get((match[0], seen[match[0]] - 1), match[0])

        return pattern.sub(replace, text)

    return replaced(source), replaced(target)
