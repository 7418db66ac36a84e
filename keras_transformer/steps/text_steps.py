"""The steps of texts before an engine translates them, and of the translations after that."""

import collections
import dataclasses
import inspect
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from keras_transformer.errors import InputError
from keras_transformer.options import check_choice
from keras_transformer.steps.glossary import Glossary, GlossaryStep, glossary_of
from keras_transformer.steps.step import MARKUP, Markup, TextStep
from keras_transformer.steps.tag import TagStep
from keras_transformer.text.languages import Languages
from keras_transformer.text.per_text import (
    LANGUAGE_OPTIONS,
    checked_phrases,
    one_for_each,
    values_of_texts,
)
from keras_transformer.text.symbols import TextFeatures
from keras_transformer.translation import Translation


class TextEngine(Protocol):
    """What the steps need of an engine; see `engine.engine.Engine`."""

    noun: str
    labels: list[str] | None
    capabilities: frozenset[Any]
    source_tokenizer: Any
    languages: Languages | None

    @property
    def text_features(self) -> TextFeatures: ...

    def translate(self, texts: Any, **options: Any) -> list[Translation]: ...

    def request(self, **options: Any) -> Any: ...

    def lacks(self, capability: Any, option: str | None = None) -> InputError: ...


_PER_TEXT = ("target_prefixes", "phrases", "seed", *LANGUAGE_OPTIONS)


def text_steps(
    engine: TextEngine,
    tag: str | None = None,
    markup: Markup | None = None,
    glossary: str | os.PathLike | Mapping[str, str] | Glossary | None = None,
    glossary_by: str | None = None,
) -> list[TextStep]:
    """Returns the steps for options of `Translator.translate`, in the order before translating.

    Raises:
        InputError: An option has another value, or the engine lacks what the step needs.
    """
    if glossary_by is not None and glossary is None:
        rule = "`glossary_by` needs a `glossary`."
        raise InputError(f"{rule} Received: glossary_by={glossary_by!r}.")
    steps: list[TextStep] = []
    token = token_of(engine, tag)
    for name, value in {"markup": markup, "glossary": glossary}.items():
        if value is not None and engine.labels is not None:
            raise InputError(f"`{name}` needs a model that writes text. Received: a classifier.")
    if markup is not None:
        steps.append(_markup_step(engine, markup))
    if glossary is not None:
        steps.append(GlossaryStep(glossary_of(glossary), _annotates_terms(engine, glossary_by)))
    if token is not None:
        languages = () if engine.languages is None else engine.languages.tokens.values()
        steps.append(TagStep(token, engine.source_tokenizer, languages))
    return steps


TEXT_OPTIONS = tuple(inspect.signature(text_steps).parameters)[1:]
"""Options of `Translator.translate` that the steps take."""


def translate_in_steps(
    steps: Sequence[TextStep], engine: TextEngine, texts: Sequence[str], options: Mapping[str, Any]
) -> list[Translation]:
    """Translates texts with the first step around the others, and all of them around the engine."""
    options = dict(options)
    for name in _PER_TEXT:  # Several steps read the values, and an iterator can be read only once.
        if name in options:
            options[name] = values_of_texts(options[name])
    if options.get("phrases") is not None:
        options["phrases"] = checked_phrases(options["phrases"], len(texts))
    return _translate(steps, engine, texts, options)[0]


def _translate(steps, engine, texts, options):
    """Returns the translations, and the texts that the model has read."""
    if not steps:
        return engine.translate(texts, **options), texts
    step, *inner_steps = steps
    parts = [step.before(text) for text in texts]
    indices = [index for index, rows in enumerate(parts) for _ in rows]
    memories = [memory for rows in parts for _, memory in rows]
    inner_options = options_of_parts(options, indices, len(texts))
    is_aligned = bool(options.get("alignment", False))
    if step.needs_alignment or (
        any(map(step.uses_alignment, memories)) and _aligns(engine, options)
    ):
        inner_options["alignment"] = True
    if any(phrases := list(map(step.phrases, texts))):
        inner_options["phrases"] = _with_phrases(options.get("phrases"), phrases)
    inner_texts = [text for rows in parts for text, _ in rows]
    try:
        translations, read = _translate(inner_steps, engine, inner_texts, inner_options)
    except InputError as error:
        if error.index is None:
            raise
        raise InputError(error.message, indices[error.index]) from None
    changed, texts_read = map(step.after, translations, memories, read), iter(read)
    sampling = options.get("sampling", False)
    joined = [
        Translation.joined(list(itertools.islice(changed, len(rows))), sampling, "")
        for rows in parts
    ]
    if inner_options.get("alignment") and not is_aligned:
        joined = list(map(_without_alignment, joined))
    return joined, ["".join(itertools.islice(texts_read, len(rows))) for rows in parts]


