"""BLEU and chrF by sacreBLEU, with a tokenizer that fits the script of the references."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

from keras_transformer.decoding.options import BleuTokenizer
from keras_transformer.errors import InputError
from keras_transformer.options import check_choice

_HAN = re.compile("[々〇\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
# Other scripts without spaces between words.
_NO_SPACES = re.compile(
    "[\u0e00-\u0fff"  # Thai, Lao, Tibetan
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Burmese
    "\u1780-\u17ff\u19e0-\u19ff"  # Khmer
    "\u1950-\u19df\u1a20-\u1aaf\uaa80-\uaadf"  # Tai Le, New Tai Lue, Tai Tham, Tai Viet
    "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f]"  # kana
)
# Quoted names stay below this share of the characters. Text with many Latin terms stays above it.
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
    """Scores translations with sacreBLEU's BLEU and chrF against one reference each.

    Args:
        hypotheses: Strings, at least one.
        references: Strings, as many.
        tokenize: Tokenizer of BLEU; None: `tokenizer_of` the references.
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
        Khmer; else `"13a"`, which takes text apart at spaces and punctuation.

    >>> tokenizer_of(["Two dogs play."]), tokenizer_of(["两只狗在玩。"])
    ('13a', 'zh')
    """
    characters = sum(len(_SPACE.sub("", text)) for text in references)
    han, others = (
        sum(len(script.findall(text)) for text in references) for script in (_HAN, _NO_SPACES)
    )
    if han + others <= _SHARE * characters:
        return "13a"
    return "char" if others > _SHARE * (han + others) else "zh"


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


def doubt(scores: Mapping[str, Score]) -> str | None:
    """Returns a sentence about a BLEU of 0.0 that says nothing, None for any other BLEU.

    chrF needs no words. Where it is above 20, the translations are no rubbish, and BLEU is 0.0
    because hardly any four tokens in a row are those of a reference: the texts are shorter, or
    their script has no spaces, which `13a` takes for one token.
    """
    if scores["bleu"].value >= 0.05 or scores["chrf"].value <= 20:
        return None
    return (
        f"BLEU is 0.0 beside a chrF of {scores['chrf'].value:.1f}: it says nothing about texts of "
        f"fewer than four tokens ({scores['bleu'].signature}). Choose another tokenizer "
        "(`data.bleu_tokenizer`, `evaluate --tokenize`), or take chrF (`training.select_by: chrf`)."
    )
