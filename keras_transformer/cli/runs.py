"""Run folders put to use: exported to a verified artifact, or inspected."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from keras_transformer.data import read_lines, read_pairs
from keras_transformer.errors import InputError, show
from keras_transformer.owned_folder import OwnedFolder
from keras_transformer.training import RunFolder
from keras_transformer.training.corpus import Corpus

FilePath = str | os.PathLike


def export_run(
    run: FilePath,
    output: FilePath,
    format: str = "saved_model",
    verify_with: FilePath | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Any:
    """Exports a run folder in a format, verified.

    Args:
        run: Path of the run folder.
        output: Path of the folder to make.
        format: A key of `export.FORMATS`.
        verify_with: Path of source sentences to compare with the model on; by default those of
            the run's `samples.tsv`, or built-in ones where the run has none.
        overwrite: Whether an earlier export is replaced.
        **options: Options of the format, such as `beam_size`; the recipe's search by default.

    Returns:
        An `export.exporter.ExportReport`.

    Raises:
        InputError: The run or an option is wrong, or a package that the format needs is missing.
        VerificationError: The export does not give what the live model does.
    """
    from keras_transformer.export import exporter_of
    from keras_transformer.export.options import FORMATS

    folder = RunFolder.existing(run)
    recipe, exporter = folder.recipe(), exporter_of(format)
    if verify_with is not None:
        texts = read_lines(verify_with)
    else:
        texts = [source for source, _ in folder.sample_pairs()]
    engine = folder.engine()
    search = {}  # A classifier makes none.
    if engine.labels is None:
        _check_exported_search(recipe, format, options)
        names = {each.name for each in dataclasses.fields(FORMATS[format])}
        search = {name: value for name, value in recipe.search.items() if name in names}
    return exporter.export(engine, output, texts, overwrite, **{**search, **options})


def _check_exported_search(recipe, format, options):
    """Raises `InputError` for a beam search by a rule that exports do not have."""
    beam_size = options.get("beam_size", recipe.decoding.beam_size)
    rule = recipe.decoding.length_normalization
    if rule != "gnmt" and beam_size > 1:
        raise InputError(
            "An export ranks hypotheses with `length_normalization: gnmt`, or searches greedily: "
            f"give --beam-size 1. Received: length_normalization={rule}, beam_size={beam_size}."
        )


def import_run(
    folder: FilePath, output: FilePath, samples: FilePath | None = None, overwrite: bool = False
) -> str:
    """Imports a model of Marian, OPUS-MT, Hugging Face or Firefox as a run folder.

    Args:
        folder: Path of the model's folder; see `importing.import_model`.
        output: Path of the run folder to make.
        samples: Path of source sentences that exports are verified with; built-in ones by default.
        overwrite: Whether a run that is there is replaced.

    Returns:
        `output`.

    Raises:
        InputError: The folder holds no model that can be imported, or the output cannot be made.
    """
    from keras_transformer.export.verification import SENTENCES
    from keras_transformer.importing import import_model
    from keras_transformer.training import Recipe
    from keras_transformer.training.recipe import model_keys
    from keras_transformer.training.run import SAMPLE_PAIRS
    from keras_transformer.training.run_folder import save_model

    run = RunFolder(output)
    run.check_replaceable(overwrite, {"the model": folder, "--samples": samples})
    texts: Sequence[str] = SENTENCES if samples is None else read_lines(samples)[:SAMPLE_PAIRS]
    model, source_tokenizer, target_tokenizer, decoding = import_model(folder)
    fields = model.config.to_dict()
    is_joint = source_tokenizer == target_tokenizer or fields["tie_embeddings"] == "all"
    recipe = Recipe.from_dict(
        {
            "text": {"vocabulary_size": source_tokenizer.vocabulary_size, "joint": is_joint},
            "model": {name: fields[name] for name in model_keys("transformer") if name in fields},
            "decoding": decoding,
        },
        where=str(folder),
    )
    show(f"{run.path}: writing the run")
    run.owned().clear()
    run.path.mkdir(parents=True, exist_ok=True)
    save_model(model, run.model_file)
    run.write_sample_pairs((text, "") for text in texts[:SAMPLE_PAIRS])
    run.create(recipe, (source_tokenizer, target_tokenizer), {})
    return str(output)


def _validation_pairs(recipe):
    """Pairs of the validation text; None where its files are gone."""
    corpus = Corpus(recipe)
    if not all(map(os.path.isfile, corpus.files("validation"))):
        return None
    return list(corpus.pairs("validation"))


def inspect_run(
    run: FilePath,
    source: str,
    output: FilePath,
    target: str | None = None,
    without_heads: Sequence[str] = (),
    corpus: Sequence[FilePath] | None = None,
    other_positions: FilePath | None = None,
    beam_size: int | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes what a run's attention, positions and heads look like, on a sentence and a text.

    Args:
        run: Path of the run folder.
        source: A sentence.
        output: Path of the folder to make.
        target: Its translation; by default the one that the model finds.
        without_heads: Heads as `encoder.0.1`: the translation without them is shown beside.
        corpus: Paths of a source and a target text to measure the heads on; by default the run's
            validation text, where it is still at its place.
        other_positions: Path of a run with the other kind of positions.
        beam_size: The recipe's by default.
        overwrite: Whether an earlier `output` of this function is replaced.

    Returns:
        The dict of `analysis.report.write_report`.

    Raises:
        InputError: The run, a file or an option is not what it must be.
    """
    from keras_transformer.analysis.pruning import heads_off
    from keras_transformer.analysis.report import Inspection, write_report
    from keras_transformer.engine.model_engine import ModelEngine
    from keras_transformer.models.config import check_transformer

    folder = RunFolder.existing(run)
    recipe = folder.recipe()
    inputs: dict[str, Any] = {"without_heads": without_heads}
    if other_positions is not None:
        inputs["other"] = RunFolder.existing(other_positions).model()
    if corpus is not None:
        inputs["pairs"] = read_pairs(*corpus)
    elif pairs := _validation_pairs(recipe):
        inputs["pairs"] = tuple(map(list, zip(*pairs, strict=True)))
    search = {**recipe.search, **({} if beam_size is None else {"beam_size": beam_size})}
    model = folder.model()
    check_transformer(model.config, "`inspect`")
    with OwnedFolder(output, "report.json").staged(overwrite) as staging:
        engine = ModelEngine(model, *folder.tokenizers(), **recipe.engine_options, with_xla=False)
        with heads_off(engine.model, without_heads):
            pass  # Heads that are not there are named before anything is compiled.
        inspection = Inspection(engine, source, target, **search)
        report = write_report(staging, inspection, recipe.data.max_length, **inputs)
    return {"output": str(output), **report}
