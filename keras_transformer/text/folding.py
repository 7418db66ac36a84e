"""Folds differences of texts that readers do not see, and maps positions back to the text."""

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import regex

from keras_transformer.text.patterns import GRAPHEME

# Two joiners change the shapes of Persian and Indic letters, so readers see them.
_IGNORED = r"[\p{Default_Ignorable_Code_Point}--[\u200c\u200d]]"
_SPACE = r"[\s\x1c-\x1f]"  # For Python \x1c to \x1f are spaces too.
_UNUSUAL_SPACE = regex.compile(rf"[{_SPACE}--\ ]|\ {_SPACE}", regex.V1)
_IGNORED_OR_DOT = regex.compile(rf"{_IGNORED}|(?<=[iI])\u0307", regex.V1)
# A run of ASCII, a run of spaces, or a grapheme.
_PART = regex.compile(
    rf"[!-~]+(?![^\x00-\x7f])|{_SPACE}(?:{_SPACE}|{_IGNORED})*|{GRAPHEME}", regex.V1
)
_SIGNS = str.maketrans(
    dict.fromkeys("‘’‚‛ʼ´′׳", "'")
    | dict.fromkeys("“”„‟″״", '"')
    | dict.fromkeys("\u2010\u2011", "-")
    | {"İ": "I"}
)


class Folded(NamedTuple):
    """A folded text, and the positions in the original text that its characters come from.

    Attributes:
        text: The folded text.
        starts: Place of the beginning of each character.
        stops: Place of the end of each character.
    """

    text: str
    starts: Sequence[int]
    stops: Sequence[int]

    def span(self, start: int, stop: int) -> tuple[int, int] | None:
        """Returns the position of `text[start:stop]` in the original text.

        Returns None if the part begins or ends inside one original character, such as `㍿`.
        """
        is_inside = start > 0 and self.starts[start] == self.starts[start - 1]
        is_inside |= stop < len(self.text) and self.stops[stop] == self.stops[stop - 1]
        return None if is_inside else (self.starts[start], self.stops[stop - 1])


def fold(text: str) -> Folded:
    """Folds what readers do not see: kinds of spaces and apostrophes, widths, composition.

    A run of spaces becomes one space. Apostrophes, quotation marks and hyphens become ASCII.
    Invisible characters such as the soft hyphen are removed, except joiners, and `İ` becomes `I`.
    The rest is NFKC, which is also the default normalization of vocabularies. Case stays.

    >>> fold("The  driver’s ｓｅａｔ").text
    "The driver's seat"
    """
    if _fold_signs(text) == text and not _UNUSUAL_SPACE.search(text):
        return Folded(text, range(len(text)), range(1, len(text) + 1))
    parts: list[str] = []
    starts: list[int] = []
    stops: list[int] = []
    for match in _PART.finditer(text):
        part, (start, stop) = match[0], match.span()
        folded_part = " " if part[0].isspace() else _fold_signs(part)
        parts.append(folded_part)
        if folded_part == part:
            starts += range(start, stop)
            stops += range(start + 1, stop + 1)
        else:
            starts += [start] * len(folded_part)
            stops += [stop] * len(folded_part)
    return Folded("".join(parts), starts, stops)


def _fold_signs(text):
    # Before NFKC, which makes a space and an accent of `´`; after it, which composes `İ`.
    normalized = unicodedata.normalize("NFKC", text.translate(_SIGNS)).translate(_SIGNS)
    return _IGNORED_OR_DOT.sub("", normalized)


def fold_case(text: str) -> str:
    """Folds a text and its case; the Turkish letters `I`, `İ` and `ı` become `i`.

    >>> fold_case("Diyarbakır İSTANBUL")
    'diyarbakir istanbul'
    """
    return fold(text).text.casefold().replace("ı", "i")
