"""Export of a classifier: one graph from text to label and probabilities, verified."""

import os
from pathlib import Path
from typing import Any, Literal

from keras_transformer.decoding import ClassifierEngine
from keras_transformer.errors import InputError
from keras_transformer.export.classifier.verification import verify
from keras_transformer.export.fresh_process import TEXT_FILE
from keras_transformer.export.litert.export import check_exportable
from keras_transformer.export.litert.file import convert, custom_operations, join
from keras_transformer.export.manifest import (
    ExportReport,
    check_tensorflow,
    common_fields,
    phase,
    staged_export,
)
from keras_transformer.export.saved_model import save
from keras_transformer.files import file_digests


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

    Args (the others are those of `export_saved_model`):
        runtime: A SavedModel, or `model.tflite` for LiteRT.
        quantize: As for `export_litert`, of LiteRT alone.
        **options: Those of other exports mean nothing here.

    Raises:
        InputError: As `export_litert`, or an option means nothing here.
        ImportError: As `export_litert`.
        VerificationError: The export does not give what the live model does.
    """
    if runtime == "saved_model" and quantize != "none":
        options["quantize"] = quantize
    if options:
        raise InputError(f"The export of a classifier has no `{next(iter(options))}`.")
    if runtime == "litert":
        check_exportable(engine, quantize)
    else:
        check_tensorflow("SavedModel")
    with staged_export(output, overwrite) as (folder, finish):
        written = _write(engine, folder, runtime, quantize)
        packages = ["tensorflow", "tensorflow-text", "keras"]
        packages += ["ai-edge-litert"] if runtime == "litert" else []
        manifest = {
            **common_fields("classifier", 1, engine, packages),
            **{"runtime": runtime, "labels": engine.labels, "quantize": quantize},
            **written,
            "files": file_digests(folder),
        }
        return finish(manifest, lambda: verify(folder, engine, manifest, verification_texts))


def _write(engine, folder: Path, runtime, quantize):
    """Writes the graph; gives what the manifest says of it."""
    from keras_transformer.export.classifier import graphs

    if runtime == "saved_model":
        return save(engine, folder, graphs.LabelSignature(engine), ["serving_default"])
    with phase("signature traced and saved"):
        functions = [("serving_default", graphs.litert_function(engine))]
        content = join(convert(functions, custom_operations=True), quantize)
    (folder / TEXT_FILE).write_bytes(content)
    return {"custom_ops": custom_operations(content)}
