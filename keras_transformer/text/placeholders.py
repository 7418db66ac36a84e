"""Placeholders: numbered tokens in the place of what is not translated, or has one translation."""

import os
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from keras_transformer.errors import InputError
from keras_transformer.files import iterate_lines

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


class Glossary:
    """Terms with their translations.

    A term is found as whole words, as it is written or with its first letter in capitals.

    Args:
        terms: Translations by term.

    Raises:
        InputError: There is no term, or a side is blank.
    """

    def __init__(self, terms: Mapping[str, str]):
        if not terms or not all(each.strip() for pair in terms.items() for each in pair):
            raise InputError("A glossary needs terms with translations, none of them blank.")
        capitals = {term[0].upper() + term[1:]: target for term, target in terms.items()}
        self.terms = {**capitals, **terms}
        self.pattern, self._targets = map(_words, (self.terms, terms.values()))
        self._compiled: dict[bool, tuple[re.Pattern, re.Pattern]] = {}

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Glossary":
        """Reads `term<TAB>translation` lines; `InputError` for another line."""
        rows = [line.split("\t") for line in iterate_lines(path)]
        for number, row in enumerate(rows, start=1):
            if len(row) != 2 or not all(map(str.strip, row)):
                rule = "expected a term and its translation with one tab between them"
                raise InputError(f"{path}, line {number}: {rule}. Received: {row!r:.60}.")
        return cls(dict(rows))

    def translations(self, text: str) -> list[str]:
        """Translations of the terms of a text, in their order there."""
        return [self.terms[term] for term in re.findall(self.pattern, text)]

    def in_training(self, numbers: bool) -> tuple[re.Pattern, re.Pattern]:
        """Patterns of the items of both sides of a pair, terms among them."""
        if numbers not in self._compiled:
            items = f"(?x:{_IN_TRAINING[numbers].pattern})"
            source, target = (re.compile(f"{items}|{x}") for x in (self.pattern, self._targets))
            self._compiled[numbers] = source, target
        return self._compiled[numbers]


def _words(texts: Iterable[str]) -> str:
    longest_first = sorted(set(texts), key=len, reverse=True)
    return rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)"


def with_placeholders(
    source: str,
    target: str,
    placeholders: Placeholders,
    glossary: Glossary | None = None,
    glossary_share: float = 1.0,
) -> tuple[str, str]:
    """Puts placeholders for what both sides of a training pair have in common.

    URLs, e-mail addresses, fields and tags that stand equally often on both sides; and terms of a
    glossary beside their translations, in a share of the pairs that the text decides. They are
    counted from a number that the text decides, too, so that all tokens are learned; what is left
    over stays.

    >>> with_placeholders("Ask a@b.org, {me}.", "Fragen Sie a@b.org, {me}.", Placeholders(1))
    ('Ask <ph_1>, {me}.', 'Fragen Sie <ph_1>, {me}.')
    """
    count, numbers = placeholders
    drawn, first = divmod(zlib.crc32(source.encode()), count)
    patterns, terms = (_IN_TRAINING[numbers],) * 2, {}
    if glossary is not None and drawn % 997 < 997 * glossary_share:
        patterns, terms = glossary.in_training(numbers), glossary.terms
    found = patterns[0].findall(source), patterns[1].findall(target)
    common = {}  # items of the source, by those of the target
    for item in found[0]:
        other = terms.get(item, item)
        if found[0].count(item) == found[1].count(other):
            common.setdefault(other, item)
    pairs = [(x, y, turn) for y, x in common.items() for turn in range(found[0].count(x))]
    chosen: tuple[dict, dict] = {}, {}
    for place, (item, other, turn) in enumerate(pairs[:count]):
        chosen[0][item, turn] = chosen[1][other, turn] = symbol((first + place) % count + 1)
    sides = zip((source, target), patterns, chosen, strict=True)
    source, target = (_replaced(*side) for side in sides)
    return source, target


def _replaced(text: str, pattern: re.Pattern, chosen: dict[tuple[str, int], str]) -> str:
    seen: dict[str, int] = {}

    def replace(match: re.Match) -> str:
        turn = seen.setdefault(match[0], 0)
        seen[match[0]] += 1
        return chosen.get((match[0], turn), match[0])

    return pattern.sub(replace, text)
