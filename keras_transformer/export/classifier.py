"""Labels of texts with a classifier that was exported as a SavedModel."""

import os
from pathlib import Path

import numpy as np

from keras_transformer.engine import LabelEngine, encoded
from keras_transformer.errors import InputError
from keras_transformer.export.exporter import open_export


class ExportedClassifier(LabelEngine):
    """Labels texts with the SavedModel of a classifier; no model code is needed.

    Raises:
        InputError: The folder is incomplete, damaged or no such export.
    """

    long_inputs = ("truncate",)

    def __init__(self, folder: str | os.PathLike):
        from keras_transformer.export.saved_model.engine import load_saved_model

        folder = Path(folder)
        self.manifest = open_export(folder, ("saved_model",), {"labels": list}, "a classifier")
        self.labels = self.manifest["labels"]
        self._call = load_saved_model(folder)

    def probabilities(self, texts, batch_size=32, long_input="truncate"):
        given, found = encoded("texts", texts), [np.zeros((0, len(self.labels)), "float32")]
        for start in range(0, len(given), batch_size):
            batch = given[start : start + batch_size]
            outputs = self._call("serving_default", {"text": batch})
            self._check_labels(outputs)
            found.append(outputs["probabilities"])
        return np.concatenate(found)

    def _check_labels(self, outputs):
        """Raises `InputError` unless the graph names the most probable label of each text."""
        rows = outputs["probabilities"]
        expected = [self.labels[np.argmax(row)] if row.any() else "" for row in rows]
        received = [label.decode("utf-8") for label in outputs["label"]]
        if received != expected:
            rule = "The export must name the most probable label of each text."
            raise InputError(f"{rule} Received: {received!r:.100} instead of {expected!r:.100}.")
