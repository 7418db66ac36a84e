"""Tags before texts: a token of the corpus, or of the target language."""

import re
from collections.abc import Collection
from typing import Any

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import check_choice
from keras_transformer.engine.steps.step import TextEngine, TextStep
from keras_transformer.text.tags import TAG, split_tag

_TAG_BEFORE_TEXT = re.compile(f"(?:{TAG.pattern}) ")


def tagged(text: str, token: str | None) -> str:
    """Puts the token of a tag in front of a source; a blank source stays blank."""
    return text if token is None or not text.strip() else f"{token} {text}"


def without_tags(text_read: str, text: str) -> str:
    """Removes the tags that steps put in front of a text."""
    position = 0
    while (match := _TAG_BEFORE_TEXT.match(text_read, position)) and not text.startswith(match[0]):
        position = match.end()
    return text_read[position:]


class TagStep(TextStep):
    """Puts the token of a tag in front of each text, or after the language that a text begins with.

    Args:
        token: Token of the tag.
        tokenizer: `Tokenizer` of the sources; None if it is unknown.
        languages: Tokens of the model's languages.
    """

    def __init__(self, token: str, tokenizer: Any, languages: Collection[str] = ()):
        self._token, self._tokenizer = token, tokenizer
        self._languages = () if token in languages else languages

    def before(self, text, language=None, target_language=None):
        # Training reads the token of a language first.
        language, text = split_tag(text, self._languages)
        is_blank = False
        if self._tokenizer is not None:
            # Without its tag, so that a text without tokens stays blank.
            (ids,) = self._tokenizer.tokenize([text])
            is_blank = not ids
        text = tagged(text, None if is_blank else self._token)
        return [(f"{language} {text}" if language else text, None)]


def tag_step(engine: TextEngine, tag: str) -> TagStep:
    """Makes the step of the option `tag`."""
    tokens = engine.text_features.tag_tokens
    if not tokens:
        raise InputError(f"`tag` needs a model trained with tags. Received: tag={tag!r}.")
    check_choice("tag", tag, tuple(tokens))
    languages = () if engine.languages is None else engine.languages.tokens.values()
    return TagStep(tokens[tag], engine.source_tokenizer, languages)
