"""Scores of texts: BLEU and chrF by sacreBLEU, perplexity, and the accuracy of labels."""

import collections
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import UNK_ID
from keras_transformer.base.options import check_choice

if TYPE_CHECKING:
    from keras_transformer.engine.translation import Translation
    from keras_transformer.text import Tokenizer

# sacreBLEU's tokenizers that need no download; `none` splits text only at spaces.
BleuTokenizer = Literal["13a", "intl", "zh", "char", "none", "ja-mecab", "ko-mecab"]


def evaluate(
    hypotheses: list[str], references: list[str], tokenize: BleuTokenizer | None = None
) -> dict:
    """Scores translations, with one reference per translation.

    Args:
        hypotheses: List of strings.
        references: List of strings, aligned with `hypotheses`.
        tokenize: sacreBLEU's tokenizer of BLEU, which the signature names. None chooses `"zh"`,
            `"char"` or `"13a"` by the script of the references, see `tokenizer_of`. `"none"` splits
            text only at spaces, for tokenized texts. `"ja-mecab"` and `"ko-mecab"` need
            `sacrebleu[ja]` and `sacrebleu[ko]`.

    Returns:
        A dict fit for JSON: `bleu`, `chrf`, `bleu_lowercase`, `chrf_lowercase`, from 0 to 100;
        `signatures` of the four scores; the number of `sentences`.

    Raises:
        InputError: The counts differ or are zero, or the tokenizer is unknown or not installed.

    Reference: Post 2018 (arXiv:1804.08771).
    """
    if len(hypotheses) != len(references) or not references:
        raise InputError(
            "Evaluation needs as many translations as references, and at least one. "
            f"Received: {len(hypotheses)} translations, {len(references)} references."
        )
    cased = bleu_and_chrf(hypotheses, references, tokenize)
    if (sentence := meaningless_bleu(cased)) is not None:
        warnings.warn(sentence, stacklevel=2)
    lowercase = bleu_and_chrf(hypotheses, references, tokenize, lowercase=True)
    scores = {**cased, **{f"{name}_lowercase": score for name, score in lowercase.items()}}
    return {
        "sentences": len(references),
        **{name: round(score.value, 2) for name, score in scores.items()},
        "signatures": {name: score.signature for name, score in scores.items()},
    }


def perplexity(
    scored: "Sequence[Translation]", tokenizer: "Tokenizer | None" = None
) -> dict[str, Any]:
    """Computes the perplexity per word, and per token if the scores have tokens.

    Words are separated by spaces; the end of a text counts as one more word. `perplexity_per_word`
    can be compared across vocabularies with the same share of unknown words. Training leaves out
    their tokens, to which the model therefore gives little probability.

    Args:
        scored: Texts, scored by `Translator.score`.
        tokenizer: Tokenizer of the texts.

    Returns:
        A dict fit for JSON: number of `sentences`, `perplexity_per_word`, number of `words`. A run
        folder's scores add `perplexity_per_token` and the number of `tokens`, EOS included. Texts
        that were scored in windows add `sentences_in_windows`. With a `tokenizer` there is
        `unknown_word_share`: the share of words with a token that the vocabulary lacks.

    Raises:
        InputError: There is no text.
    """
    if not scored:
        raise InputError("Perplexity needs at least one text. Received: none.")
    nats = -sum(result.log_probability for result in scored)
    counts = {"word": sum(len(result.text.split()) + 1 for result in scored)}
    if tokens := sum(len(result.token_log_probabilities) for result in scored):
        counts["token"] = tokens
    report: dict[str, Any] = {"sentences": len(scored)}
    for unit, count in counts.items():
        report[f"perplexity_per_{unit}"] = round(math.exp(min(nats / count, 700)), 2)
        report[f"{unit}s"] = count
    if windows := sum(bool(result.parts) for result in scored):
        report["sentences_in_windows"] = windows
    if tokenizer is not None:
        words = [word for result in scored for word in result.text.split()]
        unknown = sum(UNK_ID in ids for ids in tokenizer.tokenize(words))
        report["unknown_word_share"] = round(unknown / max(len(words), 1), 4)
    return report


def evaluate_labels(predicted_labels: list[str], references: list[str]) -> dict:
    """Scores a classifier: accuracy, and precision, recall and F1 of each label.

    Args:
        predicted_labels: The classifier's labels. "", for a blank text, counts as wrong, and is not
            reported as a label.
        references: The correct labels of the same texts.

    Returns:
        A dict fit for JSON, with shares in [0, 1]: the number of `texts`, `accuracy`, `macro_f1`
        (the mean F1 of the labels), and `labels`. Each of the `labels` has its `precision`,
        `recall`, `f1` and number of `texts`.

    Raises:
        InputError: The counts differ or are zero.
    """
    if len(predicted_labels) != len(references) or not references:
        received = f"{len(predicted_labels)} predicted, {len(references)} references"
        raise InputError(f"Evaluation needs as many labels as texts. Received: {received}.")
    label_counts, prediction_counts = (
        collections.Counter(references),
        collections.Counter(predicted_labels),
    )
    pairs = zip(references, predicted_labels, strict=True)
    hits = collections.Counter(
        label for label, predicted_label in pairs if label == predicted_label
    )
    labels = {
        label: {
            "precision": round(hits[label] / max(prediction_counts[label], 1), 4),
            "recall": round(hits[label] / max(label_counts[label], 1), 4),
            "f1": round(2 * hits[label] / (label_counts[label] + prediction_counts[label]), 4),
            "texts": label_counts[label],
        }
        for label in sorted(label_counts.keys() | prediction_counts.keys() - {""})
    }
    return {
        "texts": len(references),
        "accuracy": round(hits.total() / len(references), 4),
        "macro_f1": round(sum(label["f1"] for label in labels.values()) / len(labels), 4),
        "labels": labels,
    }


