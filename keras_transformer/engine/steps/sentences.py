"""The step of a text's sentences: each is translated by itself, and every space is kept."""

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import check
from keras_transformer.engine.steps.glossary import Glossary, glossary_of
from keras_transformer.engine.steps.step import TextEngine, TextStep
from keras_transformer.engine.steps.tag import tagged, without_tags
from keras_transformer.text.capitals import in_capitals, in_usual_case, is_in_capitals
from keras_transformer.text.language_codes import primary_language
from keras_transformer.text.sentences import (
    TextRules,
    has_letters,
    sentence_ends,
    space_after,
)
from keras_transformer.text.symbols import PLACEHOLDER, symbol
from keras_transformer.text.tags import language_in_tag


class _Sentence(NamedTuple):
    """A sentence, the spaces around it, and the changes that its translation takes back."""

    text: str = ""  # without tags
    before: str = ""  # white space
    after: str = ""
    is_last: bool = True
    is_copied: bool = False  # because the model does not read it
    raises: Callable[[str], str] | None = None  # puts a text into capitals
    # The text's placeholders, by those that the model reads; None if its vocabulary has none.
    symbols: Mapping[str, str] | None = None

    def restored(self, text: str) -> str:
        """Returns a text of the model with the capitals and the placeholders of the source."""
        return self.with_symbols(text if self.raises is None else self.raises(text))

    def with_symbols(self, text: str) -> str:
        """Returns a text with the placeholders of the source, and without invented ones."""
        if self.symbols is None or "<ph_" not in text:
            return text
        symbols = self.symbols

        def restored(match):
            name = symbols.get(match[2])
            return "" if name is None else match[1] + name

        return _SPACED_SYMBOL.sub(restored, text).lstrip()


_SPACED_SYMBOL = re.compile(rf"(?<!\s)(\s*)({PLACEHOLDER.pattern})")
_AS_IT_IS = _Sentence()
_Codes = tuple[str | None, str | None]


def _named_codes(source: str | None, target: str | None) -> _Codes:
    return source, target


def _without_a_tag(text: str) -> tuple[str, str]:
    return "", text


class SentencesStep(TextStep):
    """Divides texts into sentences, and keeps their white space.

    Args:
        rules: What becomes of sentences, of texts without letters, and of capitals.
        known_codes: Returns the codes of a source's and of its target's language, None where one is
            unknown, from those that a caller names.
        split_tags: Splits off the tags that a text begins with, which become each sentence's tags.
        has_placeholders: Whether the vocabulary has placeholders. Each sentence numbers its own
            from 1, as in training.
        target_language: The targets' language, where neither a caller nor a text names it.
        glossary: Terms that a sentence in capitals keeps as they are in the glossary.
    """

    def __init__(
        self,
        rules: TextRules,
        known_codes: Callable[[str | None, str | None], _Codes] = _named_codes,
        split_tags: Callable[[str], tuple[str, str]] = _without_a_tag,
        has_placeholders: bool = False,
        target_language: str | None = None,
        glossary: Glossary | None = None,
    ):
        self._rules, self._split_tags, self._glossary = rules, split_tags, glossary
        self._has_placeholders = has_placeholders
        self._target_language = target_language
        self._languages = functools.cache(
            lambda source, target: [*map(primary_language, known_codes(source, target))]
        )
        self.splits_long_texts = rules.split_sentences

    def before(self, text, language=None, target_language=None):
        return self._divided(text, language, target_language, self._rules.split_sentences)

    def whole(self, text, language=None, target_language=None):
        return self._divided(text, language, target_language, False)

    def _divided(self, text, language, target_language, splits):
        tags, text = self._split_tags(text)
        if target_language is None:
            names = map(language_in_tag, tags.split())
            target_language = next(filter(None, names), self._target_language)
        # The engine refuses a name that is none.
        names = [name if isinstance(name, str) else None for name in (language, target_language)]
        source, target = self._languages(*names)
        ends = sentence_ends(text, source) if splits else [len(text)]
        rows = [
            self._row(text[start:end], tags, source, target, is_last=end == len(text))
            for start, end in itertools.pairwise([0, *ends])
        ]
        return rows or [("", _AS_IT_IS)]

    def _row(self, sentence, tags, source, target, is_last):
        text = sentence.strip()
        start = sentence.index(text)
        space = sentence[:start], sentence[start + len(text) :]
        if not text or (self._rules.copy_symbols and not has_letters(text)):
            return "", _Sentence(text, *space, is_last, is_copied=True)
        raises, symbols = None, {} if self._has_placeholders else None
        if self._rules.keep_case and is_in_capitals(text):
            terms = () if self._glossary is None else self._glossary.matches(text)
            text = in_usual_case(text, source, [term[:2] for term in terms])
            raises = functools.partial(in_capitals, language=target)
        if self._has_placeholders and "<ph_" in text:
            text, symbols = _with_first_symbols(text)
        return tagged(text, tags or None), _Sentence(text, *space, is_last, False, raises, symbols)

    def after(self, translation, state, texts_read):
        if state == _AS_IT_IS._replace(text=state.text):
            return translation
        if state.is_copied:
            words = tuple(state.text.split())
            translation = dataclasses.replace(
                translation, text=state.text, tokens=words, source_tokens=words, alignment=None
            )
        else:
            translation = _restored(translation, state)
        return self._spaced(translation, state)

    def _spaced(self, translation, state):
        text = translation.text
        space = state.after if state.is_last else space_after(state.after, text)
        alternatives = (self._spaced(other, state) for other in translation.alternatives)
        return dataclasses.replace(
            translation, text=f"{state.before}{text}{space}", alternatives=tuple(alternatives)
        )

    def read(self, state, text_read):
        text = state.text
        if not state.is_copied:
            text = state.with_symbols(without_tags(text_read, text))
        return f"{state.before}{text}{state.after}"


