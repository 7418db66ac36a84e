"""Proof that an exported classifier gives the live model's probabilities, on its own."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_transformer.decoding import ClassifierEngine
from keras_transformer.errors import VerificationError
from keras_transformer.export.manifest import phase
from keras_transformer.export.saved_model.verification import (
    Call,
    check_initialized,
    fresh_process,
)
from keras_transformer.export.verification import (
    FLOAT32,
    SIXTEEN_BIT,
    sample_texts,
    verification_batches,
)

# How far a probability may be off where weights are stored in fewer bits than they had.
_OF_QUANTIZED = {"float16": 0.02, "int8": 0.2}


def verify(
    folder: Path, engine: ClassifierEngine, manifest: dict, texts: Sequence[str] | None = None
) -> dict:
    """Calls an export in a fresh process; of a SavedModel through both loaders.

    Every probability must be the live model's but for rounding, and each label the one that the
    export itself finds most probable. Raises `VerificationError` otherwise.
    """
    texts = sample_texts(engine.source_tokenizer) if texts is None else list(texts)
    batches = verification_batches(texts, engine.source_tokenizer, engine.max_source_length)
    exact = engine.model.compute_dtype == "float32"
    program, loaders = "saved_model", ("session", "module")
    if manifest["runtime"] == "litert":
        program, loaders = "litert_classifier", ("litert",)
    calls = [Call("serving_default", {"text": batch}, tuple(batch)) for batch in batches]
    tolerance = (FLOAT32 if exact else SIXTEEN_BIT).score
    tolerance = _OF_QUANTIZED.get(manifest["quantize"], tolerance)
    with fresh_process(folder, "saved_model", manifest, calls, exact, program) as wait:
        with phase("the live model's answers, while a fresh process gives the export's"):
            with warnings.catch_warnings(action="ignore"):
                live = [engine.probabilities(batch, long_input="truncate") for batch in batches]
        answers = wait()
    report = {"texts": sum(map(len, batches)), "tolerance": tolerance}
    for loader in loaders:
        check_initialized(loader, answers[loader])
        pairs = zip(live, answers[loader]["results"], strict=True)
        largest = max(_difference(*pair, engine.labels) for pair in pairs)
        if not largest <= tolerance:
            raise VerificationError(
                f"{loader}: probabilities must be the live model's up to {tolerance}. Received: "
                f"one that is {largest:.4f} off."
            )
        report[loader] = {"largest_difference": round(largest, 7)}
    return report


def _difference(live, received, labels):
    """The largest of a batch's probabilities, after the labels have been checked."""
    found = np.array(received["probabilities"], "float32").reshape(-1, len(labels))
    expected = [labels[int(np.argmax(row))] if row.any() else "" for row in found]
    if found.shape != live.shape or received["label"] != expected:
        raise VerificationError(
            "There must be a row of probabilities for each text, and the label of the largest one. "
            f"Received: {found.shape} for {live.shape}, {received['label']!r:.200}."
        )
    return float(np.abs(live - found).max(initial=0.0))
