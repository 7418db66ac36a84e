"""Whole models.

Keras is imported with the first model: their configurations, in `config`, do without.
"""

from typing import TYPE_CHECKING

from keras_transformer.base.imports import lazy_names

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
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
