"""BLEU and chrF of translations, cased and lower-cased, with sacreBLEU's signatures."""

from typing import Literal

from keras_transformer.errors import InputError


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
