"""Verification of an export: translations of a new process against the trained model's."""

import collections
import dataclasses
import itertools
import math
import queue
import statistics
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.base.errors import VerificationError
from keras_transformer.base.large_variables import release_weights
from keras_transformer.base.memory import give_back, is_large
from keras_transformer.engine.engine import Engine
from keras_transformer.engine.inputs import bucket, length_buckets
from keras_transformer.engine.model_engine import ModelEngine
from keras_transformer.engine.scores import bleu_and_chrf
from keras_transformer.engine.translation import Translation
from keras_transformer.export.child_process import ChildProcess
from keras_transformer.export.exporter import log_step
from keras_transformer.text.per_text import LANGUAGE_OPTIONS

NUM_TEXTS = 64
# For a large model: a step takes as long as a hundred of a small one, and memory is scarce.
_LARGE_TEXTS, _LARGE_BATCH = 32, 4
_WHO = ("A man", "Two young women", "The dog", "My children and I")
_DOES = ("can see a house", "are in the park", "was here on 5 May", "will read this old book")
_WHERE = ("again.", "today.", "with a friend.", "near the big river?", "and then go home, too!")
SENTENCES = tuple(map(" ".join, itertools.product(_WHO, _DOES, _WHERE)))
"""Texts to verify an export with, where a run has no sample pairs."""


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """Limits of the differences between an export and the trained model, as means over the texts.

    Attributes:
        equal: Smallest share of equal translations.
        score: Largest mean difference of scores, and of log-probabilities of equal translations, as
            a share of the trained model's mean. The mean counts as at least 1 nat for scores, and 3
            for log-probabilities: they are sums over tokens, and int8 moves each token a little.
        alignment: Largest mean difference of a token's weights in the alignments of equal
            translations, summed over the source tokens: from 0 to 2.
        advice: Advice to the user of an export that fails the verification.
        chrf: Smallest chrF of the export's translations, with the trained model's as references.
    """

    equal: float
    score: float
    alignment: float
    advice: str = "Please report it with this message."
    # Multi30k's captions of ten words: 90 with another word in 80 % of them, 81 with two, 66 with
    # four; 18 for other captions.
    chrf: float = 80.0


_TRAIN = "or train the model longer."
TOLERANCES = {
    "none": Tolerance(0.95, 1e-3, 1e-3),
    # GPUs choose another algorithm in another process, which rounds differently.
    "bfloat16": Tolerance(0.7, 0.05, 0.05),
    "float16": Tolerance(0.8, 0.01, 0.02, f"Export without `--quantize`, {_TRAIN}"),
    "int8": Tolerance(0.4, 0.05, 0.15, f"Export with `--quantize float16`, {_TRAIN}"),
}


