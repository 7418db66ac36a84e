"""Exports of run folders: from a run to a verified artifact."""

import functools
import json
import os
from collections.abc import Sequence
from typing import Any

from keras_transformer.data import read_lines
from keras_transformer.errors import InputError
from keras_transformer.files import write_whole
from keras_transformer.owned_folder import MANIFEST, OwnedFolder
from keras_transformer.text import Tokenizer
from keras_transformer.training import RunFolder
from keras_transformer.training.corpus import Corpus

_VERIFICATION_SENTENCES = 300
FilePath = str | os.PathLike


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
    return RunFolder.existing(run).recipe().gives_labels


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


def _read_run(run, verify_with):
    """A run folder, texts to verify an export with, and its recipe's options of a search."""
    folder = RunFolder.existing(run)
    recipe = folder.recipe()
    decoding = recipe.decoding
    search = {"beam_size": decoding.beam_size, "length_penalty": decoding.length_penalty}
    if recipe.gives_labels:
        search = {}  # None is made.
    return folder, _verification_texts(recipe, verify_with), search


def _verification_texts(recipe, verify_with):
    if verify_with is not None:
        return read_lines(verify_with)[:_VERIFICATION_SENTENCES]
    corpus = Corpus(recipe)
    if not corpus.files("validation")[0].is_file():
        return None  # the export then makes texts up from the vocabulary
    return [source for source, _ in corpus.pairs("validation")][:_VERIFICATION_SENTENCES]
