"""Engines, which open a folder and translate texts, and `Translator`, which picks an engine.

Keras, TensorFlow and other packages are imported with the engine that needs them.
"""

from typing import TYPE_CHECKING

from keras_transformer.base.imports import lazy_names

if TYPE_CHECKING:
    from keras_transformer.engine.classifier_engine import ClassifierEngine as ClassifierEngine
    from keras_transformer.engine.engine import Engine as Engine
    from keras_transformer.engine.ids_engine import IdsEngine as IdsEngine
    from keras_transformer.engine.label_engine import LabelEngine as LabelEngine
    from keras_transformer.engine.model_engine import ModelEngine as ModelEngine
    from keras_transformer.engine.model_engine import engine_of as engine_of
    from keras_transformer.engine.translator import Translator as Translator

_MODULES = {
    "ClassifierEngine": "classifier_engine",
    "Engine": "engine",
    "IdsEngine": "ids_engine",
    "LabelEngine": "label_engine",
    "ModelEngine": "model_engine",
    "Translator": "translator",
    "engine_of": "model_engine",
}
__all__ = list(_MODULES)
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
