"""Base class of the steps that a text takes on its way to the model, and its translation back."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args

from keras_transformer.base.errors import InputError

if TYPE_CHECKING:
    from keras_transformer.engine.translation import Translation
    from keras_transformer.text.languages import Languages
    from keras_transformer.text.sentences import TextRules
    from keras_transformer.text.symbols import TextFeatures

_Translation = TypeVar("_Translation")
Markup = Literal["placeholders", "html"]
"""Values of the option `markup`: here, because its step is imported only where it is given."""
MARKUP: tuple[Markup, ...] = get_args(Markup)


class TextEngine(Protocol):
    """Attributes of an engine that the steps need; see `engine.engine.Engine`."""

    noun: str
    labels: list[str] | None
    capabilities: frozenset[Any]
    source_tokenizer: Any
    target_tokenizer: Any
    languages: "Languages | None"
    turns: Any
    reads_sources: bool

    @property
    def text_features(self) -> "TextFeatures": ...

    @property
    def text_rules(self) -> "TextRules": ...

    def translate(self, texts: Any, **options: Any) -> "list[Translation]": ...

    def stream(self, text: Any, **options: Any) -> Iterator[str]: ...

    def request(self, **options: Any) -> Any: ...

    def error_of_lack(self, capability: Any, option: str | None = None) -> InputError: ...


def check_writes_text(engine: TextEngine, option: str) -> None:
    """Raises `InputError` for a classifier, whose labels no step changes."""
    if engine.labels is not None:
        raise InputError(f"`{option}` needs a model that writes text. Received: a classifier.")


class TextStep:
    """Changes texts before they are translated, and the translations after that.

    A step overrides `before`, and `after` if it has to change translations. A function of its
    module makes it of an engine and of options, which a row of `steps.text_steps` names.

    Attributes:
        needs_alignment: Whether `after` needs the alignments of texts with `aligned_places`.
        needs_whole_texts: Whether `after` needs whole translations, and all parts of a text.
        splits_long_texts: Whether a text of too many tokens is split by default, too.
    """

    needs_alignment = False
    needs_whole_texts = False
    splits_long_texts = False

    def before(
        self, text: str, language: str | None = None, target_language: str | None = None
    ) -> list[tuple[str, Any]]:
        """Returns the texts to translate instead of a text, each with what `after` needs.

        Most steps return one text. The translations of several texts are joined without a space. A
        blank one is not read by the model, and its translation is blank.

        Args:
            text: A text.
            language: Code or name of its language, None unless the caller has named it.
            target_language: Language of its translation.
        """
        return [(text, None)]

    def whole(
        self, text: str, language: str | None = None, target_language: str | None = None
    ) -> list[tuple[str, Any]] | None:
        """Returns what `before` does for a text that must not be divided, None if it must be."""
        return None

    def after(
        self, translation: _Translation, state: Any, texts_read: Sequence[str]
    ) -> _Translation:
        """Changes the translation of a text that `before` returned, and its alternatives.

        Args:
            translation: The engine's `Translation` of the text.
            state: What `before` returned with the text.
            texts_read: The text as the model has read it, after all steps: the texts that the next
                step has made of it, whose translations are the `parts` of the translation.
        """
        return translation

    def read(self, state: Any, text_read: str) -> str:
        """Returns what stands for a text of `before` where the steps around join what was read."""
        return text_read

    def begins_translation(self, state: Any) -> bool:
        """Returns whether a target prefix may belong to a text of `before`.

        A prefix that belongs to none of the texts belongs to the first text.
        """
        return True

    def aligned_places(self, state: Any) -> Sequence[float]:
        """Returns the places inside a text of `before` for which `after` uses an alignment.

        They are numbers of characters before them, without spaces. A sentence without such a place
        gets no alignment.
        """
        return ()

    def phrases(self, text: str) -> list[str]:
        """Returns phrases that the search must write into the translation of a text."""
        return []
