"""A tokenizer and an engine without a model, for what happens around a model.

A new attribute of tokenizers or engines is written here once. Tests give the values that matter.
"""

import re

from keras_transformer import Translation
from keras_transformer.base.ids import EOS_ID
from keras_transformer.engine import Engine
from keras_transformer.text.symbols import Placeholders


class FakeTokenizer:
    """Has one token per word, the word itself; `attributes` replace what is here."""

    vocabulary_size = 11
    turn_id = None
    tag_tokens: dict[str, str] = {}
    placeholders = Placeholders()
    annotates_terms = False

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def tokenize(self, texts, add_eos=False):
        if isinstance(texts, str):
            return texts.split() + [EOS_ID] * add_eos
        return [self.tokenize(text, add_eos) for text in texts]

    def spans(self, text):
        return [match.span() for match in re.finditer(r"\S+", text)]

    def split_tags(self, text):
        return "", text


class FakeEngine(Engine):
    """Writes upper case, and keeps the texts and options of the last call.

    `attributes` are those of the engine that a test needs: `turns`, `languages`, `translate`, ….
    """

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def translate(self, texts, **options):
        self.texts, self.options = texts, options
        return [Translation(text.upper(), -1.0) for text in texts]
