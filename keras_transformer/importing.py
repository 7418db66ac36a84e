"""Public names of `interop.importing`: models of other programs as models of this package."""

from keras_transformer.interop.importing import ImportedModel, import_model, import_run

__all__ = ["ImportedModel", "import_model", "import_run"]
