"""BLEU and chrF of translations, with sacreBLEU's signatures; perplexity of given texts."""

import collections
import math
from collections.abc import Sequence
from typing import Any, Literal

from keras_transformer.errors import InputError
from keras_transformer.translation import Translation


def evaluate_labels(found: list[str], references: list[str]) -> dict:
    """How often a classifier is right, and where it is not.

    Args:
        found: The labels that it gave; "", of a blank text, is wrong, and no label of its own.
        references: The right ones, as many.

    Returns:
        A dict fit for JSON, shares in [0, 1]: `texts`; `accuracy`; `macro_f1`, the mean of the
        labels'; `labels`, for each its `precision`, `recall`, `f1` and number of `texts`.

    Raises:
        InputError: The counts differ or are zero.
    """
    if len(found) != len(references) or not references:
        received = f"{len(found)} found, {len(references)} right ones"
        raise InputError(f"Evaluation needs as many labels as texts. Received: {received}.")
    right, given = collections.Counter(references), collections.Counter(found)
    pairs = zip(references, found, strict=True)
    hits = collections.Counter(label for label, other in pairs if label == other)
    labels = {
        label: {
            "precision": round(hits[label] / max(given[label], 1), 4),
            "recall": round(hits[label] / max(right[label], 1), 4),
            "f1": round(2 * hits[label] / (right[label] + given[label]), 4),
            "texts": right[label],
        }
        for label in sorted(right.keys() | given.keys() - {""})
    }
    return {
        "texts": len(references),
        "accuracy": round(hits.total() / len(references), 4),
        "macro_f1": round(sum(each["f1"] for each in labels.values()) / len(labels), 4),
        "labels": labels,
    }


def evaluate(
    hypotheses: list[str], references: list[str], tokenize: Literal["13a", "none"] = "13a"
) -> dict:
    """Scores translations against one reference each.

    Args:
        hypotheses: List of strings.
        references: List of strings, as many.
        tokenize: How BLEU takes texts apart: as sacreBLEU does it by default, or `"none"`, at
            spaces alone, for texts that are tokenized already.

    Returns:
        A dict fit for JSON: `bleu`, `chrf`, `bleu_lowercase`, `chrf_lowercase`, in 0 … 100;
        `signatures` of the four; `sentences`.

    Raises:
        InputError: The counts differ or are zero.

    Reference: Post 2018 (arXiv:1804.08771).
    """
    import sacrebleu

    if len(hypotheses) != len(references) or not references:
        raise InputError(
            "Evaluation needs as many translations as references, and at least one. "
            f"Received: {len(hypotheses)} translations, {len(references)} references."
        )
    scores, signatures = {"sentences": len(references)}, {}
    for name, metric in (
        ("bleu", sacrebleu.BLEU(tokenize=tokenize)),
        ("chrf", sacrebleu.CHRF()),
        ("bleu_lowercase", sacrebleu.BLEU(lowercase=True, tokenize=tokenize)),
        ("chrf_lowercase", sacrebleu.CHRF(lowercase=True)),
    ):
        scores[name] = round(metric.corpus_score(hypotheses, [references]).score, 2)
        signatures[name] = str(metric.get_signature())
    return {**scores, "signatures": signatures}


def perplexity(scored: Sequence[Translation]) -> dict[str, Any]:
    """How many words, all as probable, a model hesitates between on average.

    Args:
        scored: Texts as `Translator.score` gives them.

    Returns:
        A dict fit for JSON: `perplexity_per_word`, over what stands between spaces and one end a
        text, which can be compared across vocabularies; `words`; of a run folder's scores also
        `perplexity_per_token` and `tokens`, ends included; `sentences`.

    Raises:
        InputError: There is no text.
    """
    if not scored:
        raise InputError("Perplexity needs at least one text. Received: none.")
    nats = -sum(each.log_probability for each in scored)
    counts = {"word": sum(len(each.text.split()) + 1 for each in scored)}
    if tokens := sum(len(each.token_log_probabilities) for each in scored):
        counts["token"] = tokens
    found: dict[str, Any] = {"sentences": len(scored)}
    for unit, count in counts.items():
        found[f"perplexity_per_{unit}"] = round(math.exp(min(nats / count, 700)), 2)
        found[f"{unit}s"] = count
    return found
