"""Evaluates a model on a file: translates, labels or scores the file's texts."""

import contextlib
import dataclasses
import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras_transformer.base.errors import InputError, NotSavedError
from keras_transformer.base.files import check_writable, is_replaced, locked_folder, write_output
from keras_transformer.base.reading import one_line
from keras_transformer.data import iterate_pairs, read_lines, read_pairs
from keras_transformer.engine.device import DevicePlan
from keras_transformer.engine.engine import long_input_of_commands
from keras_transformer.engine.inputs import ids_and_texts
from keras_transformer.engine.model_engine import ModelEngine
from keras_transformer.engine.scores import (
    BleuTokenizer,
    check_tokenizer,
    evaluate,
    evaluate_labels,
)
from keras_transformer.engine.scores import perplexity as perplexity_of
from keras_transformer.engine.translation import Translation
from keras_transformer.engine.translator import Translator
from keras_transformer.text import Labels
from keras_transformer.text.per_text import LANGUAGE_OPTIONS

FilePath = str | os.PathLike


def evaluate_model(
    model: FilePath,
    source: FilePath | None = None,
    reference: FilePath | None = None,
    save: FilePath | None = None,
    tokenize: BleuTokenizer | None = None,
    perplexity: bool = False,
    plan: DevicePlan | None = None,
    tell: Callable[[str], None] = lambda text: None,
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
        tell: Function that is called with a description of the longest step before it begins.
        **options: Options of `Translator.translate`, or of `Translator.score` for perplexity. By
            default a source is one segment, as its reference is; one of too many tokens is split
            at sentence ends, with a warning.

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
        texts = _Texts.read(Translator.load(model, plan=plan), model, source, reference)
        if perplexity or source is None:
            named_options = {"save": save, "tokenize": tokenize}
            unused_options = [name for name, value in named_options.items() if value is not None]
            return _evaluate_by_perplexity(texts, unused_options, tell, options)
        if texts.translator.labels is not None:
            if tokenize is not None:
                raise InputError("`tokenize` has no effect on labels. Remove it.")
            outputs = texts.translate("labelling", tell, options)
            scores = evaluate_labels(outputs, texts.references)
        else:
            outputs = texts.translate("translating", tell, options)
            scores = evaluate(outputs, texts.references, tokenize)
        if save is not None:
            try:
                write_output(save, "".join(one_line(text) + "\n" for text in outputs))
            except InputError as error:
                raise NotSavedError(str(error), scores) from None
        return scores


@dataclasses.dataclass(frozen=True)
class _Texts:
    """A model, and the texts of the files on which it is evaluated."""

    translator: Translator
    source_file: FilePath | None
    reference_file: FilePath | None
    sources: Sequence[str]
    references: Sequence[str]

    @classmethod
    def read(cls, translator, model, source, reference):
        """Reads sources and references for a model of any kind."""
        texts = _sources_and_references(translator, model, source, reference)
        return cls(translator, source, reference, *texts)

    def translate(self, verb, tell, options):
        """Returns the translations, or labels, of the sources."""
        # The lines of both files are compared, whatever a text is otherwise.
        one_segment = dict.fromkeys(("split_sentences", "copy_symbols", "keep_case"), False)
        long_input = long_input_of_commands(self.translator.engine)
        tell(f"{verb} {len(self.sources):,} texts")
        with _lines_of(self.source_file):
            translations = self.translator.translate(
                self.sources, **{**one_segment, "long_input": long_input, **options}
            )
        return [translation.text for translation in translations]


def _evaluate_by_perplexity(texts, unused_options, tell, options):
    engine = texts.translator.engine
    useful_names = {"batch_size"}
    if engine.reads_sources:
        useful_names |= {"tag", *LANGUAGE_OPTIONS}
    if unused_options := [*unused_options, *(options.keys() - useful_names)]:
        raise InputError(f"`{unused_options[0]}` has no effect on perplexity. Remove it.")
    with _lines_of(texts.reference_file or texts.source_file):
        _check_lengths(engine, texts.references)
    tell(f"scoring {len(texts.references):,} texts")
    with _lines_of(texts.source_file or texts.reference_file):
        if _is_scored_in_windows(engine):
            scored = score_in_windows(engine, texts.references, **options)
        else:
            scored = texts.translator.score(texts.sources, texts.references, **options)
        return perplexity_of(scored, engine.target_tokenizer)


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


def _sources_and_references(translator, model, source, reference):
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


def labelled_texts(
    labels: Labels, source: str | os.PathLike, target: str | os.PathLike | None = None
) -> tuple[list[str], list[str]]:
    """Reads texts and their labels from `label<TAB>text` in `source`, or from two files.

    Raises:
        InputError: A label is not among `labels`.
    """
    pairs = list(iterate_pairs(source, target))
    texts, names = zip(*(pair if target else pair[::-1] for pair in pairs), strict=True)
    for number, name in enumerate(names, start=1):
        labels.check(name, f"{target or source}, line {number}")
    return list(texts), list(names)


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
        overlapping = f"windows of this length that overlap by {overlap}"
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
    rest = (window_result.token_log_probabilities[overlap:] for window_result in later_windows)
    by_token = tuple(itertools.chain(first.token_log_probabilities, *rest))
    return Translation(
        text, sum(by_token), sum(by_token), token_log_probabilities=by_token, parts=tuple(windows)
    )
