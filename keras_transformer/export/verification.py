"""Proof that an exported folder answers as the live model does, on its own."""

import collections
import contextlib
import dataclasses
import os
from pathlib import Path

from keras_transformer.errors import VerificationError
from keras_transformer.export.child_process import child_process
from keras_transformer.export.comparison import FLOAT32, SIXTEEN_BIT, check_signature, settle
from keras_transformer.export.graph_batches import CHUNK_SIZE
from keras_transformer.export.live_answers import LiveAnswers, teacher_forced
from keras_transformer.export.verification_texts import sample_texts

# What an export searches at once when the most of a batch has ended, and a sentence by itself.
_OTHER_SIZES = (CHUNK_SIZE // 4, 1)
_SEARCHES = ("serving_default", "greedy", "beam", "align", "serving_ids")
_FRESH_PROCESS = Path(__file__).with_name("fresh_process.py")

SECONDS_TO_START, SECONDS_PER_CALL = 300, 240
"""The time that a fresh process gets. A call, by both loaders, takes it about 5 s with 2 million
weights on two cores, nearly all of it in XLA's compiler."""


def verify(folder, engine, manifest, texts=None):
    """Calls every signature in fresh processes, and compares with the live model.

    Args:
        folder: Path of the SavedModel.
        engine: The `ModelEngine` that it was exported from.
        manifest: The content of its `export.json`.
        texts: A list of strings, 200 or more to be telling; random pieces of the source
            vocabulary if None.

    Returns:
        A dict that JSON can hold: for each SavedModel in the folder and each loader what it took,
        and how each signature's outputs compare.

    Raises:
        VerificationError: A SavedModel does not load, leaves variables uninitialized, needs Keras
            or this package, or answers differently.
    """
    texts = sample_texts(engine.source_tokenizer) if texts is None else list(texts)
    searched = (engine, manifest["beam_size"], manifest["length_penalty"], texts)
    live = LiveAnswers(*searched)

    def score(sources, targets):
        scored = teacher_forced(engine, sources, targets, manifest["length_penalty"])
        return [each.score for each in scored]

    def again(call):
        return (LiveAnswers(*searched, batch_size).answer(call) for batch_size in _OTHER_SIZES)

    whole_precision = engine.model.compute_dtype == "float32"
    tolerance = FLOAT32 if whole_precision else SIXTEEN_BIT
    report = {"tolerance": dataclasses.asdict(tolerance)}
    # Of each SavedModel: its folder, its signatures, whether it needs tensorflow-text's operations.
    models = {"saved_model": (folder, list(manifest["signatures"]), True)}
    if "serving_ids" in manifest["signatures"]:
        models["ids"] = (Path(folder) / "ids", ["serving_ids"], False)
    with contextlib.ExitStack() as stack:
        asked = []
        for name, (place, signatures, load_operations) in models.items():
            calls = live.calls(signatures)
            request = {
                "folder": os.fspath(place),
                "load_operations": load_operations,
                "custom_ops": manifest["custom_ops"],
                "calls": [{"signature": c.signature, "inputs": c.inputs} for c in calls],
                # Sessions rearrange arithmetic before XLA sees it. In float32 that changes a
                # score by 1e-5; in bfloat16 by 1e-2 (measured), which can turn a search another
                # way and proves nothing about the export: there the session leaves the graph as
                # it is.
                "rewrite_graph": whole_precision,
            }
            seconds = SECONDS_TO_START + SECONDS_PER_CALL * len(calls)
            process = child_process(_FRESH_PROCESS, request, seconds)
            asked.append((name, calls, stack.enter_context(process)))
        # While those run.
        expected = [[live.answer(call) for call in calls] for _, calls, _ in asked]
        for (name, calls, wait), answers in zip(asked, expected, strict=True):
            report[name] = _check_model(name, calls, answers, wait(), tolerance, again, score)
    return report


def _check_model(model, calls, expected, answers, tolerance, again, score):
    if answers["imported"]:
        raise VerificationError(
            "The export must load without Keras and without this package. "
            f"Received: {', '.join(answers['imported'])} imported while it ran."
        )
    if model == "ids" and answers["known_ops"]:
        raise VerificationError(
            "The SavedModel from ids to ids must need no custom operation. "
            f"Received: {', '.join(answers['known_ops'])} in the process."
        )
    report = {}
    for loader in ("session", "module"):
        answer = answers[loader]
        if answer["uninitialized"]:
            raise VerificationError(
                f"The {loader} loader must initialize every variable. Received: "
                f"{len(answer['uninitialized'])} uninitialized, {answer['uninitialized'][0]} first."
            )
        found, settled = {}, collections.Counter()
        for call, live, received in zip(calls, expected, answer["results"], strict=True):
            if call.signature in _SEARCHES:
                live, count = settle(live, received, tolerance, again(call))
                settled[call.signature] += count
            found.setdefault(call.signature, []).append((live, received, call.texts))
        report[loader] = {
            "load_seconds": answer["load_seconds"],
            "call_seconds": round(sum(answer["call_seconds"]), 3),
            "signatures": {
                name: {
                    **check_signature(
                        name,
                        [(live, received) for live, received, _ in outputs],
                        tolerance,
                        [texts for *_, texts in outputs],
                        score,
                    ),
                    "as_in_other_batch_sizes": settled[name],
                }
                for name, outputs in found.items()
            },
        }
    return report
