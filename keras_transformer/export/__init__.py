"""Shipping a translator: text in, text out, checked against the live model.

TensorFlow is imported when a function of this package is called, not with the package.
"""

from keras_transformer.errors import VerificationError
from keras_transformer.export.litert import export_litert
from keras_transformer.export.litert.engine import LiteRTEngine
from keras_transformer.export.manifest import ExportReport
from keras_transformer.export.saved_model import export_saved_model
from keras_transformer.export.saved_model.engine import SavedModelEngine

__all__ = [
    "ExportReport",
    "LiteRTEngine",
    "SavedModelEngine",
    "VerificationError",
    "export_litert",
    "export_saved_model",
]
