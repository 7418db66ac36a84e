"""Base classes of engines, which turn texts into results, and checks that engines share."""

import abc
import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from keras_transformer.decoding.options import DecodingOptions, exported_search_options
from keras_transformer.engine.inputs import LONG_INPUT, checked_texts
from keras_transformer.engine.translation import Translation
from keras_transformer.errors import InputError, did_you_mean
from keras_transformer.options import check_choice, check_positive, received
from keras_transformer.text.dialog import Turns

Capability = Literal[
    "translate", "score", "stream", "sample", "align", "label", "warmup", "phrases"
]


class Engine(abc.ABC):
    """Base class of the live model's engine and of every export's.

    Attributes:
        noun: Name of the engine in error messages.
        capabilities: Set of what the engine can do. Other calls raise an `InputError` that names
            the set.
        labels: Labels of a classifier in the order of their ids, None for a model that writes text.
        turns: Rule that joins the turns of a source, where sources are conversations.
        reads_sources: False for a language model, which continues the texts that it is given.
        source_tokenizer: `Tokenizer` of the sources, None for an engine without a tokenizer.
        target_tokenizer: `Tokenizer` of the targets, likewise.
        manifest: Content of an export's `export.json`, None for a live model.
        max_source_length: Maximum number of source tokens, EOS included.
        long_inputs: Allowed values of `long_input` for a source of more tokens, the default first.
        search_options: Names of the search options that `translate` takes besides its arguments.
    """

    noun = "this export"
    capabilities: frozenset[Capability] = frozenset({"translate"})
    labels: list[str] | None = None
    turns: Turns | None = None
    reads_sources = True
    source_tokenizer: Any = None
    target_tokenizer: Any = None
    manifest: Any = None
    max_source_length: int
    long_inputs: tuple[str, ...] = LONG_INPUT
    search_options: Collection[str] = ()

    def __repr__(self):
        able = ", ".join(sorted(self.capabilities))
        length = getattr(self, "max_source_length", None)
        limit = "" if length is None else f", at most {length} tokens per source"
        return f"<{type(self).__name__}: {able}{limit}>"

    @property
    def compilations(self) -> int:
        """Number of functions that XLA has compiled so far; 0 for an engine that does not count."""
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

    @property
    def fixed_options(self) -> dict[str, Any]:
        """Values of the options that the engine does not take."""
        call_options = {"alignment": False, "target_prefixes": None, "phrases": None}
        exported_options = exported_search_options(self.manifest or {})
        return {**vars(DecodingOptions()), **call_options, **exported_options}

    def check_fixed(self, options: Mapping[str, Any], free_names: Collection[str] = ()) -> None:
        """Raises `InputError` for an option not in `free_names`, except at its fixed value."""
        fixed_options = self.fixed_options
        for name, value in options.items():
            if name in free_names:
                continue
            if name not in fixed_options:
                nearest = did_you_mean(name, fixed_options)
                raise InputError(f"There is no option `{name}`.{nearest}")
            # `!=` would compare the elements of an array.
            if value is not None and not np.array_equal(value, fixed_options[name]):
                advice = "; a run folder takes other values" if self.labels is None else ""
                raise InputError(
                    f"`{name}` is fixed at {fixed_options[name]!r} in {self.noun}{advice}. "
                    f"Received: {name}={received(value)}."
                )

    def lacks(self, capability: Capability, option: str | None = None) -> InputError:
        """Returns the error for a missing capability, which the user asked for with `option`."""
        able = ", ".join(sorted(self.capabilities))
        where = "a run folder" if self.labels is None else "a model that writes text"
        return InputError(f"`{option or capability}` needs {where}: {self.noun} can {able}.")


def long_input_of_commands(engine: Engine) -> str:
    """Returns the default of a command's `--long-input`, for lines of too many tokens.

    A call in Python raises an error by default. A command must not, because one line would end the
    translation of a file.
    """
    way = "split" if engine.reads_sources else "refuse"
    if engine.labels is not None or engine.turns is not None:
        way = "truncate"
    return way if way in engine.long_inputs else engine.long_inputs[0]


def encoded(name: str, texts: Sequence[str]) -> list[bytes]:
    """Encodes texts as UTF-8; raises `InputError` for a text that is not valid Unicode."""
    result = []
    for index, text in enumerate(checked_texts(name, texts)):
        try:
            result.append(text.encode("utf-8"))
        except UnicodeEncodeError:
            raise InputError(
                f"`{name}` must be valid Unicode. Received: half a surrogate pair.", index
            ) from None
    return result


def with_alternatives(hypotheses: Sequence[Translation]) -> Translation:
    """Returns the first hypothesis, with the other non-empty hypotheses as its alternatives."""
    best = hypotheses[0]
    alternatives = (hypothesis for hypothesis in hypotheses[1:] if hypothesis.score > -math.inf)
    return dataclasses.replace(best, alternatives=tuple(alternatives))


class LabelEngine(Engine):
    """Base class of classifiers' engines, which give texts labels; a subclass has `labels`."""

    noun = "a classifier"
    capabilities = frozenset({"translate", "label"})
    labels: list[str]
    long_inputs: tuple[str, ...] = ("refuse", "truncate")

    @property
    def fixed_options(self) -> dict[str, Any]:
        """Values of search options, which have no effect."""
        return {**super().fixed_options, "beam_size": 1}

    @abc.abstractmethod
    def probabilities(
        self, texts: Sequence[str], batch_size: int = 32, long_input: str = "refuse"
    ) -> np.ndarray:
        """Returns the probability of each label, float32 `(texts, labels)`, 0 for a blank text.

        Args:
            texts: Strings.
            batch_size: Maximum number of texts in one call of the compiled model.
            long_input: Treatment of a text of too many tokens, one of `long_inputs`.
        """

    def translate(
        self,
        texts: Sequence[str],
        n_best: int = 1,
        batch_size: int = 32,
        long_input: str | None = None,
        **options: Any,
    ) -> list[Translation]:
        """Labels texts: a `Translation` with the most probable label and its probability as score.

        Args:
            texts: Strings. A blank text has the label "".
            n_best: Number of labels per text; the labels after the best are its `alternatives`.
            batch_size: As for `probabilities`, like `long_input`.
            **options: Search options, which have no effect: only at their fixed values.

        Raises:
            InputError: An option is out of range or has no meaning here, or a text is too long.
        """
        self.check_fixed(options)
        texts = checked_texts("texts", texts)
        check_positive(batch_size=batch_size, n_best=n_best)
        if n_best > len(self.labels):
            rule = f"`n_best` must be at most {len(self.labels)}, the number of labels."
            raise InputError(f"{rule} Received: n_best={n_best}.")
        long_input = self.long_inputs[0] if long_input is None else long_input
        check_choice("long_input", long_input, self.long_inputs)
        rows = self.probabilities(texts, batch_size, long_input) if texts else ()
        return [label_translation(row, self.labels, n_best) for row in rows]


def label_translation(row: np.ndarray, labels: Sequence[str], n_best: int = 1) -> Translation:
    """Returns the most probable labels of a text from its row of probabilities."""
    if not row.any():
        return Translation("", 0.0)
    best, *alternatives = (
        Translation(
            labels[index],
            float(row[index]),
            logarithm := float(np.log(max(row[index], 1e-38))),
            tokens=(labels[index],),
            ids=(int(index),),
            token_log_probabilities=(logarithm,),
        )
        for index in np.argsort(-row, kind="stable")[:n_best]
    )
    return dataclasses.replace(best, alternatives=tuple(alternatives))
