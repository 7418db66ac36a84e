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
)
from keras_transformer.export.progress import phase
from keras_transformer.files import staged_folder

_PACKAGES = {"litert": ("ai-edge-litert",), "saved_model": ()}


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
        quantize: How LiteRT's weights are stored, as for `export_litert`.
        verification_texts: Texts to verify with; by default some of random tokens.
        overwrite: Whether an earlier export of that name is replaced.
        **options: None: no search is made.

    Raises:
        InputError: An option means nothing here, `output` exists, or the backend is another than
            TensorFlow.
        ImportError: `ai-edge-litert` is not installed; it comes with the extra `litert`.
        VerificationError: The export does not give what the live model does.
    """
    start = time.perf_counter()
    if options or (runtime == "saved_model" and quantize != "none"):
        name = next(iter({**options, "quantize": quantize}))
        raise InputError(f"The export of a classifier has no `{name}`.")
    if runtime == "litert":
        from keras_transformer.export.litert.export import check_exportable

        check_exportable(engine, quantize, kind="classifier")
    elif keras.backend.backend() != "tensorflow":
        raise InputError(
            "A SavedModel is exported on Keras' TensorFlow backend. "
            f"Received: backend={keras.backend.backend()!r}."
        )
    with staged_folder(output, overwrite) as folder:
        more = _write_litert(engine, folder, quantize) if runtime == "litert" else {}
        more = more or _write_saved_model(engine, folder)
        packages = *_PACKAGES[runtime], "tensorflow", "tensorflow-text", "keras"
        manifest = {
            **common_fields("classifier", 1, engine, packages),
            "runtime": runtime,
            "labels": engine.labels,
            "quantize": quantize,
            **more,
            "files": file_digests(folder),
        }
        verification = describe_and_verify(
            folder, manifest, lambda: verify(folder, engine, manifest, verification_texts)
        )
    seconds = time.perf_counter() - start
    return ExportReport(os.fspath(output), manifest, verification, seconds)


def _write_saved_model(engine, folder: Path):
    import tensorflow as tf

    from keras_transformer.export.classifier.graphs import saved_model_function
    from keras_transformer.export.saved_model import operations_of, trackable_variables
    from keras_transformer.export.saved_model.batches import write_warmup

    module = tf.Module()
    module.weights = trackable_variables(engine.model)
    with phase("signature traced and saved"):
        functions = {"serving_default": saved_model_function(engine)}
        tf.saved_model.save(module, os.fspath(folder), functions)
    return {"warmup": write_warmup(folder, engine, functions), **operations_of(folder, functions)}


def _write_litert(engine, folder: Path, quantize):
    from keras_transformer.export.classifier.graphs import litert_function
    from keras_transformer.export.litert.file import convert, join

    parts = convert([("serving_default", litert_function(engine))], custom_operations=True)
    (folder / TEXT_FILE).write_bytes(join(parts, quantize))
    return {"custom_ops": ["TFText>FastSentencepieceTokenize"]}
