"""Shipping a translator: text in, text out, checked against the live model.

A format is a folder with an `Exporter` and an `Engine`. Keras and TensorFlow are imported with what
needs them, not with the package: the engines do without Keras.
"""

import importlib
from typing import TYPE_CHECKING

from keras_transformer.errors import VerificationError

if TYPE_CHECKING:
    from keras_transformer.export.exporter import Exporter

_MODULES = {
    "CTranslate2Engine": "ctranslate2.engine",
    "ExportedClassifier": "classifier",
    "ExportReport": "exporter",
    "LiteRTEngine": "litert.engine",
    "SavedModelEngine": "saved_model.engine",
    "export_classifier": "classifier",
    "export_ctranslate2": "ctranslate2.export",
    "export_litert": "litert.export",
    "export_saved_model": "saved_model",
    "export_web": "web.export",
    "has_labels": "exporter",
}
__all__ = [*_MODULES, "FORMATS", "VerificationError", "exporter_of"]

_EXPORTERS = {
    "saved_model": "saved_model:SavedModelExporter",
    "tflite": "litert.export:LiteRTExporter",
    "litert": "litert.export:LiteRTExporter",
    "web": "web.export:WebExporter",
    "ctranslate2": "ctranslate2.export:CTranslate2Exporter",
    "tokenizer_json": "tokenizer_json:TokenizerExporter",
}
FORMATS = tuple(_EXPORTERS)
"""The names of the formats on the command line."""


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def exporter_of(name: str) -> "Exporter":
    """Returns the exporter of a format in `FORMATS`."""
    module, _, exporter_class = _EXPORTERS[name].partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), exporter_class)()
