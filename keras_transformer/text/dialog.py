"""Joins the turns of a conversation to one text, the source of a dialogue model."""

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple


class Turns(NamedTuple):
    """Rule that joins the turns of a conversation to one source, the oldest turn first.

    Attributes:
        separator: Word between two turns, with a space on either side; one token.
        max_turns: Number of last turns that the model reads; None for all.
    """

    separator: str
    max_turns: int | None = None

    def split(self, text: str) -> list[str]:
        """Splits a source into its turns."""
        return text.split(f" {self.separator} ")

    def join(self, turns: Sequence[str]) -> str:
        """Joins the last `max_turns` turns to one source.

        >>> Turns("</s>", max_turns=2).join(["Hello.", "Hi!", "How are you?"])
        'Hi! </s> How are you?'
        """
        return f" {self.separator} ".join(turns[-self.max_turns :] if self.max_turns else turns)

    def are_in(self, text: str) -> bool:
        """Returns True if a text contains the separator, in any spelling."""
        words = unicodedata.normalize("NFKC", text).replace("\u2581", " ").casefold().split()
        return any(word.startswith(self.separator.casefold()) for word in words)


def turns_of(separator: str | None, max_turns: int | None) -> Turns | None:
    """Returns the rule of sources that are conversations, or None without a separator."""
    return None if separator is None else Turns(separator, max_turns)
