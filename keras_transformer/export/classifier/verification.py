"""Proof that an exported classifier gives the live model's probabilities, on its own."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_transformer.decoding import ClassifierEngine
from keras_transformer.errors import VerificationError
from keras_transformer.export.child_process import child_process
from keras_transformer.export.progress import phase
from keras_transformer.export.verification import (
    FLOAT32,
    SIXTEEN_BIT,
    sample_texts,
    verification_batches,
)

_SECONDS = 600
# How far a probability may be off, where the weights are stored in fewer bits than they had.
_OF_QUANTIZED = {"float16": 0.02, "int8": 0.2}


def verify(
    folder: Path, engine: ClassifierEngine, manifest: dict, texts: Sequence[str] | None = None
) -> dict:
    """Calls an export in a fresh process, through both loaders of a SavedModel.

    Every probability must be the live model's, but for rounding, and each label the one that the
    export itself finds most probable.

    Raises:
        VerificationError: It does not load or run there, or answers differently.
    """
    texts = sample_texts(engine.source_tokenizer) if texts is None else list(texts)
    batches = verification_batches(texts, engine.source_tokenizer, engine.max_source_length)
    if manifest["runtime"] == "litert":
        program = "litert_classifier"
        request = {"folder": os.fspath(folder), "batches": batches}
    else:
        calls = [{"signature": "serving_default", "inputs": {"text": batch}} for batch in batches]
        program = "saved_model"
        request = {
            "folder": os.fspath(folder),
            "load_operations": True,
            "custom_ops": manifest["custom_ops"],
            "calls": calls,
            "rewrite_graph": engine.model.compute_dtype == "float32",
        }
    whole = FLOAT32 if engine.model.compute_dtype == "float32" else SIXTEEN_BIT
    tolerance = _OF_QUANTIZED.get(manifest["quantize"], whole.score)
    with child_process(program, request, _SECONDS) as wait:
        with phase("the live model's answers, while a fresh process gives the export's"):
            live = [_probabilities(engine, batch) for batch in batches]
        answers = wait()
    report = {"tolerance": tolerance}
    for loader in ("session", "module") if program == "saved_model" else ("litert",):
        answer = answers[loader]
        if answer.get("uninitialized"):
            first = answer["uninitialized"][0]
            raise VerificationError(f"{loader}: every variable must be initialized, not {first}.")
        pairs = zip(live, answer["results"], strict=True)
        largest = max(_checked(one, other, engine.labels) for one, other in pairs)
        if not largest <= tolerance:
            raise VerificationError(
                f"{loader}: probabilities must be the live model's up to {tolerance}. Received: "
                f"one that differs by {largest:.4f}."
            )
        report[loader] = {
            "texts": sum(map(len, batches)),
            "largest_difference": round(largest, 7),
            "call_seconds": answer["call_seconds"],
        }
    return report


def _probabilities(engine, texts):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not texts:
            return np.zeros((0, len(engine.labels)), "float32")
        return engine.probabilities(texts, long_input="truncate")


def _checked(live, received, labels):
    """The largest difference of two batches, after the shapes and the labels have been checked."""
    found = np.array(received["probabilities"], "float32").reshape(-1, len(labels))
    if found.shape != live.shape or len(received["label"]) != len(live):
        raise VerificationError(
            f"There must be {live.shape} probabilities and a label for each text. Received: "
            f"{found.shape}, {len(received['label'])} labels."
        )
    for row, label in zip(found, received["label"], strict=True):
        expected = labels[int(np.argmax(row))] if row.any() else ""
        if label != expected:
            raise VerificationError(
                f"The label must be the most probable one, {expected!r}. Received: {label!r}."
            )
    return float(np.abs(live - found).max(initial=0.0))
