"""Shipping a classifier: text to label and probabilities, as a SavedModel or for LiteRT."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from keras_transformer.engine import LabelEngine, encoded
from keras_transformer.errors import InputError
from keras_transformer.export.exporter import ExportReport, read_manifest, read_template
from keras_transformer.owned_folder import OwnedFolder

FORMATS = ("saved_model", "litert", "classifier")  # The last is version 0.1's.


class ExportedClassifier(LabelEngine):
    """Gives labels with a folder that `export_classifier` wrote; no model code is needed.

    Args:
        threads: Threads of LiteRT.

    Raises:
        InputError: The folder is incomplete, damaged or no such export.
    """

    long_inputs = ("truncate",)

    def __init__(self, folder: str | os.PathLike, threads: int = 2):
        folder = Path(folder)
        self.manifest = read_manifest(folder, FORMATS, ("labels", "files"), "a classifier")
        files = self.manifest["files"]
        # LiteRT's manifest describes a file, others have its digest alone.
        digests = {
            name: each["sha256"] if isinstance(each, dict) else each for name, each in files.items()
        }
        OwnedFolder(folder).check_digests(digests)
        self.labels = self.manifest["labels"]
        if not (folder / "saved_model.pb").exists():
            from keras_transformer.export.litert.engine import TEXT_FILE, SharedInterpreter

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


def export_classifier(
    engine: LabelEngine,
    output: str | os.PathLike,
    runtime: Literal["saved_model", "litert"] = "saved_model",
    quantize: Literal["none", "float16", "int8"] = "none",
    verification_texts: Sequence[str] | None = None,
    overwrite: bool = False,
    **options: Any,
) -> ExportReport:
    """Writes a folder with a classifier and its tokenizer in one graph, verified.

    `serving_default` takes `text`, string `(batch,)`, and gives `label`, string `(batch,)`, and
    `probabilities`, float32 `(batch, labels)`, in the order of `labels` in `export.json`; of a
    blank text "" and 0. A text of too many tokens is cut. The folder gets its name after a fresh
    process has given the live model's probabilities.

    Args (the others are those of `export_saved_model`):
        runtime: A SavedModel, or `model.tflite` for LiteRT.
        quantize: Weights of LiteRT, see `export_litert`.
        **options: Options of other exports, each an error here.

    Raises:
        InputError: An option is not a classifier's; see `export_litert`.
        ImportError: LiteRT is not installed.
        VerificationError: The export does not give what the live model does.
    """
    from keras_transformer.export import exporter_of

    if runtime == "litert" or quantize != "none":
        options["quantize"] = quantize
    made = exporter_of("tflite" if runtime == "litert" else runtime)
    return made.export(engine, output, verification_texts, overwrite, **options)


def classifier_readme(manifest: dict, load: str) -> str:
    """Returns the README of a classifier; `load` is the template of the lines that load it."""
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    labels = ", ".join(f"`{label}`" for label in manifest["labels"])
    fields = {"load": read_template(load).template, "labels": labels, "versions": versions}
    return read_template("classifier.md").substitute({**manifest, **fields})
