"""Proof that LiteRT files translate as the live model does, without it."""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from keras_transformer.errors import VerificationError
from keras_transformer.export.comparison import FLOAT32, compare
from keras_transformer.export.verification_texts import sample_texts, verification_batches

_PROCESS = Path(__file__).with_name("litert_process.py")
# What weights in fewer bits may change: the mean difference of the scores, as a share of the mean
# score. On the Multi30k run it is 0.018 in int8.
_SHARE_OF_SCORE = {"float16": 0.005, "int8": 0.08}
_LEAST_DIFFERENCE = 0.02


def verify_litert(folder, engine, manifest, texts=None):
    """Translates with the exported files in a fresh process, and with the live model.

    In float32 the translations must be the live model's. With weights in fewer bits they need
    not; then the live model scores what the export translated, and the scores must be close.

    Args:
        folder: Path of the folder.
        engine: A `ModelEngine` with the export's limits.
        manifest: The content of its `export.json`.
        texts: A list of strings; random pieces of the source vocabulary if None.

    Returns:
        A dict that JSON can hold.

    Raises:
        VerificationError: A file does not load or run on its own, or translates differently.
    """
    tokenizer = engine.source_tokenizer
    texts = sample_texts(tokenizer) if texts is None else list(texts)
    batches = verification_batches(texts, tokenizer, engine.max_source_length)
    answers = _ask_fresh_process(folder, batches)
    report = {"batch_sizes": [len(batch) for batch in batches]}
    for search in manifest["searches"]:
        live = _live(engine, batches, search, manifest)
        found = {kind: _pairs(answer, search) for kind, answer in answers.items()}
        for kind, answer in answers.items():
            name = f"{kind}, {search}"
            if manifest["quantize"] == "none":
                comparison = _exact(name, live, found[kind])
            elif kind == "ids":
                ids = _joined(answer, search, "ids")
                expected = _scored(engine, batches, ids, found[kind], manifest)
                comparison = _close(name, expected, found[kind], live, manifest)
            else:
                # The same weights in the same bits: what the ids gave.
                comparison = _close(name, found["ids"], found[kind], live, manifest)
            report[name] = {
                **comparison,
                "load_seconds": answer["load_seconds"],
                "call_seconds": answer["searches"][search]["call_seconds"],
            }
    return report


def _joined(answer, search, name):
    """What all batches of a search gave, in one list."""
    return [each for result in answer["searches"][search]["results"] for each in result[name]]


def _pairs(answer, search):
    texts, scores = (_joined(answer, search, name) for name in ("translation", "score"))
    return list(zip(texts, scores, strict=True))


def _live(engine, batches, search, manifest):
    options = {
        "beam_size": 1 if search == "greedy" else manifest["beam_size"],
        "length_penalty": manifest["length_penalty"],
    }
    live = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # A text that is cut is among them on purpose.
        for batch in batches:
            live += engine.translate(batch, long_input="truncate", **options)
    return [(each.text, each.score) for each in live]


def _exact(name, live, received):
    try:
        return dataclasses.asdict(compare(live, received, FLOAT32))
    except VerificationError as error:
        raise VerificationError(f"{name}: {error}") from None


def _scored(engine, batches, ids, received, manifest):
    """What the live model scores the ids that the export gave; what it cannot score, as it is."""
    texts = [text for batch in batches for text in batch]
    lengths = [len(each) for each in engine.source_tokenizer.tokenize(texts)]
    scored = list(received)
    # What is blank has no score; what was cut was not translated as it stands.
    places = [
        place for place, row in enumerate(ids) if row and lengths[place] < engine.max_source_length
    ]
    found = engine.score(
        [texts[place] for place in places],
        [ids[place] for place in places],
        length_penalty=manifest["length_penalty"],
    )
    for place, each in zip(places, found, strict=True):
        scored[place] = (each.text, each.score)
    return scored


def _close(name, expected, received, live, manifest):
    if not len(expected) == len(received) == len(live):
        raise VerificationError(f"{name}: {len(received)} translations of {len(live)} texts.")
    differences = [abs(a - b) for (_, a), (_, b) in zip(expected, received, strict=True)]
    mean = statistics.fmean(differences)
    size = statistics.fmean(abs(score) for _, score in expected)
    most = _SHARE_OF_SCORE[manifest["quantize"]] * size + _LEAST_DIFFERENCE
    if not mean <= most:
        raise VerificationError(
            f"{name}: the scores must be close to what they are expected to be. Received: a mean "
            f"difference of {mean:.4f} on {len(live)} texts, at most {most:.4f} expected."
        )
    return {
        "texts": len(live),
        "same_translation": sum(a == b for (a, _), (b, _) in zip(live, received, strict=True)),
        "mean_score_difference": round(mean, 6),
        "largest_score_difference": round(max(differences), 6),
    }


def _ask_fresh_process(folder, batches):
    with tempfile.TemporaryDirectory() as exchange:
        request, answer = Path(exchange) / "request.json", Path(exchange) / "answer.json"
        request.write_text(json.dumps({"batches": batches}), encoding="utf-8")
        command = [sys.executable, "-P", _PROCESS, folder, request, answer]
        process = subprocess.run(
            [os.fspath(part) for part in command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if process.returncode or not answer.is_file():
            lines = [line for line in process.stderr.splitlines() if line.strip()] or ["no message"]
            raise VerificationError(
                "The exported files must load and run in a fresh process. "
                f"Received: exit status {process.returncode}, {lines[-1][:500]}"
            )
        return json.loads(answer.read_text(encoding="utf-8"))
