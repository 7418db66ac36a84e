"""BLEU and chrF of translations, with sacreBLEU's signatures; perplexity of given texts."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from keras_transformer.errors import InputError
from keras_transformer.translation import Translation


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