def options_of_parts(
    options: Mapping[str, Any], indices: Sequence[int], count: int
) -> dict[str, Any]:
    """Returns the options of the parts of `count` texts.

    Args:
        options: Options of `Engine.translate`, some with a tuple or list of a value per text.
        indices: Index of each part's text.
        count: Number of texts.
    """
    options = dict(options)
    if len(indices) == count:
        return options
    values_by_name = {
        name: one_for_each(name, tuple(options[name]), count)
        for name in _PER_TEXT
        if isinstance(options.get(name), (list, tuple))
    }
    options |= {
        name: tuple(values[index] for index in indices) for name, values in values_by_name.items()
    }
    is_first = [part == 0 or indices[part - 1] != index for part, index in enumerate(indices)]
    if "target_prefixes" in values_by_name:  # The prefix belongs to the first part.
        pairs = zip(options["target_prefixes"], is_first, strict=True)
        options["target_prefixes"] = [prefix if first else "" for prefix, first in pairs]
    counts = collections.Counter(indices)
    for index, phrases in zip(indices, options.get("phrases") or (), strict=False):
        if phrases and counts[index] > 1:
            rule = "`phrases` are for texts that are not split."
            raise InputError(f"{rule} Received: a text of {counts[index]} blocks.", index)
    return options


def _aligns(engine, options):
    """Returns whether the engine gives alignments with these options."""
    if "align" not in engine.capabilities:
        return False
    try:
        engine.request(**{**options, "alignment": True})
    except InputError:
        return False
    return True


def _with_phrases(phrases, phrases_of_steps):
    """Adds the phrases of a step to the phrases of each text, without forcing a phrase twice."""
    count = len(phrases_of_steps)
    phrases = [()] * count if phrases is None else checked_phrases(phrases, count)
    return [
        [*(collections.Counter(of_text) | collections.Counter(of_step)).elements()]
        for of_text, of_step in zip(phrases, phrases_of_steps, strict=True)
    ]


def _without_alignment(translation):
    alternatives = tuple(map(_without_alignment, translation.alternatives))
    parts = tuple(map(_without_alignment, translation.parts))
    return dataclasses.replace(translation, alignment=None, alternatives=alternatives, parts=parts)


def token_of(engine: TextEngine, tag: str | None) -> str | None:
    """Returns the token that a tag puts before each text."""
    if tag is None:
        return None
    tokens = engine.text_features.tag_tokens
    if not tokens:
        raise InputError(f"`tag` needs a model trained with tags. Received: tag={tag!r}.")
    check_choice("tag", tag, tuple(tokens))
    return tokens[tag]


def _markup_step(engine, markup):
    check_choice("markup", markup, MARKUP)
    if markup == "html" and "align" not in engine.capabilities:
        rule = "`markup=html` needs alignments: a run, a CTranslate2 export, or a SavedModel"
        raise InputError(f"{rule} with `align`. Received: {engine.noun}.")
    from keras_transformer.steps.markup.step import MarkupStep  # Few texts have markup.

    tokenizer = engine.source_tokenizer
    split_tags = (lambda text: ("", text)) if tokenizer is None else tokenizer.split_tags
    return MarkupStep(markup, engine.text_features.placeholders, split_tags)


def _annotates_terms(engine, glossary_by):
    """Returns True if the model reads terms' translations, False if the search forces them."""
    is_able = engine.text_features.annotates_terms
    if glossary_by is not None:
        check_choice("glossary_by", glossary_by, ("constraints", "annotations"))
    if is_able and glossary_by != "constraints":
        return True
    if glossary_by == "annotations":
        rule = "`glossary_by: annotations` needs a model trained with `data.glossary`."
        raise InputError(rule)
    if "phrases" in engine.capabilities:
        return False
    if glossary_by is not None:
        raise engine.lacks("phrases", "glossary_by")
    raise InputError("`glossary` needs a run folder, or a model trained with `data.glossary`.")
