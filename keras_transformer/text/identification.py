"""Identifies the language of a text with py3langid."""

import functools
from typing import Any

from keras_transformer.base.errors import require


def language_identifier(purpose: str = "for the rule language,") -> Any:
    """Returns py3langid's identifier, whose `rank` gives languages with their probabilities.

    Raises:
        InputError: py3langid is not installed; the message names the purpose.
    """
    return _identifier(require("py3langid.langid", f"py3langid, {purpose}", "clean"))


@functools.cache
def _identifier(langid):
    """Loads the model of py3langid, once for all purposes."""
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
