"""Evaluation of a model on a file: BLEU and chrF by sacreBLEU, accuracy, perplexity."""

import collections
import contextlib
import dataclasses
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from keras_transformer.data import read_lines, read_pairs
from keras_transformer.decoding.options import BleuTokenizer
from keras_transformer.engine.engine import long_input_of_commands
from keras_transformer.engine.inputs import ids_and_texts
from keras_transformer.engine.model_engine import ModelEngine
from keras_transformer.engine.translation import Translation
from keras_transformer.engine.translator import Translator
from keras_transformer.errors import InputError, NotSavedError
from keras_transformer.files import check_writable, one_line, write_output
from keras_transformer.ids import UNK_ID
from keras_transformer.options import check_choice
from keras_transformer.text import Labels, Tokenizer
from keras_transformer.training.corpus import labelled_texts

FilePath = str | os.PathLike


def evaluate_model(
    model: FilePath,
    source: FilePath | None = None,
    reference: FilePath | None = None,
    save: FilePath | None = None,
    tokenize: BleuTokenizer | None = None,
    of_references: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Translates a file and scores the translations, labels its texts, or gives the perplexity.

    Args:
        model: Path of a run folder or an export.
        source: Path of the source text, UTF-8, plain or `.gz`; None for a language model,
            whose texts are in `reference`.
        reference: Path of its translation (or labels), aligned line by line; by default
            `source` has both, as a recipe's file without `target`.
        save: Path to write the translations to.
        tokenize: Tokenizer of BLEU; see `evaluate`.
        of_references: Gives the references' perplexity instead of BLEU, as always without `source`.
        **options: Options of `Translator.translate`, or of `Translator.score` for perplexity. By
            default a source of too many tokens is split at sentence ends, with a warning.

    Returns:
        The dict of `evaluate`, of `perplexity` or of `evaluate_labels`.

    Raises:
        InputError: A file or the model is not what it must be; names the file and the line of a
            text that is at fault.
        NotSavedError: `save` cannot be written any more; its `result` has the scores.
    """
    check_tokenizer(tokenize)
    if save is not None:
        check_writable(save)
    translator = Translator.load(model)
    sources, references = _texts_to_evaluate(translator, model, source, reference)
    if of_references or source is None:
        saving = ["save"] if save is not None else []
        if wrong := saving + [name for name in options if name != "batch_size"]:
            raise InputError(f"`{wrong[0]}` does not go with perplexity: nothing is searched for.")
        with _lines_of(reference or source):
            _check_lengths(translator.engine, references)
        with _lines_of(source or reference):
            return _perplexity(translator, sources, references, options)
    options = {"long_input": long_input_of_commands(translator.engine), **options}
    with _lines_of(source):
        translations = translator.translate(sources, **options)
    texts = [translation.text for translation in translations]
    if translator.labels is not None:
        scores = evaluate_labels(texts, references)
    else:
        scores = evaluate(texts, references, tokenize)
    if save is not None:
        try:
            write_output(save, "".join(one_line(text) + "\n" for text in texts))
        except InputError as error:
            raise NotSavedError(str(error), scores) from None
    return scores


@contextlib.contextmanager
def _lines_of(file: FilePath | None) -> Iterator[None]:
    """Names a file and its line in an error about one of the file's texts."""
    try:
        yield
    except InputError as error:
        if error.index is None:
            raise
        raise InputError(f"{file}, line {error.index + 1}: {error.message}") from None


def _is_scored_in_windows(engine):
    return not engine.reads_sources and engine.manifest is None


def _check_lengths(engine, references):
    """Raises `InputError` for a reference that is too long; an export would cut it."""
    if "score" not in engine.capabilities or _is_scored_in_windows(engine):
        return
    if (tokenizer := engine.target_tokenizer) is not None:
        ids_and_texts("references", references, tokenizer, engine.max_target_length)


def _perplexity(translator, sources, references, options):
    engine = translator.engine
    if _is_scored_in_windows(engine):
        scored = score_in_windows(engine, references, **options)
    else:
        scored = translator.score(sources, references, **options)
    return perplexity(scored, engine.target_tokenizer)


def _texts_to_evaluate(translator, model, source, reference):
    """Reads sources and references for a model of any kind."""
    if translator.labels is not None:
        if source is None:
            raise InputError(f"{model}: needs a `source`, the texts that get labels.")
        return labelled_texts(Labels(translator.labels), source, reference)
    if not translator.engine.reads_sources:
        if source is not None or reference is None:
            raise InputError(f"{model}: a language model is evaluated on a `reference` alone.")
        references = read_lines(reference)
        return [""] * len(references), references
    if source is None:
        raise InputError(
            f"{model}: needs a `source` to be evaluated on; a language model has none."
        )
    return read_pairs(source, reference)


def evaluate_labels(found: list[str], references: list[str]) -> dict:
    """Scores a classifier: accuracy, and precision, recall and F1 of each label.

    Args:
        found: The labels that it gave. "", for a blank text, is wrong, and no label of its own.
        references: The right labels, as many.

    Returns:
        A dict fit for JSON, shares in [0, 1]: `texts`; `accuracy`; `macro_f1`, the mean of the
        labels'; `labels`, for each its `precision`, `recall`, `f1` and number of `texts`.

    Raises:
        InputError: The counts differ or are zero.
    """
    if len(found) != len(references) or not references:
        received = f"{len(found)} found, {len(references)} right ones"
        raise InputError(f"Evaluation needs as many labels as texts. Received: {received}.")
    right, predictions = collections.Counter(references), collections.Counter(found)
    pairs = zip(references, found, strict=True)
    hits = collections.Counter(label for label, other in pairs if label == other)
    labels = {
        label: {
            "precision": round(hits[label] / max(predictions[label], 1), 4),
            "recall": round(hits[label] / max(right[label], 1), 4),
            "f1": round(2 * hits[label] / (right[label] + predictions[label]), 4),
            "texts": right[label],
        }
        for label in sorted(right.keys() | predictions.keys() - {""})
    }
    return {
        "texts": len(references),
        "accuracy": round(hits.total() / len(references), 4),
        "macro_f1": round(sum(label["f1"] for label in labels.values()) / len(labels), 4),
        "labels": labels,
    }


def evaluate(
    hypotheses: list[str], references: list[str], tokenize: BleuTokenizer | None = None
) -> dict:
    """Scores translations against one reference each.

    Args:
        hypotheses: List of strings.
        references: List of strings, as many.
        tokenize: sacreBLEU's tokenizer of BLEU, which the signature names. None: by the script of
            the references, as `bleu.tokenizer_of` says: `"zh"`, `"char"` or `"13a"`. `"none"` takes
            text only at spaces, for texts that are tokenized already; `"ja-mecab"` and
            `"ko-mecab"` need `sacrebleu[ja]` and `sacrebleu[ko]`.

    Returns:
        A dict fit for JSON: `bleu`, `chrf`, `bleu_lowercase`, `chrf_lowercase`, in 0 … 100;
        `signatures` of the four; `sentences`.

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
    if (sentence := doubt(cased)) is not None:
        warnings.warn(sentence, stacklevel=2)
    lowercase = bleu_and_chrf(hypotheses, references, tokenize, lowercase=True)
    scores = {**cased, **{f"{name}_lowercase": score for name, score in lowercase.items()}}
    return {
        "sentences": len(references),
        **{name: round(score.value, 2) for name, score in scores.items()},
        "signatures": {name: score.signature for name, score in scores.items()},
    }


def score_in_windows(
    engine: ModelEngine, texts: Sequence[str], **options: Any
) -> list[Translation]:
    """Scores texts with a language model, too long ones in windows, with a warning.

    A window has `engine.max_target_length` tokens, is read by itself, and overlaps the window
    before by half. The overlap is only context: each token of a text is scored once, after at
    least half a window or all tokens before it.

    Args:
        engine: Engine of a language model.
        texts: Strings.
        **options: Options of `ModelEngine.score`.

    Returns:
        A `Translation` for each text; its `parts` are the windows, if there are several.
    """
    window = engine.max_target_length
    overlap = window // 2
    ids = engine.target_tokenizer.tokenize(texts, add_eos=True)
    starts = [range(0, max(len(ids_of_text) - overlap, 1), window - overlap) for ids_of_text in ids]
    if long := sum(len(windows_of_text) > 1 for windows_of_text in starts):
        message = f"{long} of {len(texts)} texts are longer than {window} tokens"
        overlapping = f"windows of so many that overlap by {overlap}"
        warnings.warn(f"{message} and were scored in {overlapping}.", stacklevel=2)
    windows = [
        each[start : start + window]
        for each, places in zip(ids, starts, strict=True)
        for start in places
    ]
    scored = iter(engine.score([""] * len(windows), windows, **options))
    return [
        _of_windows(text, [next(scored) for _ in places], overlap)
        for text, places in zip(texts, starts, strict=True)
    ]


def _of_windows(text, windows, overlap):
    first, *later_windows = windows
    if not later_windows:
        return dataclasses.replace(first, text=text)
    by_token = first.token_log_probabilities
    by_token += sum(
        (window_result.token_log_probabilities[overlap:] for window_result in later_windows), ()
    )
    return Translation(
        text, sum(by_token), sum(by_token), token_log_probabilities=by_token, parts=tuple(windows)
    )


def perplexity(scored: Sequence[Translation], tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """Returns the perplexity a word, and a token where the scores have tokens.

    Args:
        scored: Texts, scored by `Translator.score` or `score_in_windows`.
        tokenizer: Tokenizer of the texts.

    Returns:
        A dict fit for JSON: `perplexity_per_word`, over what stands between spaces and one end a
        text, which can be compared across vocabularies that know as many of the words; `words`;
        with `tokenizer` the `unknown_word_share`, of words with a token that the vocabulary lacks,
        which are easy to predict; of a run folder's scores also `perplexity_per_token` and
        `tokens`, ends included; `sentences`, and `sentences_in_windows` where there are some.

    Raises:
        InputError: There is no text.
    """
    if not scored:
        raise InputError("Perplexity needs at least one text. Received: none.")
    nats = -sum(result.log_probability for result in scored)
    counts = {"word": sum(len(result.text.split()) + 1 for result in scored)}
    if tokens := sum(len(result.token_log_probabilities) for result in scored):
        counts["token"] = tokens
    found: dict[str, Any] = {"sentences": len(scored)}
    for unit, count in counts.items():
        found[f"perplexity_per_{unit}"] = round(math.exp(min(nats / count, 700)), 2)
        found[f"{unit}s"] = count
    if windows := sum(bool(result.parts) for result in scored):
        found["sentences_in_windows"] = windows
    if tokenizer is not None:
        words = [word for result in scored for word in result.text.split()]
        unknown = sum(UNK_ID in ids for ids in tokenizer.tokenize(words))
        found["unknown_word_share"] = round(unknown / max(len(words), 1), 4)
    return found


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
