"""Exports of run folders: from a run to a verified artifact."""

import dataclasses
import os
from typing import Any

from keras_transformer.data import read_lines
from keras_transformer.export import exporter_of
from keras_transformer.export.exporter import ExportReport
from keras_transformer.export.options import FORMATS
from keras_transformer.training import RunFolder
from keras_transformer.training.corpus import Corpus

_VERIFICATION_SENTENCES = 300
_SEARCH = ("beam_size", "length_penalty")
FilePath = str | os.PathLike


def export_run(
    run: FilePath,
    output: FilePath,
    format: str = "saved_model",
    verify_with: FilePath | None = None,
    overwrite: bool = False,
    **options: Any,
) -> ExportReport:
    """Exports a run folder in a format, verified.

    Args:
        run: Path of the run folder.
        output: Path of the folder to make.
        format: A key of `export.FORMATS`.
        verify_with: Path of a source text to compare with the model on; by default the run's
            validation text, where it is still at its place.
        overwrite: Whether an earlier export is replaced.
        **options: Options of the format, such as `beam_size`; the recipe's search by default.

    Raises:
        InputError: The run or an option is wrong, or a package that the format needs is missing.
        VerificationError: The export does not give what the live model does.
    """
    folder = RunFolder.existing(run)
    recipe, made = folder.recipe(), exporter_of(format)
    texts = verification_texts(recipe, verify_with)
    engine = folder.engine()
    search = {}
    if engine.labels is None:
        names = {each.name for each in dataclasses.fields(FORMATS[format])}
        search = {name: getattr(recipe.decoding, name) for name in names.intersection(_SEARCH)}
    return made.export(engine, output, texts, overwrite, **{**search, **options})


def verification_texts(recipe: Any, verify_with: FilePath | None = None) -> list[str] | None:
    """Returns source texts to verify an export with; None where the run's are gone."""
    if verify_with is not None:
        return read_lines(verify_with)[:_VERIFICATION_SENTENCES]
    corpus = Corpus(recipe)
    if not corpus.files("validation")[0].is_file():
        return None  # The export then makes texts up from the vocabulary.
    return [source for source, _ in corpus.pairs("validation")][:_VERIFICATION_SENTENCES]
