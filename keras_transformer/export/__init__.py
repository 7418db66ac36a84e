"""Shipping a translator: text in, text out, checked against the live model.

A format is a folder with an `Exporter`, its options in `options.py`, and an engine in `engine/`.
Keras and TensorFlow are imported with what needs them, not with the package.
`export_saved_model`, `export_litert`, `export_ctranslate2` and `export_web` are `Exporter.export`
of a format.
"""

import importlib
from typing import TYPE_CHECKING

from keras_transformer.errors import VerificationError

if TYPE_CHECKING:
    from keras_transformer.export.exporter import Exporter

_MODULES = {
    "ExportReport": "exporter",
    "FORMATS": "options",
}
_EXPORTERS = {
    "saved_model": "saved_model.export:SavedModelExporter",
    "tflite": "litert.export:LiteRTExporter",
    "litert": "litert.export:LiteRTExporter",
    "web": "web.export:WebExporter",
    "ctranslate2": "ctranslate2.export:CTranslate2Exporter",
}
_FUNCTIONS = {f"export_{name}": name for name in ("saved_model", "litert", "ctranslate2", "web")}
__all__ = [*_MODULES, *_FUNCTIONS, "VerificationError", "exporter_of"]


def __getattr__(name):
    if name in _FUNCTIONS:
        return exporter_of(_FUNCTIONS[name]).export
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def exporter_of(name: str) -> "Exporter":
    """Returns the exporter of a format in `FORMATS`."""
    module, _, exporter_class = _EXPORTERS[name].partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), exporter_class)()
