"""Tokens of a vocabulary that are not learned: placeholders and marks of annotated terms."""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from keras_transformer.text.tags import tag_tokens

TERM_SYMBOLS = ("<term_begin>", "<term_as>", "<term_end>")
"""Tokens of an annotation: `a <term_begin> rack<term_as> Gestell<term_end> of steel`."""
PLACEHOLDER = re.compile(r"<ph_\d+>")
"""The token of a placeholder."""


class Placeholders(NamedTuple):
    """Placeholders of a vocabulary.

    Attributes:
        size: Number of placeholders.
        numbers: Whether numbers become placeholders.
    """

    size: int = 0
    numbers: bool = False

    @property
    def symbols(self) -> list[str]:
        """Tokens of the placeholders; `<ph_0>`, which no text has, if numbers become some."""
        first = 0 if self.size and self.numbers else 1
        return [symbol(number) for number in range(first, self.size + 1)]

    @classmethod
    def of_symbols(cls, symbols: Iterable[str]) -> "Placeholders":
        """Returns the placeholders among the symbols of a vocabulary."""
        names = {name for name in symbols if name.startswith("<ph_")}
        return cls(len(names - {symbol(0)}), symbol(0) in names)


def symbol(number: int) -> str:
    """Returns the token of a placeholder, counted from 1."""
    return f"<ph_{number}>"


class TextFeatures(NamedTuple):
    """Features that texts of a model may have besides words; exports tell them in `export.json`.

    Attributes:
        tag_tokens: Tokens that may precede a source, by name.
        placeholders: Placeholders for text that is not translated.
        annotates_terms: Whether the source may contain translations of terms.
    """

    tag_tokens: Mapping[str, str] = MappingProxyType({})
    placeholders: Placeholders = Placeholders()
    annotates_terms: bool = False

    @classmethod
    def of(cls, tokenizer: Any) -> "TextFeatures":
        """Returns the features of a `Tokenizer` of sources."""
        return cls(tokenizer.tag_tokens, tokenizer.placeholders, tokenizer.annotates_terms)

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> "TextFeatures":
        """Returns the features that `to_manifest` has written."""
        return cls(
            tag_tokens(manifest.get("tags", ()), manifest.get("language_tags", False)),
            Placeholders(*manifest.get("placeholders", ())),
            manifest.get("terms", False),
        )

    def to_manifest(self) -> dict[str, Any]:
        """Returns fields of `export.json`, without features that the model lacks."""
        names = list(self.tag_tokens)
        fields = {
            "placeholders": list(self.placeholders) if self.placeholders.size else None,
            "tags": names,
            "language_tags": self.tag_tokens != tag_tokens(names),
            "terms": self.annotates_terms,
        }
        return {name: value for name, value in fields.items() if value}
