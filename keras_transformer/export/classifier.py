"""Labels of texts with an exported classifier, a SavedModel or a file for LiteRT."""

import os
from pathlib import Path

import numpy as np

from keras_transformer.engine import LabelEngine, encoded
from keras_transformer.errors import InputError
from keras_transformer.export.exporter import open_export


class ExportedClassifier(LabelEngine):
    """Gives labels with the export of a classifier; no model code is needed.

    Args:
        threads: Threads of LiteRT.

    Raises:
        InputError: The folder is incomplete, damaged or no such export.
    """

    long_inputs = ("truncate",)

    def __init__(self, folder: str | os.PathLike, threads: int = 2):
        folder = Path(folder)
        formats = "saved_model", "litert"
        self.manifest = open_export(folder, formats, {"labels": list}, "a classifier")
        self.labels = self.manifest["labels"]
        if not (folder / "saved_model.pb").exists():
            from keras_transformer.export.litert.engine import TEXT_FILE, SharedInterpreter

            self._run = SharedInterpreter(folder / TEXT_FILE, True, threads).run
        else:
            from keras_transformer.export.saved_model.engine import load_saved_model

            call = load_saved_model(folder)
            self._run = lambda text: call("serving_default", {"text": text.tolist()})

    def probabilities(self, texts, batch_size=32, long_input="truncate"):
        given, found = encoded("texts", texts), [np.zeros((0, len(self.labels)), "float32")]
        for start in range(0, len(given), batch_size):
            batch = np.array(given[start : start + batch_size], dtype=object)
            outputs = self._run(text=batch)
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
