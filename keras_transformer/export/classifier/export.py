"""Export of a classifier: one graph from text to label and probabilities, verified."""

import os
import time
from pathlib import Path
from typing import Any, Literal

import keras

from keras_transformer.decoding import ClassifierEngine
from keras_transformer.errors import InputError
from keras_transformer.export.classifier.verification import verify
from keras_transformer.export.fresh_process import TEXT_FILE
from keras_transformer.export.manifest import (
    ExportReport,
    common_fields,
    describe_and_verify,
    file_digests,
    phase,
)
from keras_transformer.files import staged_folder


def export_classifier(
    engine: ClassifierEngine,
    output: str | os.PathLike,
    runtime: Literal["saved_model", "litert"] = "saved_model",
    quantize: Literal["none", "float16", "int8"] = "none",
    verification_texts: list[str] | None = None,
    overwrite: bool = False,
    **options: Any,
) -> ExportReport:
    """Writes a folder with a classifier and its tokenizer in one graph, verified.

    `serving_default` takes `text`, string `(batch,)`, and gives `label`, string `(batch,)`, and
    `probabilities`, float32 `(batch, labels)`, in the order of `labels` in `export.json`; of a
    blank text "" and 0. A text of too many tokens is cut. The folder gets its name after a fresh
    process has given the live model's probabilities.

    Args:
        engine: `ClassifierEngine`.
        output: Path of the folder to make.
        runtime: A SavedModel, or `model.tflite` for LiteRT.
        quantize: As for `export_litert`, of LiteRT alone.
        verification_texts: Texts to verify with; by default some of random tokens.
        overwrite: Whether an earlier export of that name is replaced.
        **options: Those of other exports mean nothing here.

    Raises:
        InputError: As `export_litert`, or an option means nothing here.
        ImportError: As `export_litert`.
        VerificationError: The export does not give what the live model does.
    """
    start = time.perf_counter()
    if runtime == "saved_model" and quantize != "none":
        options["quantize"] = quantize
    if options:
        raise InputError(f"The export of a classifier has no `{next(iter(options))}`.")
    if runtime == "litert":
        from keras_transformer.export.litert.export import check_exportable

        check_exportable(engine, quantize, kind="classifier")
    elif keras.backend.backend() != "tensorflow":
        rule = "A SavedModel is exported on Keras' TensorFlow backend."
        raise InputError(f"{rule} Received: backend={keras.backend.backend()!r}.")
    with staged_folder(output, overwrite) as folder:
        with phase("signature traced and saved"):
            found = _write(engine, folder, runtime, quantize)
        packages = ["tensorflow", "tensorflow-text", "keras"]
        packages += ["ai-edge-litert"] if runtime == "litert" else []
        manifest = {
            **common_fields("classifier", 1, engine, packages),
            **{"runtime": runtime, "labels": engine.labels, "quantize": quantize},
            **found,
            "files": file_digests(folder),
        }
        verification = describe_and_verify(
            folder, manifest, lambda: verify(folder, engine, manifest, verification_texts)
        )
    seconds = time.perf_counter() - start
    return ExportReport(os.fspath(output), manifest, verification, seconds)


def _write(engine, folder: Path, runtime, quantize):
    """Writes the graph; gives what the manifest says of it."""
    import tensorflow as tf

    from keras_transformer.export.classifier import graphs
    from keras_transformer.export.litert.file import convert, custom_operations, join
    from keras_transformer.export.saved_model import operations_of, trackable_variables
    from keras_transformer.export.saved_model.batches import write_warmup

    if runtime == "litert":
        functions = [("serving_default", graphs.litert_function(engine))]
        content = join(convert(functions, custom_operations=True), quantize)
        (folder / TEXT_FILE).write_bytes(content)
        return {"custom_ops": custom_operations(content)}
    module = tf.Module()
    module.weights = trackable_variables(engine.model)
    functions = {"serving_default": graphs.saved_model_function(engine)}
    tf.saved_model.save(module, os.fspath(folder), functions)
    return {"warmup": write_warmup(folder, engine, functions), **operations_of(folder, functions)}