_HAN = re.compile("[々〇\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
# Scripts without spaces between words, except Chinese.
_NO_SPACES = re.compile(
    "[\u0e00-\u0fff"  # Thai, Lao, Tibetan
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Burmese
    "\u1780-\u17ff\u19e0-\u19ff"  # Khmer
    "\u1950-\u19df\u1a20-\u1aaf\uaa80-\uaadf"  # Tai Le, New Tai Lue, Tai Tham, Tai Viet
    "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f]"  # kana
)
# Quoted names have less than this share of the characters, and a text with many Latin terms still
# has more than this share of its own script.
_SHARE = 0.1
_SPACE = re.compile(r"\s")


class Score(NamedTuple):
    """A metric's value, 0 to 100, and sacreBLEU's signature, which names the tokenizer."""

    value: float
    signature: str


def bleu_and_chrf(
    hypotheses: Sequence[str],
    references: Sequence[str],
    tokenize: BleuTokenizer | None = None,
    lowercase: bool = False,
) -> dict[str, Score]:
    """Scores translations with sacreBLEU's BLEU and chrF, with one reference per translation.

    Args:
        hypotheses: Strings, at least one.
        references: Strings, aligned with `hypotheses`.
        tokenize: Tokenizer of BLEU; by default `tokenizer_of` the references.
        lowercase: Whether both sides are lower-cased first.

    Returns:
        A `Score` for each of `bleu` and `chrf`.

    Raises:
        InputError: The tokenizer is unknown or needs a package that is missing.
    """
    import sacrebleu

    metrics = {
        "bleu": _bleu(tokenize or tokenizer_of(references), lowercase),
        "chrf": sacrebleu.CHRF(lowercase=lowercase),
    }
    scores = {}
    for name, metric in metrics.items():
        value = metric.corpus_score(list(hypotheses), [list(references)]).score
        scores[name] = Score(value, str(metric.get_signature()))
    return scores


def tokenizer_of(references: Sequence[str]) -> BleuTokenizer:
    """Returns sacreBLEU's tokenizer for the script of texts.

    Returns:
        `"zh"` for Chinese characters; `"char"` for Japanese, Thai, Lao, Tibetan, Burmese and
        Khmer; else `"13a"`, which splits text at spaces and punctuation.

    >>> tokenizer_of(["Two dogs play."]), tokenizer_of(["两只狗在玩。"])
    ('13a', 'zh')
    """
    characters = sum(len(_SPACE.sub("", text)) for text in references)
    han, unspaced = (
        sum(len(script.findall(text)) for text in references) for script in (_HAN, _NO_SPACES)
    )
    if han + unspaced <= _SHARE * characters:
        return "13a"
    return "char" if unspaced > _SHARE * (han + unspaced) else "zh"


def check_tokenizer(tokenize: BleuTokenizer | None) -> None:
    """Raises `InputError` for a tokenizer that is unknown or needs a package that is missing."""
    if tokenize is not None:
        _bleu(tokenize, False)


def _bleu(tokenize, lowercase) -> Any:
    import sacrebleu

    check_choice("tokenize", tokenize, get_args(BleuTokenizer))
    try:
        return sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase)
    except (RuntimeError, AssertionError):  # The package, or its dictionary, is missing.
        extra = tokenize.partition("-")[0]
        message = f'BLEU with the tokenizer {tokenize} needs: pip install "sacrebleu[{extra}]".'
        raise InputError(message) from None


def meaningless_bleu(scores: Mapping[str, Score]) -> str | None:
    """Returns a warning if a BLEU of 0.0 says nothing about the translations, else None.

    If chrF, which needs no words, is above 20, the translations are not bad. Then BLEU is 0.0
    because hardly any four tokens in a row match. Either the texts are shorter, or their script
    has no spaces, so that `13a` makes one token of a text.
    """
    if scores["bleu"].value >= 0.05 or scores["chrf"].value <= 20:
        return None
    return (
        f"BLEU is 0.0, but chrF is {scores['chrf'].value:.1f}: BLEU says nothing about texts of "
        f"fewer than four tokens ({scores['bleu'].signature}). Choose another tokenizer "
        "(`data.bleu_tokenizer`, `evaluate --tokenize`), or use chrF (`training.select_by: chrf`)."
    )
