"""The steps of texts before an engine translates them, and of the translations after that."""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from keras_transformer.base.errors import InputError, check_folder
from keras_transformer.base.options import check as check_option
from keras_transformer.engine.steps.glossary import glossary_step
from keras_transformer.engine.steps.sentences import sentences_step
from keras_transformer.engine.steps.step import TextEngine, TextStep
from keras_transformer.engine.steps.tag import tag_step
from keras_transformer.engine.translation import Translation
from keras_transformer.text.folding import fold_case
from keras_transformer.text.per_text import (
    LANGUAGE_OPTIONS,
    checked_phrases,
    checked_texts,
    repeated,
    seed_of_part,
    values_of_texts,
)

_PER_TEXT = ("target_prefixes", "phrases", "seed", "alignment", *LANGUAGE_OPTIONS)
"""Options of `Engine.translate` that may have a value for each text."""


def _markup_step(engine, markup):
    check_folder("extras/markup")
    from keras_transformer.extras.markup.step import markup_step  # Late: few texts have markup.

    return markup_step(engine, markup)


# The steps in the order before translating: options of `Translator.translate`, and the function
# of an engine and of these options that makes the step.
_STEPS = (
    (("markup",), _markup_step),
    (("split_sentences", "copy_symbols", "keep_case", "tag", "glossary"), sentences_step),
    (("glossary", "glossary_by"), glossary_step),
    (("tag",), tag_step),
)
STEP_OPTIONS = tuple(dict.fromkeys(name for names, _ in _STEPS for name in names))
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
        values = {name: options[name] for name in names if options.get(name) is not None}
        for name in names:
            other_options.pop(name, None)
        if values or function is sentences_step:  # This step is made without options, too.
            steps.append(function(engine, **values))
    return [step for step in steps if step is not None], other_options


