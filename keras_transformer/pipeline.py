"""Finished runs: evaluate them, export them, look inside."""

import functools
import json
import os
from collections.abc import Sequence
from typing import Any, Literal

from keras_transformer.config import check_transformer
from keras_transformer.data import read_lines, read_pairs
from keras_transformer.errors import InputError, NotSavedError
from keras_transformer.files import (
    check_writable,
    one_line,
    write_output,
    write_whole,
)
from keras_transformer.inputs import ids_and_texts
from keras_transformer.owned_folder import MANIFEST, OwnedFolder
from keras_transformer.text import Labels, Tokenizer
from keras_transformer.training import RunFolder, evaluate, perplexity
from keras_transformer.training.corpus import labelled_texts, text_files, texts_of
from keras_transformer.training.evaluate import evaluate_labels, score_in_windows
from keras_transformer.translator import Translator

_VERIFICATION_SENTENCES = 300
FilePath = str | os.PathLike


def evaluate_model(
    model: FilePath,
    source: FilePath | None = None,
    reference: FilePath | None = None,
    save: FilePath | None = None,
    tokenize: Literal["13a", "none"] = "13a",
    of_references: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Translates a file and scores the translations; or says how probable the references are.

    A classifier's labels are counted instead.

    Args:
        model: FilePath of a run folder or an export.
        source: FilePath of the source text, UTF-8, plain or `.gz`; None for a language model,
            whose texts are in `reference`.
        reference: FilePath of its translation (or labels), aligned line by line; by default
            `source` has both, as a recipe's file without `target`.
        save: FilePath to write the translations to.
        tokenize: As for `evaluate`.
        of_references: Whether the references' perplexity is given, not BLEU; without `source` it
            always is.
        **options: As `Translator.translate`, or `Translator.score`.

    Returns:
        The dict of `evaluate`, of `perplexity` or of `evaluate_labels`.

    Raises:
        InputError: A file or the model is not what it must be.
        NotSavedError: `save` cannot be written any more; `result` is what would be returned.
    """
    if save is not None:
        check_writable(save)
    translator = Translator.load(model)
    sources, references = _texts_to_evaluate(translator, model, source, reference)
    if of_references or source is None:
        saving = ["save"] if save is not None else []
        if wrong := saving + [name for name in options if name != "batch_size"]:
            raise InputError(f"`{wrong[0]}` does not go with perplexity: nothing is searched for.")
        return _perplexity(translator, sources, references, options)
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


def _perplexity(translator, sources, references, options):
    engine = translator.engine
    tokenizer, is_export = engine.target_tokenizer, engine.manifest is not None
    if engine.continues_source and not is_export:
        return perplexity(score_in_windows(engine, references, **options), tokenizer)
    if is_export and tokenizer is not None:  # It would cut what is too long.
        ids_and_texts("references", references, tokenizer, engine.max_target_length)
    return perplexity(translator.score(sources, references, **options), tokenizer)


def _texts_to_evaluate(translator, model, source, reference):
    """Sources and references, whatever a model reads of them."""
    if translator.labels is not None:
        if source is None:
            raise InputError(f"{model}: needs a `source`, the texts that get labels.")
        return labelled_texts(Labels(translator.labels), source, reference)
    if translator.engine.continues_source:
        if source is not None or reference is None:
            raise InputError(f"{model}: a language model is evaluated on a `reference` alone.")
        references = read_lines(reference)
        return [""] * len(references), references
    if source is None:
        raise InputError(
            f"{model}: needs a `source` to be evaluated on; a language model has none."
        )
    return read_pairs(source, reference)


def export_run(
    run: FilePath,
    output: FilePath,
    beam_size: int | None = None,
    length_penalty: float | None = None,
    verify_with: FilePath | None = None,
    overwrite: bool = False,
    signatures: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Exports a run folder as a verified SavedModel.

    Args:
        run: FilePath of the run folder.
        output: FilePath of the folder to make.
        verify_with: FilePath of a source text to compare with the model on; by default the run's
            validation text, where it is still at its place.
        beam_size, length_penalty, overwrite, signatures: As `export.export_saved_model`; the
            recipe's by default.

    Returns:
        A dict fit for JSON: what was exported and what the verification found.

    Raises:
        InputError: The run or an option is not what it must be.
    """
    from keras_transformer.export import export_classifier, export_saved_model

    given = {"beam_size": beam_size, "length_penalty": length_penalty, "signatures": signatures}
    options = {name: value for name, value in given.items() if value is not None}
    export = export_classifier if _is_classifier(run) else export_saved_model
    report = _exported(export, run, output, verify_with, overwrite, options)
    return {name: value for name, value in report.items() if name != "files"}


def export_litert(
    run: FilePath,
    output: FilePath,
    verify_with: FilePath | None = None,
    overwrite: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Exports a run folder as verified LiteRT files, as `export_run` a SavedModel.

    The other options are those of `export.export_litert`. Raises `InputError` also where the extra
    `litert` is not installed.
    """
    from keras_transformer.export import export_classifier, export_litert

    export = functools.partial(export_classifier, runtime="litert")
    export = export if _is_classifier(run) else export_litert
    return _exported(export, run, output, verify_with, overwrite, options)


def export_web(
    run: FilePath,
    output: FilePath,
    verify_with: FilePath | None = None,
    overwrite: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Exports a run folder as a static folder for browsers, as `export_litert` LiteRT files.

    The other options are those of `export.web.export.export_web`.
    """
    from keras_transformer.export.web.export import export_web

    return _exported(export_web, run, output, verify_with, overwrite, options)


def _is_classifier(run):
    return RunFolder.existing(run).recipe().kind == "classifier"


def _exported(export, run, output, verify_with, overwrite, options):
    folder, texts, search = _read_run(run, verify_with)
    options = {"verification_texts": texts, "overwrite": overwrite, **search, **options}
    try:
        report = export(folder.engine(), output, **options)
    except ImportError as error:
        raise InputError(f"{error}") from error
    return {
        "output": report.folder,
        "seconds": round(report.seconds, 1),
        "files": report.manifest["files"],
        "verification": report.verification,
    }


def export_tokenizer_json(
    run: FilePath, output: FilePath, verify_with: FilePath | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Writes a run's tokenizers as `tokenizer.json`, which Hugging Face's `tokenizers` read.

    The folder gets `tokenizer.json`, or `source_tokenizer.json` and `target_tokenizer.json`; of a
    classifier the first of these. Each is verified in that library: `verification.json` names the
    texts that get other ids there, which only some with a grapheme of several characters may.
    """
    from keras_transformer.export.verification import sample_texts
    from keras_transformer.text.tokenizer_json import tokenizer_json, verify_tokenizer_json

    folder = RunFolder.existing(run)
    source, target = folder.tokenizers()
    texts = _verification_texts(folder.recipe(), verify_with) or []
    sides = {"source_": source, "target_": target} if source != target else {"": source}
    files = {
        f"{side}tokenizer.json": each
        for side, each in sides.items()
        if isinstance(each, Tokenizer)  # and no labels
    }
    manifest = {"format": "keras_transformer.tokenizer_json", "files": list(files)}
    with OwnedFolder(output).staged(overwrite) as staging:
        report = {}
        for name, tokenizer in files.items():
            _write_json(staging / name, tokenizer_json(tokenizer))
            checked = [*texts, *sample_texts(tokenizer)]
            try:
                report[name] = verify_tokenizer_json(staging / name, tokenizer, checked)
            except ImportError as error:
                raise InputError(f"{error}") from error
        _write_json(staging / MANIFEST, manifest)
        _write_json(staging / "verification.json", report)
    return {"output": str(output), "files": list(files), "verification": report}


def _write_json(path, content):
    write_whole(path, json.dumps(content, ensure_ascii=False))


def export_ctranslate2(
    run: FilePath,
    output: FilePath,
    beam_size: int | None = None,
    length_penalty: float | None = None,
    verify_with: FilePath | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Exports a run folder as a CTranslate2 model with its tokenizers, verified, as `export_run`.

    The folder can be used alone: `model.bin` and the vocabularies are what
    `ctranslate2.Translator` reads, the SentencePiece models have the names that the run gives
    them, `README.md` shows both together. Raises `InputError` also where the run has something that
    CTranslate2 does not, or the extra `ctranslate2` is not installed.
    """
    from keras_transformer.export.ctranslate2.export import export_ctranslate2

    folder, texts, search = _read_run(run, verify_with)
    given = {"beam_size": beam_size, "length_penalty": length_penalty}
    options = {**search, **{name: value for name, value in given.items() if value is not None}}
    options |= {"overwrite": overwrite, "verification_texts": texts}
    try:
        return export_ctranslate2(folder.engine(), output, **options)
    except ImportError as error:
        raise InputError(f"{error}") from error


def inspect_run(
    run: FilePath,
    source: str,
    output: FilePath,
    target: str | None = None,
    without_heads: Sequence[str] = (),
    corpus: Sequence[FilePath] | None = None,
    gold: FilePath | None = None,
    conllu: FilePath | None = None,
    other_positions: FilePath | None = None,
    beam_size: int | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes what a run's attention, positions and heads look like, on a sentence and a text.

    Args:
        run: FilePath of the run folder.
        source: A sentence.
        output: FilePath of the folder to make.
        target: Its translation; by default the one that the model finds.
        without_heads: Heads as `encoder.0.1`: the translation without them is shown beside.
        corpus: FilePaths of a source and a target text to measure the heads on; by default the
            run's validation text, where it is still at its place.
        gold: FilePath of gold alignments, of the sentence or of the corpus' first lines.
        conllu: FilePath of sentences of the source language with their dependencies.
        other_positions: FilePath of a run with the other kind of positions.
        beam_size: The recipe's by default.
        overwrite: Whether an earlier `output` of this function is replaced.

    Returns:
        The dict of `analysis.report.write_report`.

    Raises:
        InputError: The run, a file or an option is not what it must be.
    """
    from keras_transformer.analysis.alignment import read_gold
    from keras_transformer.analysis.heads import read_conllu
    from keras_transformer.analysis.pruning import heads_off
    from keras_transformer.analysis.report import Inspection, write_report
    from keras_transformer.decoding import ModelEngine

    folder = RunFolder.existing(run)
    recipe = folder.recipe()
    inputs: dict[str, Any] = {"without_heads": without_heads}
    inputs["gold"] = None if gold is None else read_gold(gold)
    inputs["trees"] = () if conllu is None else read_conllu(conllu)
    if other_positions is not None:
        inputs["other"] = RunFolder.existing(other_positions).model()
    if corpus is not None:
        inputs["pairs"] = read_pairs(*corpus)
    elif all(map(os.path.isfile, filter(None, text_files(recipe, "validation")))):
        inputs["pairs"] = tuple(map(list, zip(*texts_of(recipe, "validation"), strict=True)))
    search: dict[str, Any] = {"beam_size": beam_size or recipe.decoding.beam_size}
    search["length_penalty"] = recipe.decoding.length_penalty
    model = folder.model()
    check_transformer(model.config, "`inspect`")
    with OwnedFolder(output, "report.json").staged(overwrite) as staging:
        engine = ModelEngine(model, *folder.tokenizers(), **recipe.engine_options, with_xla=False)
        with heads_off(engine.model, without_heads):
            pass  # Heads that are not there are named before anything is compiled.
        inspection = Inspection(engine, source, target, **search)
        report = write_report(staging, inspection, recipe.data.max_length, **inputs)
    return {"output": str(output), **report}


def _read_run(run, verify_with):
    """A run folder, texts to verify an export with, and its recipe's options of a search."""
    folder = RunFolder.existing(run)
    recipe = folder.recipe()
    decoding = recipe.decoding
    search = {"beam_size": decoding.beam_size, "length_penalty": decoding.length_penalty}
    if recipe.kind == "classifier":
        search = {}  # None is made.
    return folder, _verification_texts(recipe, verify_with), search


def _verification_texts(recipe, verify_with):
    if verify_with is not None:
        return read_lines(verify_with)[:_VERIFICATION_SENTENCES]
    if not text_files(recipe, "validation")[0].is_file():
        return None  # the export then makes texts up from the vocabulary
    return [source for source, _ in texts_of(recipe, "validation")][:_VERIFICATION_SENTENCES]
