"""Translates texts with a run folder or any export."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from keras_transformer.base.errors import InputError
from keras_transformer.decoding.search_options import RANKING_OPTIONS, without_excluded
from keras_transformer.engine.device import DevicePlan
from keras_transformer.engine.engine import Engine
from keras_transformer.engine.opening import open_engine
from keras_transformer.engine.steps.glossary import Glossary
from keras_transformer.engine.steps.step import Markup
from keras_transformer.engine.steps.tag import tag_step
from keras_transformer.engine.steps.text_steps import TextsInSteps, text_steps
from keras_transformer.engine.translation import Translation
from keras_transformer.text.per_text import LANGUAGE_OPTIONS, checked_texts


class Translator:
    """Translates texts with a run folder or an export: an `Engine` and its default options.

    Args:
        engine: `Engine`, such as `engine.ModelEngine` or `engine.CTranslate2Engine`.
        defaults: Options of `translate` that differ from the engine's own.

    Attributes:
        turns: Rule that joins the turns of a source, where sources are conversations.

    Example:

        translator = Translator.load("runs/en-de")
        translator.translate(["Two dogs play."])[0].text
    """

    def __init__(self, engine: Engine, defaults: Mapping[str, Any] | None = None):
        self.engine = engine
        self.defaults = dict(defaults or {})
        self.turns = engine.turns

    def __repr__(self):
        return f"Translator({self.engine!r}, defaults={self.defaults!r})"

    @classmethod
    def load(
        cls,
        path: str | os.PathLike,
        threads: int | None = None,
        plan: DevicePlan | None = None,
    ) -> "Translator":
        """Reads a run folder, an export folder (SavedModel, LiteRT, CTranslate2) or a LiteRT file.

        Args:
            path: The folder, or a file `model.tflite` in an export's folder. A run folder's recipe
                has the default beam size and length penalty; an export has them inside.
            threads: Total number of threads; by default two with LiteRT, and the number of
                processors with TensorFlow and CTranslate2. All models of a process share
                TensorFlow's threads, which are fixed with its first operation.
            plan: Shapes and rows of a run's searches; by default those that suit the device.

        Raises:
            InputError: The folder is missing, neither a run nor an export, or damaged; or
                TensorFlow has started with another number of threads.
        """
        return cls(*open_engine(path, threads, plan))

    def translate(
        self,
        texts: Sequence[str],
        tag: str | None = None,
        markup: Markup | None = None,
        glossary: str | os.PathLike | Mapping[str, str] | Glossary | None = None,
        glossary_by: Literal["constraints", "annotations"] | None = None,
        source_language: str | Sequence[str] | None = None,
        target_language: str | Sequence[str] | None = None,
        split_sentences: bool | None = None,
        keep_case: bool | None = None,
        check_cancelled: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> list[Translation]:
        """Translates a list of texts.

        Args:
            texts: List of strings, which keep their outer white space.
            tag: Tag of all texts: one of the tags that the model was trained with, or a target
                language of an imported model, such as `"epo"` for its token `>>epo<<`.
            markup: `"placeholders"` preserves URLs, e-mail addresses and placeholders such as
                {name} or %s; `"html"` also preserves tags, with character references, and
                translates attributes that people read, such as `title`.
            glossary: Terms with their translations, a file of `term<TAB>translation` lines, or a
                `Glossary`.
            glossary_by: `"annotations"` adds the translations of terms to the source, for a model
                trained with `data.glossary`, which inflects them; the default for such a model.
                `"constraints"` forces the search of a run to write them unchanged.
            source_language: Code of the texts' language, such as `"en"`; or a list with a code for
                each text. See `directions`.
            target_language: Code of the translations' language, or a list.
            split_sentences: Whether each sentence of a text is translated by itself, and put
                together with the white space of the source; by default the run's
                `decoding.split_sentences`. A target prefix belongs to the first sentence, a phrase
                to the sentence whose source has it: a text whose source lacks it is one segment.
                Each sentence has its own seed, and alignments are in the `parts`.
            keep_case: Whether a sentence of several words in capitals is read in its usual case,
                and its translation becomes one in capitals; by default the run's.
            check_cancelled: Function that is called between the steps of the texts, from this
                thread. An error that it raises ends the translation.
            **options: `copy_symbols`: whether a text without letters is its own translation; by
                default the run's. Options of `Engine.translate`: `beam_size` (1 is greedy search),
                `length_penalty`, `n_best`, `batch_size`, `target_prefixes`, `alignment`, and the
                fields of `decoding.DecodingOptions`. `long_input` is `"split"` by default where
                sentences are split. The search options of an export are fixed.

        Returns:
            A list of `Translation`, in the order of `texts`.

        Raises:
            InputError: An option is out of range, or a text is too long.
        """
        named = {
            "tag": tag,
            "markup": markup,
            "glossary": glossary,
            "glossary_by": glossary_by,
            "source_language": source_language,
            "target_language": target_language,
            "split_sentences": split_sentences,
            "keep_case": keep_case,
        }
        prepared = self.in_steps(texts, check_cancelled, **options, **named)
        check_cancelled()
        try:
            translations = self.engine.translate(prepared.texts, **prepared.options)
        except InputError as error:
            if error.index is None:
                raise
            raise InputError(error.message, prepared.index_of(error.index)) from None
        return prepared.after(translations)

    def in_steps(
        self,
        texts: Sequence[str],
        check_cancelled: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> TextsInSteps:
        """Returns what the engine translates for texts, and the way back to their translations.

        For programs that call the engine with the texts of several callers together. Takes the
        arguments of `translate`, and raises its `InputError`.
        """
        steps, options = text_steps(self.engine, options)
        options = self._with_defaults(options)
        if any(step.splits_long_texts for step in steps) and "split" in self.engine.long_inputs:
            options.setdefault("long_input", "split")
        return TextsInSteps(steps, self.engine, texts, options, check_cancelled)

    def source_length(self, text: str, **options: Any) -> int:
        """Returns the number of tokens that the model reads of a text, see `Engine.source_length`.

        Takes the options of `translate`, whose steps may change the text. If they divide it, the
        number counts its longest part.
        """
        texts = [text]
        for step in text_steps(self.engine, options)[0]:
            texts = [part for text in texts for part, _ in step.before(text)]
        return max(map(self.engine.source_length, texts), default=0)

    def check_options(self, **options: Any) -> None:
        """Checks options of `translate` without texts; raises its `InputError`."""
        steps, options = text_steps(self.engine, options)
        if any(step.needs_alignment for step in steps):
            options["alignment"] = True
        self.engine.directions.check(*map(options.get, LANGUAGE_OPTIONS))
        self.engine.request(**self._with_defaults(options))

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        tag: str | None = None,
        **options: Any,
    ) -> list[Translation]:
        """Scores given translations by teacher forcing; see `Engine.score`."""
        options = self._with_defaults(options, RANKING_OPTIONS)
        return self.engine.score(self._tagged(sources, tag), targets, **options)

    def stream(
        self,
        text: str,
        tag: str | None = None,
        split_sentences: bool | None = None,
        keep_case: bool | None = None,
        target_prefix: str = "",
        **options: Any,
    ) -> Iterator[str]:
        """Yields one translation as it grows, one sentence after another; see `Engine.stream`.

        The last text is equal to the text of `translate`.
        """
        named = {"tag": tag, "split_sentences": split_sentences, "keep_case": keep_case}
        options |= {**named, "target_prefixes": [target_prefix]}
        if options.get("beam_size") is None:  # whatever the run's is
            options["beam_size"] = 1
        return self.in_steps([text], **options).stream()

    def warmup(self, **options: Any) -> int:
        """Compiles ahead what `translate` with these options needs; see `ModelEngine.warmup`."""
        return self.engine.warmup(**self._with_defaults(options))

    @property
    def directions(self) -> list[tuple[str | None, str]]:
        """Pairs of a source's and a target's language that the model translates.

        Languages are codes of BCP 47, such as `en`. The source None is any language. The list is
        empty where the languages are unknown.
        """
        languages = self.engine.languages
        return [] if languages is None else list(languages.directions)

    @property
    def labels(self) -> list[str] | None:
        """Labels of a classifier, in the order of their ids; None for a model that writes text."""
        return self.engine.labels

    @property
    def compilations(self) -> int:
        """Number of functions that XLA has compiled so far."""
        return self.engine.compilations

    def _tagged(self, texts, tag):
        if tag is None:
            return texts
        rows = map(tag_step(self.engine, tag).before, checked_texts("texts", texts))
        return [text for ((text, _),) in rows]

    def _with_defaults(self, options, names: Collection[str] | None = None):
        """Returns options with the defaults of `names`, by default of all options.

        An option that is given drops the defaults that it excludes.
        """
        values = {key: value for key, value in options.items() if value is not None}
        names = self.defaults if names is None else names
        defaults = {key: value for key, value in self.defaults.items() if key in names}
        return {**without_excluded(defaults, values), **values}


def translate_of(path: str | os.PathLike) -> Callable[..., list[Translation]]:
    """Opens a path, and returns the method `translate` of its engine."""
    return Translator.load(path).engine.translate
