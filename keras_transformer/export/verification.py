"""Proof that an exported folder translates as the live model does, on its own."""

import dataclasses
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from keras_transformer.errors import VerificationError

_SAMPLE_SIZE = 200
_FRESH_PROCESS = Path(__file__).with_name("fresh_process.py")


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """What rounding may change.

    Attributes:
        score: Largest difference of two scores, absolute or relative.
        tie: Different translations whose scores are closer than this are near-ties: rounding
            decided which of two almost equally good hypotheses won.
        share_of_ties: How many of the translations may be near-ties.
    """

    score: float
    tie: float
    share_of_ties: float


FLOAT32 = Tolerance(score=1e-3, tie=1e-4, share_of_ties=0.01)
# Where GPUs choose another algorithm in another process, rounding differs more.
SIXTEEN_BIT = Tolerance(score=5e-2, tie=2e-2, share_of_ties=0.03)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How the translations of an export compare with the live model's.

    Attributes:
        texts: Number of translations compared.
        ties: Number that differ in text while the scores agree within `Tolerance.tie`.
        largest_score_difference: Over all texts.
    """

    texts: int
    ties: int
    largest_score_difference: float


def sample_texts(tokenizer, count=_SAMPLE_SIZE, seed=7):
    """Texts of 1 to 24 random pieces, for models whose corpus is not at hand.

    Args:
        tokenizer: `Tokenizer`.
        count: Number of texts.
        seed: The same seed gives the same texts.

    Returns:
        A list of strings.
    """
    chance = random.Random(seed)
    ids = range(4, tokenizer.vocabulary_size)  # The first four are the special ones.
    return tokenizer.detokenize([chance.choices(ids, k=1 + i % 24) for i in range(count)])


def verification_batches(texts, tokenizer, max_source_length):
    """The texts in batches of several sizes, with the ones that servers get wrong among them.

    Args:
        texts: A list of strings.
        tokenizer: `Tokenizer` of the source side.
        max_source_length: Tokens at which a text is cut.

    Returns:
        A list of lists of strings: an empty batch, batches of one (the empty string, a text
        that is cut), of 3, of 33, and of all the others.
    """
    too_long = " ".join(sample_texts(tokenizer, 24))
    while len(tokenizer.tokenize(too_long)) <= max_source_length:
        too_long = f"{too_long} {too_long}"
    foreign = ["Grüße, señor!", "你好，世界 😀", "e\u0301\u200b\u00a0ﬁ", "a\x00b\tc\nd"]
    blank = ["", " \t\n", "\u3000\u00a0"]
    rest = [*blank[:2], *foreign, *texts, *blank[1:], *texts[:1]]
    batches = [[], [too_long], [""], texts[:1] or foreign[:1]]
    for size in (3, 33):
        batches.append(rest[:size])
        rest = rest[size:]
    return [*batches, rest] if rest else batches


def compare(expected, received, tolerance=FLOAT32):
    """Compares translations pair by pair.

    Args:
        expected: A list of `(text, score)`.
        received: A list of `(text, score)`.
        tolerance: `Tolerance`.

    Returns:
        `Comparison`.

    Raises:
        VerificationError: A translation or a score differs, or too many are near-ties.
    """
    if len(expected) != len(received):
        raise VerificationError(
            "The export must give one translation for each text. "
            f"Received: {len(received)} for {len(expected)} texts."
        )
    ties, different, largest = [], [], 0.0
    for pair in zip(expected, received, strict=True):
        (text, score), (other_text, other_score) = pair
        difference = abs(score - other_score)
        largest = max(largest, difference)
        near = math.isclose(score, other_score, rel_tol=tolerance.score, abs_tol=tolerance.score)
        if text == other_text and near:
            continue
        (ties if difference <= tolerance.tie else different).append(pair)
    if different:
        raise VerificationError(_description("differ", different, len(expected)))
    if len(ties) > tolerance.share_of_ties * len(expected):
        raise VerificationError(
            _description("differ with almost equal scores", ties, len(expected))
        )
    return Comparison(len(expected), len(ties), largest)


def _description(what, pairs, count):
    (text, score), (other_text, other_score) = pairs[0]
    return (
        f"{len(pairs)} of {count} translations {what} between the live model and the export. "
        f"Received first: {other_text!r:.120} ({other_score:.6f}) "
        f"instead of {text!r:.120} ({score:.6f})."
    )


def verify(folder, engine, texts=None, beam_size=4, length_penalty=0.6):
    """Translates with the exported folder in a fresh process and with the live model.

    Args:
        folder: Path of the SavedModel.
        engine: The `ModelEngine` that it was exported from.
        texts: A list of strings, 200 or more to be telling; random pieces of the source
            vocabulary if None.
        beam_size: As exported.
        length_penalty: As exported.

    Returns:
        A dict that JSON can hold: the batch sizes, and for each loader what it took and how its
        translations compare.

    Raises:
        VerificationError: The folder does not load, leaves variables uninitialized, needs Keras
            or this package, or translates differently.
    """
    tokenizer = engine.source_tokenizer
    texts = sample_texts(tokenizer) if texts is None else list(texts)
    batches = verification_batches(texts, tokenizer, engine.max_source_length)
    whole_precision = engine.model.compute_dtype == "float32"
    # Sessions rearrange arithmetic before XLA sees it. In float32 that changes a score by 1e-5;
    # in bfloat16 by 1e-2 (measured), which can turn a search another way and proves nothing
    # about the export: there the session leaves the graph as it is.
    answers = _ask_fresh_process(folder, batches, rewrite_graph=whole_precision)
    if answers["imported"]:
        raise VerificationError(
            "The export must load without Keras and without this package. "
            f"Received: {', '.join(answers['imported'])} imported while it ran."
        )
    # The same batches: the padded shapes are then the same, and so is the rounding.
    live = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # A text that is cut is among them on purpose.
        for batch in batches:
            live += engine.translate(batch, beam_size, length_penalty, long_input="truncate")
    expected = [(translation.text, translation.score) for translation in live]
    tolerance = FLOAT32 if whole_precision else SIXTEEN_BIT
    report = {
        "batch_sizes": [len(batch) for batch in batches],
        "tolerance": dataclasses.asdict(tolerance),
    }
    for loader in ("session", "module"):
        report[loader] = _check_loader(loader, answers[loader], expected, tolerance)
    return report


def _check_loader(loader, answer, expected, tolerance):
    if answer["uninitialized"]:
        raise VerificationError(
            f"The {loader} loader must initialize every variable. Received: "
            f"{len(answer['uninitialized'])} uninitialized, {answer['uninitialized'][0]} first."
        )
    received = []
    for result in answer["results"]:
        received += zip(result["translation"], result["score"], strict=True)
    comparison = compare(expected, received, tolerance)
    return {**dataclasses.asdict(comparison), **_without(answer, "results")}


def _without(mapping, key):
    return {name: value for name, value in mapping.items() if name != key}


def _ask_fresh_process(folder, batches, rewrite_graph):
    with tempfile.TemporaryDirectory() as exchange:
        request, answer = Path(exchange) / "request.json", Path(exchange) / "answer.json"
        content = {"batches": batches, "rewrite_graph": rewrite_graph}
        request.write_text(json.dumps(content), encoding="utf-8")
        # -P: the script's own folder must not be where the process finds its modules.
        command = [sys.executable, "-P", _FRESH_PROCESS, os.fspath(folder), request, answer]
        # This process may hold most of a GPU already; take what is needed, not all that is left.
        environment = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", **os.environ}
        process = subprocess.run(
            [os.fspath(part) for part in command],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if process.returncode or not answer.is_file():
            lines = [line for line in process.stderr.splitlines() if line.strip()] or ["no message"]
            raise VerificationError(
                f"The exported folder must load and run in a fresh process. "
                f"Received: exit status {process.returncode}, {lines[-1][:500]}"
            )
        return json.loads(answer.read_text(encoding="utf-8"))
