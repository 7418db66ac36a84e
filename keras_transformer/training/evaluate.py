"""Evaluates a model on a file: BLEU and chrF by sacreBLEU, accuracy, perplexity."""

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
from keras_transformer.decoding.search_options import BleuTokenizer
from keras_transformer.engine.device import DevicePlan
from keras_transformer.engine.engine import long_input_of_commands
from keras_transformer.engine.inputs import ids_and_texts
from keras_transformer.engine.model_engine import ModelEngine
from keras_transformer.engine.translator import Translator
from keras_transformer.errors import InputError, NotSavedError
from keras_transformer.files import check_writable, is_replaced, locked_folder, write_output
from keras_transformer.ids import UNK_ID
from keras_transformer.options import check_choice
from keras_transformer.reading import one_line
from keras_transformer.text import Labels, Tokenizer
from keras_transformer.text.per_text import LANGUAGE_OPTIONS
from keras_transformer.training.corpus import labelled_texts
from keras_transformer.translation import Translation

FilePath = str | os.PathLike


def evaluate_model(
    model: FilePath,
    source: FilePath | None = None,
    reference: FilePath | None = None,
    save: FilePath | None = None,
    tokenize: BleuTokenizer | None = None,
    perplexity: bool = False,
    plan: DevicePlan | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Evaluates a model on a file: scores translations or labels, or computes the perplexity.

    Args:
        model: Path of a run folder or an export.
        source: Path of the source text, UTF-8, plain or compressed; None for a language model,
            whose texts are in `reference`.
        reference: Path of its translation (or labels), aligned line by line; by default
            `source` has both, as a TSV or a `TranslationMemory`.
        save: Path to write the translations to.
        tokenize: Tokenizer of BLEU; see `evaluate`.
        perplexity: Whether to compute the references' perplexity instead of BLEU; without
            `source` always.
        plan: Shapes and rows of a run's searches; by default those that suit the device.
        **options: Options of `Translator.translate`, or of `Translator.score` for perplexity. By
            default a source of too many tokens is split at sentence ends, with a warning.

    Returns:
        The dict of `evaluate`, of `perplexity` or of `evaluate_labels`.

    Raises:
        InputError: A file or the model is invalid; the message names the file and the line of an
            invalid text. Or another process saves to the same file.
        NotSavedError: `save` cannot be written; its `result` has the scores.
    """
    check_tokenizer(tokenize)
    lock: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if save is not None:
        check_writable(save)
        inputs = {"source": source, "reference": reference, "glossary": options.get("glossary")}
        for name, file in inputs.items():
            # A glossary may be a dict.
            if isinstance(file, FilePath) and os.path.realpath(file) == os.path.realpath(save):
                rule = f"`save` must be another file than `{name}`, which it would replace."
                raise InputError(f"{rule} Received: {os.fspath(save)}.")
        if is_replaced(save):
            lock = locked_folder(save, noun="file")
    with lock:
        return _evaluate_model(model, source, reference, save, tokenize, perplexity, plan, options)


def _evaluate_model(model, source, reference, save, tokenize, perplexity, plan, options):
    translator = Translator.load(model, plan=plan)
    sources, references = _texts_to_evaluate(translator, model, source, reference)
    if perplexity or source is None:
        named_options = {"save": save, "tokenize": tokenize}
        unused_options = [name for name, value in named_options.items() if value is not None]
        useful_names = {"batch_size"}
        if translator.engine.reads_sources:
            useful_names |= {"tag", *LANGUAGE_OPTIONS}
        if unused_options := [*unused_options, *(options.keys() - useful_names)]:
            raise InputError(f"`{unused_options[0]}` has no effect on perplexity. Remove it.")
        with _lines_of(reference or source):
            _check_lengths(translator.engine, references)
        with _lines_of(source or reference):
            return _perplexity(translator, sources, references, options)
    if tokenize is not None and translator.labels is not None:
        raise InputError("`tokenize` has no effect on labels. Remove it.")
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
    """Adds a file and its line to an error about one of the file's texts."""
    try:
        yield
    except InputError as error:
        if error.index is None:
            raise
        raise InputError(f"{file}, line {error.index + 1}: {error.message}") from None


def _is_scored_in_windows(engine):
    return not engine.reads_sources and engine.manifest is None


def _check_lengths(engine, references):
    """Raises `InputError` for a reference that is too long, which an export would truncate."""
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
            raise InputError(f"{model}: a language model needs only a `reference`.")
        references = read_lines(reference)
        return [""] * len(references), references
    if source is None:
        raise InputError(f"{model}: needs a `source`; only a language model is evaluated without.")
    return read_pairs(source, reference)


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
    """Scores texts with a language model, and texts that are too long in windows, with a warning.

    A window has `engine.max_target_length` tokens, is read separately, and overlaps the previous
    window by half. The overlap is only context: each token of a text is scored once, after at least
    half a window of tokens, or all tokens before it.

    Args:
        engine: Engine of a language model.
        texts: Strings.
        **options: Options of `Engine.score`.

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
        ids_of_text[start : start + window]
        for ids_of_text, indices in zip(ids, starts, strict=True)
        for start in indices
    ]
    scored = iter(engine.score([""] * len(windows), windows, **options))
    return [
        _of_windows(text, [next(scored) for _ in indices], overlap)
        for text, indices in zip(texts, starts, strict=True)
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
    """Computes the perplexity per word, and per token if the scores have tokens.

    Words are separated by spaces; the end of a text counts as one more word. `perplexity_per_word`
    can be compared across vocabularies with the same share of unknown words, which are easy to
    predict.

    Args:
        scored: Texts, scored by `Translator.score` or `score_in_windows`.
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


def doubt(scores: Mapping[str, Score]) -> str | None:
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
