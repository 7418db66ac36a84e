"""A document of any kind: its texts, and the document with their translations."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_transformer.engine.steps.step import TextStep
from keras_transformer.text.sentences import has_letters

if TYPE_CHECKING:
    from keras_transformer.engine.translation import Translation


class Settings(NamedTuple):
    """Options that a kind of documents may read besides the document.

    Attributes:
        name: Name of the document in messages.
        source_language: Code of the document's language, None if it is unknown.
        target_language: Code of the translation's language, None if it is unknown.
        fallback_step: Step for tags around words, where the engine gives no alignments; None where
            the translator's option `markup` does it.
        is_wrapped: Whether lines were wrapped at a column, so that a paragraph is a text.
    """

    name: str = "document"
    source_language: str | None = None
    target_language: str | None = None
    is_wrapped: bool = False
    fallback_step: TextStep | None = None


class Document:
    """A document that was read.

    Attributes:
        texts: What is translated, in order.
        forced_options: Options of `Translator.translate` that the texts need.
    """

    texts: list[str]
    forced_options: dict[str, Any] = {}

    def has_words(self, translations: "Sequence[Translation]") -> bool:
        """Returns whether anything was found to translate."""
        return any(map(has_letters, self.texts))

    def pairs(
        self, translations: "Sequence[Translation]", states: Sequence[list[Any]]
    ) -> list[tuple[str, str]]:
        """Returns each text and its translation as people read them, after `written`.

        Args:
            translations: Translations of `texts`.
            states: `TextsInSteps.states` of `texts`.
        """
        translated = (translation.text for translation in translations)
        return list(zip(self.texts, translated, strict=True))

    def written(self, translations: "Sequence[Translation]") -> str | bytes:
        """Returns the document, of a binary kind the bytes, with the translations of `texts`."""
        raise NotImplementedError


def replaced(text: str, spans: Iterable[tuple[int, int]], new_texts: Iterable[str]) -> str:
    """Returns a text in which ascending spans are replaced, and all else is as it was.

    >>> replaced("two dogs", [(0, 3), (4, 8)], ["three", "cats"])
    'three cats'
    """
    pieces, position = [], 0
    for (start, stop), new_text in zip(spans, new_texts, strict=True):
        pieces += [text[position:start], new_text]
        position = stop
    return "".join([*pieces, text[position:]])