def verify(
    child: ChildProcess,
    engine: Engine,
    texts: Sequence[str] | None,
    tolerance: Tolerance,
    disposable_weights: bool = False,
    read: Callable[[Any], Iterable[Translation]] = list,
    only_trained: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Translates texts with an export and with the trained model; see `compare`.

    Args:
        child: Process for the export. Its program takes `texts` and the options of `translate`.
        engine: Engine of the trained model.
        texts: Source sentences to choose from; `SENTENCES` by default.
        tolerance: Limits of the differences.
        disposable_weights: Whether a large model's weights may be released after its translations.
        read: Converts the program's answer to translations.
        only_trained: Options that only the trained model's `translate` takes.
        **options: Options of `translate`.
    """
    has_large_model, options["long_input"] = is_large(engine.model), "truncate"
    most = _LARGE_TEXTS if has_large_model else NUM_TEXTS
    sample = chosen_texts(texts or SENTENCES, engine, most)
    if has_large_model:
        options["batch_size"] = _LARGE_BATCH
    log_step(
        f"comparing {len(sample)} translations with the trained model's, in a new process: "
        "this takes longest"
    )
    options |= _languages_of(engine, sample)
    if not has_large_model:  # Two of them have no place at the same time.
        child.send(texts=sample, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # A text that is too long is truncated on both sides.
        trained_options = options | (only_trained or {})
        expected = _interruptible(_trained_translations, engine, sample, **trained_options)
    if has_large_model:
        if disposable_weights:
            release_weights(engine.model)
        give_back()
        child.send(texts=sample, **options)
    return compare(sample, expected, list(read(child.receive())), tolerance)


def _languages_of(engine, texts):
    """Returns options of `translate` that name the languages of texts, in many directions."""
    languages = engine.languages
    if languages is None or not languages.tokens or languages.is_optional:
        return {}
    directions = itertools.cycle(languages.directions)
    pairs = [
        (None, None) if engine.directions.are_named_in(text) else next(directions) for text in texts
    ]
    return dict(zip(LANGUAGE_OPTIONS, map(list, zip(*pairs, strict=True)), strict=True))


def _interruptible(function, *arguments, **options):
    """Calls a function in a new thread, so that Ctrl-C ends the wait for it at once.

    The main thread gets a signal only between two steps of Python, and a call of TensorFlow is one
    step, however long it takes. After Ctrl-C the thread runs on until the process ends.
    """
    outcomes: queue.SimpleQueue = queue.SimpleQueue()

    def call():
        try:
            outcomes.put((function(*arguments, **options), None))
        except BaseException as error:
            outcomes.put((None, error))

    threading.Thread(target=call, daemon=True).start()
    result, error = outcomes.get()
    if error is not None:
        raise error
    return result


def _trained_translations(engine, texts, **options):
    """Translates with the trained model, without XLA's compiler: it takes time and memory."""
    if isinstance(engine, ModelEngine):
        model = engine.model
        # XLA rounds bfloat16 differently from a graph, and a graph casts large matrices slowly.
        is_cast = is_large(model) and model.variable_dtype != "float32"
        with_xla = is_cast or model.compute_dtype != "float32"
        engine = engine.with_(frozen=True, with_xla=with_xla)
        options.setdefault("batch_size", NUM_TEXTS)
    return engine.translate(texts, **options)


def chosen_texts(texts: Sequence[str], engine: Engine, most: int = NUM_TEXTS) -> list[str]:
    """Returns at most `most` texts of few padded lengths, since XLA compiles each length.

    The lengths that most of `texts` have come first; `SENTENCES` of such a length fill it up. More
    lengths follow while there are fewer than half of `most`.
    """
    longest, by_length = engine.max_source_length, collections.defaultdict(list)
    buckets, received = length_buckets(longest), set(texts)
    texts = [text for text in dict.fromkeys([*texts, *SENTENCES]) if text.strip()]
    for text, ids in zip(texts, engine.source_tokenizer.tokenize(texts), strict=True):
        if ids:
            length = min(engine.source_length(text), longest)
            by_length[bucket(length, buckets)].append(text)
    fullest_first = sorted(
        by_length.values(),
        key=lambda row: (len(received.intersection(row)), len(row)),
        reverse=True,
    )
    chosen: list[str] = []
    for row in fullest_first:
        if len(chosen) >= most // 2:
            break
        chosen += row
    return chosen[:most]


class _Measure(NamedTuple):
    """A field of translations whose mean difference has a limit.

    Attributes:
        field: Name of the field of `Translation`.
        of_equal: Whether only equal translations are compared, if the format returns the field.
        limit: Function of a `Tolerance` and the trained model's values.
    """

    field: str
    of_equal: bool
    limit: Callable[[Tolerance, Sequence[Any]], float]


def _share_of_mean(least):
    """Returns the limit of sums over tokens, whose mean counts as at least `least` nats."""
    return lambda tolerance, values: (
        tolerance.score * max(least, statistics.fmean(map(abs, values)))
    )


_MEASURES = (
    _Measure("score", False, _share_of_mean(1.0)),
    _Measure("log_probability", True, _share_of_mean(3.0)),
    _Measure("alignment", True, lambda tolerance, _: tolerance.alignment),
)


def compare(
    texts: Sequence[str],
    expected: Sequence[Translation],
    received: Sequence[Translation],
    tolerance: Tolerance,
) -> dict[str, Any]:
    """Compares an export's translations of texts with the trained model's.

    Returns the number of `texts` and of `equal` translations, their `chrf`, the mean differences
    and the `tolerance`, fit for JSON. A difference above the tolerance raises `VerificationError`.
    """
    count, advice = len(texts), tolerance.advice
    if len(received) != count:
        example = texts[0], count, len(received)
        raise _refusal("another number of translations", count, example, advice)
    rows = list(zip(texts, expected, received, strict=True))
    equal_rows = [row for row in rows if row[1].text == row[2].text]
    report: dict[str, Any] = {"texts": count, "equal": len(equal_rows)}
    if len(equal_rows) < (least := math.ceil(tolerance.equal * count)):
        text, trained, exported = next(row for row in rows if row[1].text != row[2].text)
        problem = f"{len(equal_rows)} translations are equal, expected at least {least},"
        raise _refusal(problem, count, (text, trained.text, exported.text), advice)
    report["chrf"] = round(_chrf(rows), 2)
    if report["chrf"] < tolerance.chrf:
        text, trained, exported = min(rows, key=lambda row: _chrf([row]))
        problem = f"chrF against its translations is {report['chrf']}, expected at least "
        problem += f"{tolerance.chrf:g},"
        raise _refusal(problem, count, (text, trained.text, exported.text), advice)
    for field, of_equal, limit_of in _MEASURES:
        values = [
            (text, getattr(trained, field), getattr(exported, field))
            for text, trained, exported in (equal_rows if of_equal else rows)
        ]
        differences = [_difference(trained, exported) for _, trained, exported in values]
        if not values or values[0][2] is None or of_equal and np.all(np.isnan(differences)):
            continue  # The format does not return this value.
        limit = limit_of(tolerance, [trained for _, trained, _ in values])
        mean = statistics.fmean(differences)
        if not mean <= limit:  # NaN is above every limit, too.
            problem = f"`{field}` differs by {mean:.4f} on average, expected at most {limit:.4f},"
            raise _refusal(problem, count, values[int(np.argmax(differences))], advice)
        report[f"mean_{field}_difference"] = round(mean, 7)
    return {**report, "tolerance": dataclasses.asdict(tolerance)}


def _refusal(problem, count, example, advice):
    """Returns the error of an export; `example` is a text, its expected and its received value."""
    text, expected, received = example
    shown = f"For {text!r:.100}: {received!r:.150} instead of {expected!r:.150}."
    problem = f"{problem} on {count} texts. {shown} {advice}"
    return VerificationError(f"The export differs from the trained model: {problem}")


def _chrf(rows):
    """Returns the chrF of an export's translations against the trained model's, 0 to 100."""
    expected, received = zip(*((row[1].text, row[2].text) for row in rows), strict=True)
    # sacreBLEU gives 0 to texts without characters, which may be equal.
    return 100.0 if expected == received else bleu_and_chrf(received, expected)["chrf"].value


def _difference(expected, received):
    """Returns the difference of two numbers, or the mean difference of a token's weights."""
    if np.shape(expected) != np.shape(received):
        return 2.0  # The largest difference of two rows of weights.
    difference = np.abs(np.asarray(expected, "float64") - np.asarray(received, "float64"))
    return float(difference.sum(axis=1).mean() if difference.ndim else difference)
