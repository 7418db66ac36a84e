"""Whole models.

Keras is imported with the first model: their configurations, in `config`, do without.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_transformer.models.recurrent import RecurrentTranslator as RecurrentTranslator
    from keras_transformer.models.transformer import KINDS as KINDS
    from keras_transformer.models.transformer import Classifier as Classifier
    from keras_transformer.models.transformer import LanguageModel as LanguageModel
    from keras_transformer.models.transformer import Transformer as Transformer
    from keras_transformer.models.transformer import model_of as model_of

_MODULES = {
    "Classifier": "transformer",
    "KINDS": "transformer",
    "LanguageModel": "transformer",
    "RecurrentTranslator": "recurrent",
    "Transformer": "transformer",
    "model_of": "transformer",
}
__all__ = list(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__():
    return [*globals(), *__all__]
