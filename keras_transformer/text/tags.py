"""Tags before texts: a token of the corpus, or of the target language."""

import re
from typing import Any

from keras_transformer.text.steps import TextStep

_TAG = re.compile(r"(?:<[a-z0-9][a-z0-9-]*>|>>\S+<<) ")


def tagged(text: str, token: str | None) -> str:
    """Puts the token of a tag in front of a source; a blank source stays blank."""
    return text if token is None or not text.strip() else f"{token} {text}"


def without_tags(text_read: str, text: str) -> str:
    """Removes the tags that steps put in front of a text."""
    position = 0
    while (match := _TAG.match(text_read, position)) and not text.startswith(match[0]):
        position = match.end()
    return text_read[position:]


class TagStep(TextStep):
    """Puts the token of a tag in front of each text.

    Args:
        token: Token of the tag.
        tokenizer: `Tokenizer` of the sources; None if it is unknown.
    """

    def __init__(self, token: str, tokenizer: Any):
        self._token, self._tokenizer = token, tokenizer

    def before(self, text):
        if self._tokenizer is not None:
            # Without its tag, so that a text without tokens stays blank.
            (ids,) = self._tokenizer.tokenize([text])
            return [(tagged(text, self._token if ids else None), None)]
        return [(tagged(text, self._token), None)]
