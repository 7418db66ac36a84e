"""The steps of texts before an engine translates them, and of the translations after that."""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.formats import load
from keras_transformer.options import check as check_option
from keras_transformer.steps.step import TextEngine, TextStep
from keras_transformer.text.folding import fold_case
from keras_transformer.text.per_text import (
    LANGUAGE_OPTIONS,
    checked_phrases,
    one_for_each,
    values_of_texts,
)
from keras_transformer.translation import Translation

_PER_TEXT = ("target_prefixes", "phrases", "seed", *LANGUAGE_OPTIONS)
_SENTENCES = "steps.sentences:sentences_step"  # It is made without options, too.
# The steps in the order before translating: options of `Translator.translate`, and the function
# of an engine and of these options that makes the step. The folder `markup` may be deleted.
_STEPS = (
    (("markup",), "markup.step:markup_step"),
    (("split_sentences", "copy_symbols", "keep_case"), _SENTENCES),
    (("glossary", "glossary_by"), "steps.glossary:glossary_step"),
    (("tag",), "steps.tag:tag_step"),
)
STEP_OPTIONS = tuple(name for names, _ in _STEPS for name in names)
"""Options of the steps."""


def text_steps(
    engine: TextEngine, options: Mapping[str, Any]
) -> tuple[list[TextStep], dict[str, Any]]:
    """Returns the steps of some options, in the order before translating, and the other options.

    Raises:
        InputError: An option has another value, or the engine lacks what the step needs.
    """
    steps, other_options = [], dict(options)
    for names, function in _STEPS:
        values = {name: other_options.pop(name, None) for name in names}
        values = {name: value for name, value in values.items() if value is not None}
        if values or function == _SENTENCES:  # Imported late: few texts have markup.
            steps.append(load(function)(engine, **values))
    return [step for step in steps if step is not None], other_options


def translate_in_steps(
    steps: Sequence[TextStep],
    engine: TextEngine,
    texts: Sequence[str],
    options: Mapping[str, Any],
    check: Callable[[], None] = lambda: None,
) -> list[Translation]:
    """Translates texts with the first step around the others, and all of them around the engine.

    Args:
        steps: The steps, the first step first.
        engine: The engine.
        texts: Texts to translate.
        options: Options of `Engine.translate`.
        check: Function that is called before each text of a step and before the engine. An error
            that it raises ends the translation.
    """
    options = dict(options)
    check_option("alignment", options.get("alignment", False), "True or False", bool)
    for name in _PER_TEXT:  # Several steps read the values, and an iterator can be read only once.
        if name in options:
            options[name] = values_of_texts(options[name])
    if options.get("phrases") is not None:
        options["phrases"] = checked_phrases(options["phrases"], len(texts))
    return _translate(steps, engine, texts, options, check)[0]


def _translate(steps, engine, texts, options, check):
    """Returns the translations, and the texts that the model has read."""
    if not steps:
        check()
        return engine.translate(texts, **options), texts
    step, *inner_steps = steps

    def checked(function):
        def call(*arguments):
            check()
            return function(*arguments)

        return call

    languages = one_for_each("source_language", options.get("source_language"), len(texts))
    parts = list(map(checked(step.before), texts, languages))
    if options.get("phrases"):
        _keep_whole(step, parts, texts, languages, options["phrases"])
    indices = [index for index, rows in enumerate(parts) for _ in rows]
    memories = [memory for rows in parts for _, memory in rows]
    inner_texts = [text for rows in parts for text, _ in rows]
    inner_options = options_of_parts(options, indices, texts, inner_texts)
    is_aligned = options.get("alignment", False)
    if step.needs_alignment or (
        any(map(step.uses_alignment, memories)) and _aligns(engine, options)
    ):
        inner_options["alignment"] = True
    if any(phrases := list(map(checked(step.phrases), texts))):
        inner_options["phrases"] = _with_phrases(options.get("phrases"), phrases)
    try:
        translations, read = _translate(inner_steps, engine, inner_texts, inner_options, check)
    except InputError as error:
        if error.index is None:
            raise
        raise InputError(error.message, indices[error.index]) from None
    changed = map(checked(step.after), translations, memories, read)
    texts_read = map(step.read, memories, read)
    sampling = options.get("sampling", False)
    joined = [
        Translation.joined(list(itertools.islice(changed, len(rows))), sampling, "")
        for rows in parts
    ]
    if inner_options.get("alignment") and not is_aligned:
        joined = list(map(_without_alignment, joined))
    return joined, ["".join(itertools.islice(texts_read, len(rows))) for rows in parts]


def _keep_whole(step, parts, texts, languages, phrases):
    """Replaces the parts of texts whose phrases are not all in one part each, where a step can."""
    for index, phrases_of_text in enumerate(phrases):
        texts_of_parts = [text for text, _ in parts[index]]
        if len(texts_of_parts) > 1 and None in _owners(phrases_of_text, texts_of_parts):
            parts[index] = step.whole(texts[index], languages[index]) or parts[index]


def _owners(phrases, parts):
    """Returns for each phrase the index of the first part that has it in its source, or None."""
    folded_parts = [fold_case(part) for part in parts]
    return [
        next((index for index, part in enumerate(folded_parts) if fold_case(phrase) in part), None)
        for phrase in phrases
    ]


def options_of_parts(
    options: Mapping[str, Any],
    indices: Sequence[int],
    texts: Sequence[str],
    parts: Sequence[str],
) -> dict[str, Any]:
    """Returns the options of the parts of texts.

    Args:
        options: Options of `Engine.translate`, some with a tuple or list of a value per text.
        indices: Index of each part's text.
        texts: The texts.
        parts: Their parts. A phrase goes to the part that has it.
    """
    options, count = dict(options), len(texts)
    if len(indices) == count and [*indices] == [*range(count)]:
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
    if "phrases" in values_by_name:
        rows: list[list[str]] = [[] for _ in parts]
        for index, phrases in enumerate(values_by_name["phrases"]):
            own = [part for part, index_of_part in enumerate(indices) if index_of_part == index]
            owners = _owners(phrases, [parts[part] for part in own]) if len(own) > 1 else []
            for phrase, owner in zip(phrases, owners or [0] * len(phrases), strict=True):
                if owner is None:
                    rule = "A phrase of a text that is split must be in one of its parts."
                    raise InputError(f"{rule} Received: {phrase!r}, in none of {len(own)}.", index)
                if own:
                    rows[own[owner]].append(phrase)
        options["phrases"] = tuple(rows)
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