def _with_first_symbols(sentence):
    """Returns a sentence with the first placeholders, and its own placeholders by these."""
    names = dict.fromkeys(PLACEHOLDER.findall(sentence))
    symbols = {symbol(number): name for number, name in enumerate(names, 1)}
    new_names = {old: new for new, old in symbols.items()}
    return PLACEHOLDER.sub(lambda match: new_names[match[0]], sentence), symbols


def _restored(translation, state):
    """Returns a translation with restored texts and tokens, also of its parts and alternatives."""
    if state.raises is None and state.symbols is None:
        return translation
    changed = {
        name: tuple(_restored(other, state) for other in getattr(translation, name))
        for name in ("parts", "alternatives")
    } | {
        name: tuple(map(state.with_symbols, getattr(translation, name)))
        for name in ("tokens", "source_tokens")
    }
    return dataclasses.replace(translation, text=state.restored(translation.text), **changed)


def sentences_step(
    engine: TextEngine,
    split_sentences: bool | None = None,
    copy_symbols: bool | None = None,
    keep_case: bool | None = None,
    tag: str | None = None,
    glossary: str | os.PathLike | Mapping[str, str] | Glossary | None = None,
) -> SentencesStep | None:
    """Makes the step of these options, whose defaults the model knows; a tag may name a language.

    Returns None for models whose texts are more than sentences: classifiers, language models, and
    models of conversations.
    """
    options = {
        "split_sentences": split_sentences,
        "copy_symbols": copy_symbols,
        "keep_case": keep_case,
    }
    values = {name: value for name, value in options.items() if value is not None}
    for name, value in values.items():
        check(name, value, "True or False", bool)
    if engine.labels is not None or engine.turns is not None or not engine.reads_sources:
        if chosen := [name for name, value in values.items() if value]:
            rule = "needs a model that translates sentences"
            raise InputError(f"`{chosen[0]}` {rule}. Received: {engine.noun}.")
        return None
    features, languages = engine.text_features, engine.languages
    tokenizer = engine.source_tokenizer
    token = features.tag_tokens.get(tag) if isinstance(tag, str) else None
    return SentencesStep(
        engine.text_rules._replace(**values),
        _named_codes if languages is None else languages.known_codes,
        _without_a_tag if tokenizer is None else tokenizer.split_tags,
        has_placeholders=features.placeholders.size > 0,
        target_language=language_in_tag(token or ""),
        glossary=None if glossary is None else glossary_of(glossary),
    )
