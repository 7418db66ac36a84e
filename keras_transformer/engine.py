"""Engine: what turns texts into results, whatever the model comes in."""

import abc
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from keras_transformer.dialog import Turns
from keras_transformer.errors import InputError
from keras_transformer.translation import Translation

Capability = Literal["translate", "score", "stream", "sample", "align", "label", "warmup"]


class Engine(abc.ABC):
    """Base class of the live model's engine and of every export's.

    Attributes:
        noun: Name of the engine in error messages.
        capabilities: Set of what the engine can do. Everything else ends in an `InputError` that
            names these.
        labels: Labels of a classifier in the order of their ids, None for a model that writes text.
        turns: Rule that joins the turns of a source, where sources are conversations.
        continues_source: Whether each text continues its source (a language model).
        source_tokenizer: `Tokenizer` of the sources, None where it is inside the model.
        target_tokenizer: `Tokenizer` of the targets, likewise.
        manifest: Content of an export's `export.json`, None for a live model.
        max_source_length: Most tokens of a source, EOS included.
    """

    noun = "this export"
    capabilities: frozenset[Capability] = frozenset({"translate"})
    labels: list[str] | None = None
    turns: Turns | None = None
    continues_source = False
    source_tokenizer: Any = None
    target_tokenizer: Any = None
    manifest: Any = None
    max_source_length: int

    @property
    def compilations(self) -> int:
        """Programs that XLA has compiled so far, as far as they are counted."""
        return 0

    @abc.abstractmethod
    def translate(self, texts: Sequence[str], *arguments: Any, **options: Any) -> list[Translation]:
        """Translates texts; see `ModelEngine.translate` for the options."""

    def score(
        self, sources: Sequence[str], targets: Any, *arguments: Any, **options: Any
    ) -> list[Translation]:
        """Scores given translations by teacher forcing; see `ModelEngine.score`."""
        raise self.lacks("score")

    def stream(self, text: str, *arguments: Any, **options: Any) -> Iterator[str]:
        """Yields one translation as it grows; see `ModelEngine.stream`."""
        raise self.lacks("stream")

    def warmup(self, *arguments: Any, **options: Any) -> int:
        """Compiles ahead what `translate` will need; see `ModelEngine.warmup`."""
        raise self.lacks("warmup")

    def lacks(self, capability: Capability, option: str | None = None) -> InputError:
        """Returns the error for a capability, asked for by `option`, that is not there."""
        able = ", ".join(sorted(self.capabilities))
        where = "a run folder" if self.labels is None else "a model that writes text"
        return InputError(f"`{option or capability}` needs {where}: {self.noun} can {able}.")
