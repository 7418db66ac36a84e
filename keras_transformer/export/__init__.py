"""Shipping a translator: text in, text out, checked against the live model.

A format is a folder with an `Exporter` and an `Engine`. Keras and TensorFlow are imported with what
needs them, not with the package: the engines do without Keras.
"""

import importlib
from typing import TYPE_CHECKING, Any

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
Row = tuple[str, Any, str | None, str]
"""An option on the command line: name, type (None is a switch), metavar and help."""

_SEARCH: tuple[Row, ...] = (
    ("beam_size", int, "N", "default: the run's"),
    ("length_penalty", float, "A", "default: the run's"),
)
_QUANTIZE = ("quantize", str, "KIND", "weights as float16 or int8; default: none (float32)")
_LENGTHS = "tokens of a source that signatures are made for; default: 32 64 128, web: 32 96"
_SIGNATURES = "serving_default greedy beam sample score align serving_ids; default: all"
_LITERT: tuple[Row, ...] = (
    *_SEARCH,
    _QUANTIZE,
    ("source_lengths", [int], "N", _LENGTHS),
    ("n_best", int, "N", "hypotheses that beam search returns; default: all"),
    ("ids_only", None, None, "leave out the file that takes text"),
)
_NPM = "where npm installed LiteRT.js; default: here or above"
FORMATS: dict[str, tuple[Row, ...]] = {
    "saved_model": (*_SEARCH, ("signatures", [str], "NAME", _SIGNATURES)),
    "tflite": _LITERT,
    "litert": _LITERT,
    "web": (*_LITERT[:4], ("npm", str, "DIR", _NPM)),
    "ctranslate2": (*_SEARCH, _QUANTIZE),
    "tokenizer_json": (),
}
"""The formats on the command line with their options, here because `--help` imports no exporter."""


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def exporter_of(name: str) -> "Exporter":
    """Returns the exporter of a format in `FORMATS`."""
    module, _, exporter_class = _EXPORTERS[name].partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), exporter_class)()