class TextsInSteps:
    """Texts that some steps have changed for an engine, and their way back from it.

    The first step is around the others, and all of them are around the engine. A caller has the
    engine translate `texts` with `options`, and passes its translations to `after`.

    Args:
        steps: The steps, the first step first.
        engine: The engine.
        texts: Texts to translate.
        options: Options of `Engine.translate`.
        check_cancelled: Function that is called before each text of a step. An error that it raises
            ends the preparation.

    Attributes:
        texts: Texts for the engine.
        options: Their options.
    """

    def __init__(
        self,
        steps: Sequence[TextStep],
        engine: TextEngine,
        texts: Sequence[str],
        options: Mapping[str, Any],
        check_cancelled: Callable[[], None] = lambda: None,
    ):
        self.texts, self.options, self._engine = texts, dict(options), engine
        self._check_cancelled = check_cancelled
        self._passed: list[_Passed] = []
        self._loses_alignments = False
        if not steps:
            return
        self.texts = checked_texts("texts", texts)
        is_aligned = self.options.get("alignment", False)
        check_option("alignment", is_aligned, "True or False", bool)
        self._loses_alignments = not is_aligned
        for name in _PER_TEXT:  # Several steps read the values, and an iterator is read only once.
            if name in self.options:
                self.options[name] = values_of_texts(self.options[name])
        if self.options.get("phrases") is not None:
            self.options["phrases"] = checked_phrases(self.options["phrases"], len(self.texts))
        places: list[Sequence[float]] = [()] * len(self.texts)
        for step in steps:
            places = self._pass(step, places)
        needs_alignment = any(step.needs_alignment for step in steps)
        if self._loses_alignments and (
            needs_alignment or (any(places) and _aligns(engine, self.options))
        ):
            # For each text, also if it is for none: a SavedModel's signature is the same for all.
            self.options["alignment"] = tuple(map(bool, places))

    def _pass(self, step, places):
        """Replaces the texts and their options by those after a step.

        Takes and returns the `TextStep.aligned_places` of each text.
        """
        texts, options = self.texts, self.options

        def checked(function):
            def call(*arguments):
                self._check_cancelled()
                return function(*arguments)

            return call

        languages = [repeated(name, options.get(name), len(texts)) for name in LANGUAGE_OPTIONS]
        parts = list(map(checked(step.before), texts, *languages))
        if options.get("phrases"):
            _keep_whole(step, parts, texts, languages, options["phrases"])
        indices = [index for index, rows in enumerate(parts) for _ in rows]
        states = [state for rows in parts for _, state in rows]
        self.texts = [text for rows in parts for text, _ in rows]
        begin = list(map(step.begins_translation, states))
        self.options = options_of_parts(options, indices, texts, self.texts, begin)
        if any(phrases := list(map(checked(step.phrases), texts))):
            self.options["phrases"] = _with_phrases(options.get("phrases"), phrases)
        self._passed.append(_Passed(step, indices, states, len(texts)))
        return [
            [*places_of_part, *step.aligned_places(state)]
            for row, places_of_text in zip(parts, places, strict=True)
            for (_, state), places_of_part in zip(
                row, _places_of_parts(step, row, places_of_text), strict=True
            )
        ]

    def stream(self) -> Iterator[str]:
        """Returns an iterator of the translation of the only text as it grows, part by part.

        The engine checks the options in this call, before anything is read of the result.

        Raises:
            InputError: A step needs whole translations, or the engine refuses an option.
        """
        if any(passed.step.needs_whole_texts for passed in self._passed):
            raise InputError("A stream preserves no markup. Translate the text without streaming.")
        return self._grown(self._stream_of(0) if self.texts else iter(()))

    def _stream_of(self, index):
        options = self._options_at(index)
        prefixes = options.pop("target_prefixes", None)
        return self._engine.stream(self.texts[index], target_prefix=prefixes or "", **options)

    def _grown(self, first):
        before = last = ""
        for index in range(len(self.texts)):
            translation = Translation("", 0.0)
            for text in self._stream_of(index) if index else first:
                translation = Translation(text, 0.0)
                # The space after a sentence comes with the next one.
                growing = (before + self._after_part(translation, index)).rstrip()
                if growing != last:
                    last = growing
                    yield last
            before += self._after_part(translation, index)
        if before != last:
            yield before

    def _after_part(self, translation, index):
        """Returns the text of a part, from the engine's translation of it."""
        read = self.texts[index]
        for step, indices, states, _ in reversed(self._passed):
            translation, read, index = (
                step.after(translation, states[index], [read]),
                step.read(states[index], read),
                indices[index],
            )
        return translation.text

    @property
    def states(self) -> list[list[Any]]:
        """What the first step keeps of the parts of each text; nothing without steps."""
        if not self._passed:
            return []
        first = self._passed[0]
        rows: list[list[Any]] = [[] for _ in range(first.num_texts)]
        for index, state in zip(first.indices, first.states, strict=True):
            rows[index].append(state)
        return rows

    def chunks(self, size: int) -> Iterator[tuple[Sequence[str], dict[str, Any]]]:
        """Yields at most `size` texts at a time, with their options, for `Engine.translate`."""
        for start in range(0, len(self.texts), size):
            self._check_cancelled()
            rows = slice(start, start + size)
            yield self.texts[rows], self._options_at(rows)

    def _options_at(self, rows):
        """Returns the options of the text at an index, or of the texts of a slice."""
        of_texts = options_of_texts(self.options)
        return self.options | {name: values[rows] for name, values in of_texts.items()}

    def index_of(self, index: int) -> int:
        """Returns the index of the text that a text for the engine is a part of."""
        for passed in reversed(self._passed):
            index = passed.indices[index]
        return index

    def after(self, translations: Sequence[Translation]) -> list[Translation]:
        """Returns the translation of each text, from the engine's translations of `texts`."""
        read = [[text] for text in self.texts]  # of each text, the texts of its parts
        for step, indices, states, num_texts in reversed(self._passed):
            rows: list[list[Translation]] = [[] for _ in range(num_texts)]
            read_of_rows: list[list[str]] = [[] for _ in range(num_texts)]
            for index, *part, texts in zip(indices, translations, states, read, strict=True):
                rows[index].append(step.after(*part, texts))
                read_of_rows[index].append(step.read(part[1], "".join(texts)))
            translations = [Translation.joined(row, "") for row in rows]
            read = read_of_rows
        if self._loses_alignments and self.options.get("alignment", False):
            translations = [*map(_without_alignment, translations)]
        return list(translations)


class _Passed(NamedTuple):
    """Result of a step: each part's text and state."""

    step: TextStep
    indices: list[int]  # of the parts' texts
    states: list[Any]
    num_texts: int


def _places_of_parts(step, parts, places):
    """Returns for each part of a text the places of the text inside it, counted from its start."""
    if len(parts) == 1 or not places:
        return [places] * len(parts)
    sizes = [len("".join(step.read(state, text).split())) for text, state in parts]
    starts = itertools.accumulate(sizes, initial=0)
    return [
        [place - start for place in places if start < place < start + size]
        for start, size in zip(starts, sizes, strict=False)
    ]


