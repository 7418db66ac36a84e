"""Shipping a translator: text in, text out, checked against the live model.

Keras and TensorFlow are imported with what needs them, not with the package: LiteRT's engine does
without.
"""

import importlib

from keras_transformer.errors import VerificationError

_MODULES = {
    "CTranslate2Engine": "ctranslate2.engine",
    "ExportedClassifier": "classifier.engine",
    "ExportReport": "manifest",
    "LiteRTEngine": "litert.engine",
    "SavedModelEngine": "saved_model.engine",
    "export_classifier": "classifier.export",
    "export_ctranslate2": "ctranslate2.export",
    "export_litert": "litert.export",
    "export_saved_model": "saved_model",
}
__all__ = [*_MODULES, "VerificationError"]


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
