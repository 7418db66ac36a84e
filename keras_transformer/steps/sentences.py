"""The step of a text's sentences: each is translated by itself, and every space is kept."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

from keras_transformer.errors import InputError
from keras_transformer.options import check
from keras_transformer.steps.step import TextEngine, TextStep
from keras_transformer.steps.tag import tagged, without_tags
from keras_transformer.text.capitals import in_capitals, in_usual_case, is_in_capitals
from keras_transformer.text.sentences import (
    TextRules,
    has_letters,
    primary_language,
    sentence_ends,
    space_after,
)
from keras_transformer.text.symbols import PLACEHOLDER, symbol


class _Sentence(NamedTuple):
    """What becomes of the translation of a sentence."""

    text: str = ""  # what the steps and the engine get, without tags
    before: str = ""  # white space
    after: str = ""
    copied: str | None = None  # the translation of a sentence that the model does not read
    raises: Callable[[str], str] | None = None  # puts a text into capitals
    symbols: Mapping[str, str] = {}  # placeholders of the text, by those that the model reads
    is_last: bool = True

    def restored(self, text: str) -> str:
        """Returns a text of the model with the capitals and the placeholders of the source."""
        return self.with_symbols(text if self.raises is None else self.raises(text))

    def with_symbols(self, text: str) -> str:
        """Returns a text with the placeholders of the source."""
        if not self.symbols:
            return text
        return PLACEHOLDER.sub(lambda match: self.symbols.get(match[0], match[0]), text)


_AS_IT_IS = _Sentence()


class SentencesStep(TextStep):
    """Divides texts into sentences, and keeps their white space.

    Args:
        rules: What becomes of sentences, of texts without letters, and of capitals.
        languages: Codes of the sources' and of the targets' language, None where it is unknown.
        split_tags: Splits off the tags that a text begins with, which become each sentence's tags.
        has_placeholders: Whether the vocabulary has placeholders. Those of each sentence are
            numbered from 1, as in training.
    """

    def __init__(
        self,
        rules: TextRules,
        languages: tuple[str | None, str | None] = (None, None),
        split_tags: Callable[[str], tuple[str, str]] = lambda text: ("", text),
        has_placeholders: bool = False,
    ):
        self._rules, self._languages, self._split_tags = rules, languages, split_tags
        self._has_placeholders = has_placeholders
        self.splits_long_texts = rules.split_sentences

    def before(self, text, language=None):
        return self._divided(text, language, self._rules.split_sentences)

    def whole(self, text, language=None):
        return self._divided(text, language, False)

    def _divided(self, text, language, splits):
        tags, text = self._split_tags(text)
        language = language or self._languages[0]
        ends = sentence_ends(text, primary_language(language)) if splits else [len(text)]
        rows = [
            self._row(text[start:end], tags, language, is_last=end == len(text))
            for start, end in itertools.pairwise([0, *ends])
        ]
        return rows or [("", _AS_IT_IS)]

    def _row(self, sentence, tags, language, is_last):
        text = sentence.strip()
        start = sentence.index(text)
        space = sentence[:start], sentence[start + len(text) :]
        memory = _Sentence("", *space, is_last=is_last)
        if not text or (self._rules.copy_symbols and not has_letters(text)):
            return "", memory._replace(copied=text)
        if self._rules.keep_case and is_in_capitals(text):
            text = in_usual_case(text, primary_language(language))
            target = primary_language(self._languages[1])
            memory = memory._replace(raises=functools.partial(in_capitals, language=target))
        if self._has_placeholders:
            text, symbols = _with_first_symbols(text)
            memory = memory._replace(symbols=symbols)
        return tagged(text, tags or None), memory._replace(text=text)

    def after(self, translation, memory, text_read):
        if memory == _AS_IT_IS:
            return translation
        if memory.copied is None:
            translation = _restored(translation, memory)
        else:
            words = tuple(memory.copied.split())
            translation = dataclasses.replace(
                translation, text=memory.copied, tokens=words, source_tokens=words
            )
        return self._spaced(translation, memory)

    def _spaced(self, translation, memory):
        text = translation.text
        space = memory.after if memory.is_last else space_after(memory.after, text)
        alternatives = (self._spaced(other, memory) for other in translation.alternatives)
        return dataclasses.replace(
            translation, text=f"{memory.before}{text}{space}", alternatives=tuple(alternatives)
        )

    def read(self, memory, text_read):
        if memory.copied is None:
            text = memory.with_symbols(without_tags(text_read, memory.text))
        else:
            text = memory.copied
        return f"{memory.before}{text}{memory.after}"


def _with_first_symbols(sentence):
    """Returns a sentence with the first placeholders, and its own placeholders by these."""
    names = dict.fromkeys(PLACEHOLDER.findall(sentence))
    symbols = {symbol(number): name for number, name in enumerate(names, 1)}
    if all(new == old for new, old in symbols.items()):
        return sentence, {}
    new_names = {old: new for new, old in symbols.items()}
    return PLACEHOLDER.sub(lambda match: new_names[match[0]], sentence), symbols


def _restored(translation, memory):
    """Returns a translation with restored texts and tokens, also of its parts and alternatives."""
    if memory.raises is None and not memory.symbols:
        return translation
    changed = {
        name: tuple(_restored(other, memory) for other in getattr(translation, name))
        for name in ("parts", "alternatives")
    } | {
        name: tuple(map(memory.with_symbols, getattr(translation, name)))
        for name in ("tokens", "source_tokens")
    }
    return dataclasses.replace(translation, text=memory.restored(translation.text), **changed)


def sentences_step(
    engine: TextEngine,
    split_sentences: bool | None = None,
    copy_symbols: bool | None = None,
    keep_case: bool | None = None,
) -> SentencesStep | None:
    """Makes the step of these options, whose defaults the model knows.

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
    tokenizer = engine.source_tokenizer
    split_tags = {} if tokenizer is None else {"split_tags": tokenizer.split_tags}
    return SentencesStep(
        engine.text_rules._replace(**values),
        _languages_of(engine),
        has_placeholders=engine.text_features.placeholders.size > 0,
        **split_tags,
    )


def _languages_of(engine):
    """Returns the languages of a model of one direction."""
    directions = () if engine.languages is None else engine.languages.directions
    return directions[0] if len(directions) == 1 else (None, None)
