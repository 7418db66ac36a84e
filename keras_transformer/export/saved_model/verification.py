"""Proof that an exported SavedModel answers as the live model does, on its own."""

import collections
import contextlib
import dataclasses
import math
import os
from collections.abc import Iterable
from pathlib import Path

from keras_transformer.decoding import ModelEngine
from keras_transformer.errors import VerificationError
from keras_transformer.export.child_process import child_process
from keras_transformer.export.manifest import phase
from keras_transformer.export.verification import (
    FLOAT32,
    SIXTEEN_BIT,
    accept_rounding_ties,
    check_signature,
    live_translations,
    sample_texts,
    teacher_forced,
    verification_batches,
)
from keras_transformer.inputs import bucket, length_buckets
from keras_transformer.translation import CONTINUATION

CHUNK_SIZE = 32
"""Most sentences in one call of a compiled function, a power of two: it bounds the memory of a
large request, and with it the number of programs that XLA compiles."""

IDS = "ids"
"""The subfolder with the SavedModel from ids to ids."""

# What an export searches at once when the most of a batch has ended, and a sentence by itself.
_OTHER_SIZES = (CHUNK_SIZE // 4, 1)
_SEARCHES = ("serving_default", "greedy", "beam", "align", "serving_ids")
SECONDS_TO_START, SECONDS_PER_CALL = 300, 240
"""The time that a fresh process gets. A call, by both loaders, takes it about 5 s with 2 million
weights on two cores, nearly all of it in XLA's compiler."""


# Two kinds of sampling in turns: the options are inputs, one for each sentence.
_SAMPLING = (
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
    {"temperature": 0.75, "top_k": 7, "top_p": 0.875},
)


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a signature: its inputs, nested lists, and the texts that they are made of."""

    signature: str
    inputs: dict
    texts: tuple


def call_batches(texts: list[str], tokenizer, max_source_length: int) -> dict[str, list[str]]:
    """The texts in named batches, for the calls of an export.

    `all` the texts with blank and foreign ones; `too_long`, one that is cut; `many`, 224 texts of
    one padded length, for which one program does, and of these `few` and `one`; `none`.
    """
    none, too_long, _, one, *rest = verification_batches(texts, tokenizer, max_source_length)
    buckets = length_buckets(max_source_length)
    by_length = {}
    for text in texts or one:
        length = len(tokenizer.tokenize(text)) + 1
        by_length.setdefault(bucket(length, buckets), []).append(text)
    most = max(by_length.values(), key=len)
    many = [most[i % len(most)] for i in range(7 * CHUNK_SIZE)]
    return {
        "all": sum(rest, []),
        "too_long": too_long,
        "many": many,
        "few": many[:CHUNK_SIZE],
        "one": many[:1],
        "none": none,
    }


# Each shape of each program is compiled twice in the fresh process and once here: the signatures
# that have programs of their own see one length. `many` comes before `one`, which is part of it.
_BATCHES = {
    "serving_default": ("too_long", "all", "many", "one", "none"),
    "greedy": ("many", "one", "none"),
    "beam": ("many", "one", "none"),
    "sample": ("many", "one", "none"),
    "score": ("few", "one", "none"),
    "align": ("few", "one", "none"),
    "serving_ids": ("too_long", "many", "one", "none"),
}


def signature_inputs(signature: str, texts: list[str], tokenizer) -> dict[str, list]:
    """The inputs of a call of a signature that are made of texts, nested lists."""
    if signature == "serving_ids":
        return {"source_ids": _padded(tokenizer.tokenize(texts, add_eos=True), 0)}
    if signature == "score":
        # A target for a source: any text is one.
        return {"source": texts, "target": [" ".join(text.split()[::-1]) for text in texts]}
    if signature == "sample":
        chosen = [_SAMPLING[place % 2] for place in range(len(texts))]
        options = {name: [each[name] for each in chosen] for name in _SAMPLING[0]}
        return {"text": texts, "seed": [7919 * i for i in range(len(texts))], **options}
    return {"text": texts}


class ReferenceOutputs:
    """Calls of an export's signatures, and the live engine's outputs of them.

    Beam size and length penalty are the export's; the live engine searches at most `batch_size`
    sentences at once.
    """

    def __init__(self, engine, beam_size, length_penalty, texts, batch_size=CHUNK_SIZE):
        self._engine, self._length_penalty = engine, length_penalty
        # As many hypotheses for all: another number would be another program.
        self._beams = {"beam_size": beam_size, "n_best": beam_size}
        self._common = {"length_penalty": length_penalty, "batch_size": batch_size}
        limit = engine.max_source_length
        self._batches = call_batches(texts, engine.source_tokenizer, limit)
        self._found = {}

    def calls(self, signatures: Iterable[str]) -> list[Call]:
        """The calls of some signatures."""
        tokenizer = self._engine.source_tokenizer
        return [
            Call(name, signature_inputs(name, texts, tokenizer), tuple(texts))
            for name in signatures
            for texts in map(self._batches.get, _BATCHES[name])
        ]

    def outputs(self, call: Call) -> dict[str, list]:
        """The outputs that the export must give, nested lists."""
        name, found = call.signature, self._translations(call)
        reports_both = self._engine.continues_source and name in ("greedy", "beam", "sample")
        scores = _SCORES + (CONTINUATION if reports_both else ())
        # A blank text has no continuation: 0.
        outputs = {each: [getattr(one, each) or 0 for one in found] for each in scores}
        if name == "score":
            return outputs
        if name == "serving_ids":
            return {"ids": _padded([each.ids for each in found], 0), "score": outputs["score"]}
        if name == "beam":
            fields = {"translation": "text", **{each: each for each in scores}}
            return {
                output: [_hypotheses(each, field, self._beams["n_best"]) for each in found]
                for output, field in fields.items()
            }
        outputs["translation"] = [each.text for each in found]
        if name == "serving_default":
            del outputs["log_probability"]
        if name == "align":
            outputs["source_tokens"] = _padded([each.source_tokens for each in found], "")
            outputs["target_tokens"] = _padded([each.tokens for each in found], "")
            found = [each.alignment for each in found]
            outputs["alignment"] = [[] if each is None else each.tolist() for each in found]
        return outputs

    def _translations(self, call):
        if call.signature == "score":
            return teacher_forced(self._engine, *call.inputs.values(), self._length_penalty)
        if call.signature == "greedy":
            return self._searched(call.texts, beam_size=1)
        if call.signature == "sample":
            results = [None] * len(call.texts)
            for kind, options in enumerate(_SAMPLING):
                chosen = call.texts[kind::2], call.inputs["seed"][kind::2]
                results[kind::2] = self._searched(*chosen, sampling=True, **options)
            return results
        more = {"alignment": True} if call.signature == "align" else {}
        return self._searched(call.texts, **self._beams, **more)

    def _searched(self, texts, seeds=None, **options):
        """Translations; each text is translated once, since its batch-mates do not matter."""
        found = self._found.setdefault(tuple(sorted(options.items())), {})
        keys = list(zip(texts, seeds or [0] * len(texts), strict=True))
        if new := [key for key in dict.fromkeys(keys) if key not in found]:
            new_texts, new_seeds = zip(*new, strict=True)
            options |= self._common if seeds is None else {"seed": new_seeds, **self._common}
            results = live_translations(self._engine, list(new_texts), **options)
            found.update(zip(new, results, strict=True))
        return [found[key] for key in keys]


_SCORES = ("log_probability", "score")


def _hypotheses(best, field, count):
    """One field of a translation and its alternatives; missing ones are "" and -inf."""
    missing = {"text": "", "continuation_length": 0}.get(field, -math.inf)
    found = [getattr(each, field) for each in (best, *best.alternatives)]
    # A blank text has no continuation: 0.
    return [each or 0 if field in CONTINUATION else each for each in found] + [missing] * (
        count - len(found)
    )


def _padded(rows, value):
    width = max(map(len, rows), default=0)
    return [[*row, *[value] * (width - len(row))] for row in rows]


def verify(
    folder: os.PathLike, engine: ModelEngine, manifest: dict, texts: list[str] | None = None
) -> dict:
    """Calls every signature in fresh processes, and compares with the live model.

    Without `texts`, 200 or more to be telling, they are of random tokens. Returns for each
    SavedModel in the folder and each loader what it took, and how each signature's outputs compare.

    Raises:
        VerificationError: A SavedModel does not load, leaves variables uninitialized, needs Keras
            or this package, or answers differently.
    """
    texts = sample_texts(engine.source_tokenizer) if texts is None else list(texts)
    penalty = manifest["length_penalty"]
    searched = (engine, manifest["beam_size"], penalty, texts)
    reference = ReferenceOutputs(*searched)

    def score(sources, found):
        return [each.score for each in teacher_forced(engine, sources, found, penalty, True)]

    def again(call):
        return (ReferenceOutputs(*searched, size).outputs(call) for size in _OTHER_SIZES)

    whole_precision = engine.model.compute_dtype == "float32"
    tolerance = FLOAT32 if whole_precision else SIXTEEN_BIT
    report = {"tolerance": dataclasses.asdict(tolerance)}
    models = {"saved_model": list(manifest["signatures"])}
    if "serving_ids" in manifest["signatures"]:
        models["ids"] = ["serving_ids"]
    with contextlib.ExitStack() as stack:
        asked = []
        for name, signatures in models.items():
            calls = reference.calls(signatures)
            process = fresh_process(folder, name, manifest, calls, whole_precision)
            asked.append((name, calls, stack.enter_context(process)))
        # While those run.
        with phase("the live model's answers, while fresh processes give the export's"):
            expected = [[reference.outputs(call) for call in calls] for _, calls, _ in asked]
        for (name, calls, wait), live in zip(asked, expected, strict=True):
            with phase(f"waited for {name}"):
                answers = wait()
            with phase(f"{name} compared"):
                report[name] = _check_model(name, calls, live, answers, tolerance, again, score)
    return report


def fresh_process(folder, model, manifest, calls, whole_precision, program="saved_model"):
    """A process with the answers to calls of a folder's SavedModel; see `child_process`."""
    request = {
        "folder": os.fspath(Path(folder) / (IDS if model == "ids" else "")),
        "load_operations": model != "ids",
        "custom_ops": manifest["custom_ops"],
        "calls": [{"signature": each.signature, "inputs": each.inputs} for each in calls],
        # Sessions rearrange arithmetic before XLA sees it. In float32 that changes a score by 1e-5;
        # in bfloat16 by 1e-2 (measured), which can turn a search another way and proves nothing
        # about the export: there the session leaves the graph as it is.
        "rewrite_graph": whole_precision,
    }
    return child_process(program, request, SECONDS_TO_START + SECONDS_PER_CALL * len(calls))


def check_initialized(loader: str, answer: dict) -> None:
    """Raises `VerificationError` for a variable that a loader left uninitialized."""
    if unready := answer["uninitialized"]:
        raise VerificationError(
            f"The {loader} loader must initialize every variable. Received: "
            f"{len(unready)} uninitialized, {unready[0]} first."
        )


def _check_model(model, calls, expected, answers, tolerance, again, score):
    if model == "ids" and answers["known_ops"]:
        raise VerificationError(
            "The SavedModel from ids to ids must need no custom operation. "
            f"Received: {', '.join(answers['known_ops'])} in the process."
        )
    report = {}
    for loader in ("session", "module"):
        answer = answers[loader]
        check_initialized(loader, answer)
        found, accepted = {}, collections.Counter()
        for call, live, received in zip(calls, expected, answer["results"], strict=True):
            if call.signature in _SEARCHES:
                live, count = accept_rounding_ties(live, received, tolerance, again(call))
                accepted[call.signature] += count
            found.setdefault(call.signature, []).append((live, received, call.texts))
        report[loader] = {
            "load_seconds": answer["load_seconds"],
            "call_seconds": round(sum(answer["call_seconds"]), 3),
            "signatures": {
                name: {
                    **check_signature(name, outputs, tolerance, score),
                    "as_in_other_batch_sizes": accepted[name],
                }
                for name, outputs in found.items()
            },
        }
    return report
