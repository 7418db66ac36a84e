"""Labels from an exported classifier."""

import os
from pathlib import Path

import numpy as np

from keras_transformer.export.engine import encoded
from keras_transformer.export.fresh_process import TEXT_FILE
from keras_transformer.export.manifest import read_manifest
from keras_transformer.labelling import LabelEngine
from keras_transformer.owned_folder import MANIFEST, OwnedFolder


class ExportedClassifier(LabelEngine):
    """Gives labels with a folder that `export_classifier` wrote; no model code is needed.

    Args:
        threads: Of LiteRT.

    Raises:
        InputError: The folder is incomplete, damaged or no such export.
    """

    long_inputs = ("truncate",)

    def __init__(self, folder: str | os.PathLike, threads: int = 2):
        folder, wanted = Path(folder), ("runtime", "labels", "files")
        expected = f"{folder}: expected a classifier that this package exported."
        missing = f"a folder without {MANIFEST}"
        self.manifest = read_manifest(folder, ("classifier",), wanted, expected, missing)
        OwnedFolder(folder).check_digests(self.manifest["files"])
        self.labels = self.manifest["labels"]
        if self.manifest["runtime"] == "litert":
            from keras_transformer.export.litert.engine import SharedInterpreter

            self._run = SharedInterpreter(folder / TEXT_FILE, True, threads).run
        else:
            from keras_transformer.export.saved_model.engine import call_signature, load_saved_model

            self._module = load_saved_model(folder)  # held, with its variables
            signature = self._module.signatures["serving_default"]
            self._run = lambda **inputs: call_signature(signature, inputs)

    def probabilities(self, texts, batch_size=32, long_input="truncate"):
        given, found = encoded("texts", texts), [np.zeros((0, len(self.labels)), "float32")]
        for start in range(0, len(given), batch_size):
            batch = np.array(given[start : start + batch_size], dtype=object)
            found.append(self._run(text=batch)["probabilities"])
        return np.concatenate(found)