def _keep_whole(step, parts, texts, languages, phrases):
    """Replaces the parts of texts whose phrases are not all in one part each, where a step can."""
    for index, phrases_of_text in enumerate(phrases):
        texts_of_parts = [text for text, _ in parts[index]]
        if len(texts_of_parts) > 1 and None in _owners(phrases_of_text, texts_of_parts):
            of_text = (of_side[index] for of_side in languages)
            parts[index] = step.whole(texts[index], *of_text) or parts[index]


def _owners(phrases, parts):
    """Returns for each phrase the index of the first part that has it in its source, or None."""
    folded_parts = [fold_case(part) for part in parts]
    return [
        next((index for index, part in enumerate(folded_parts) if fold_case(phrase) in part), None)
        for phrase in phrases
    ]


def options_of_texts(options: Mapping[str, Any]) -> dict[str, Sequence]:
    """Returns the options that have a value for each text."""
    return {
        name: options[name] for name in _PER_TEXT if isinstance(options.get(name), (list, tuple))
    }


def options_of_parts(
    options: Mapping[str, Any],
    indices: Sequence[int],
    texts: Sequence[str],
    parts: Sequence[str],
    begin: Sequence[bool],
) -> dict[str, Any]:
    """Returns the options of the parts of texts.

    Args:
        options: Options of `Engine.translate`, some with a tuple or list of a value per text.
        indices: Index of each part's text, in rising order.
        texts: The texts.
        parts: Their parts. A phrase goes to the part that has it, and a target prefix to the first
            part that is read. Each part has its own seed.
        begin: Whether each part may have the prefix, if another part may have it.
    """
    options, count = dict(options), len(texts)
    if [*indices] == [*range(count)]:
        return options
    parts_of: list[list[int]] = [[] for _ in texts]
    for part, index in enumerate(indices):
        parts_of[index].append(part)
    for name, values in options_of_texts(options).items():
        values = repeated(name, tuple(values), count)
        if name == "target_prefixes":
            options[name] = _prefixes_of_parts(values, parts_of, parts, begin)
        elif name == "phrases":
            options[name] = _phrases_of_parts(values, parts_of, parts)
        else:
            options[name] = tuple(values[index] for index in indices)
    if options.get("sampling"):
        seeds = repeated("seed", options.get("seed"), len(indices))
        numbers = [number for row in parts_of for number in range(len(row))]
        options["seed"] = tuple(map(seed_of_part, seeds, numbers))
    return options


def _prefixes_of_parts(prefixes, parts_of, parts, begin):
    """Returns the target prefix of each part: that of its text, or ""."""
    prefixes_of_parts = [""] * len(parts)
    for prefix, indices in zip(prefixes, parts_of, strict=True):
        read = [part for part in indices if parts[part].strip()] or indices
        prefixes_of_parts[next((part for part in read if begin[part]), read[0])] = prefix
    return prefixes_of_parts


def _phrases_of_parts(phrases, parts_of, parts):
    """Returns the phrases of each part; raises `InputError` for a phrase that is in none."""
    phrases_of_parts: list[list[str]] = [[] for _ in parts]
    for index, (phrases_of_text, indices) in enumerate(zip(phrases, parts_of, strict=True)):
        owners = [0] * len(phrases_of_text)
        if len(indices) > 1:
            owners = _owners(phrases_of_text, [parts[part] for part in indices])
        for phrase, owner in zip(phrases_of_text, owners, strict=True):
            if owner is None:
                rule = "A phrase of a text that is split must be in one of its parts."
                raise InputError(f"{rule} Received: {phrase!r}, in none of {len(indices)}.", index)
            phrases_of_parts[indices[owner]].append(phrase)
    return tuple(phrases_of_parts)


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
    phrases = [()] * len(phrases_of_steps) if phrases is None else phrases
    return [
        [*(collections.Counter(of_text) | collections.Counter(of_step)).elements()]
        for of_text, of_step in zip(phrases, phrases_of_steps, strict=True)
    ]


def _without_alignment(translation):
    if translation.alignment is None and not (translation.alternatives or translation.parts):
        return translation
    alternatives = tuple(map(_without_alignment, translation.alternatives))
    parts = tuple(map(_without_alignment, translation.parts))
    return dataclasses.replace(translation, alignment=None, alternatives=alternatives, parts=parts)
