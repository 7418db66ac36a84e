"""Texts with tags of HTML, translated by any engine: with alignments, or in the source's order."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from keras_transformer.engine.steps.step import TextStep
from keras_transformer.text.elements import plain_text

if TYPE_CHECKING:
    from keras_transformer.engine.translation import Translation


class MarkedTexts:
    """Texts in HTML, whose tags come back once and nested.

    Args:
        sources: Texts in HTML.
        step: Step that removes the tags and puts them back, for an engine without alignments. None
            leaves that to the option `markup` of the translator.

    Attributes:
        texts: Texts to translate.
        forced_options: Options of `Translator.translate` for them.
    """

    def __init__(self, sources: Sequence[str], step: TextStep | None):
        self._sources, self._step = sources, step
        self._rows = [[(text, None)] if step is None else step.before(text) for text in sources]
        self.texts = [text for rows in self._rows for text, _ in rows]
        self.forced_options: dict[str, Any] = {"markup": "html" if step is None else None}

    def restored(self, translations: "Sequence[Translation]") -> list[str]:
        """Returns the translation of each source, with its tags."""
        results, following = [], iter(translations)
        for rows in self._rows:
            pairs = [(next(following), row) for row in rows]
            if self._step is not None:
                pairs = [
                    (self._step.after(translation, state, [text]), (text, state))
                    for translation, (text, state) in pairs
                ]
            results.append("".join(translation.text for translation, _ in pairs))
        return results

    def pairs(self, translations: "Sequence[Translation]") -> list[tuple[str, str]]:
        """Returns each source and its translation without tags."""
        restored = self.restored(translations)
        return [
            (plain_text(source), plain_text(text))
            for source, text in zip(self._sources, restored, strict=True)
        ]
