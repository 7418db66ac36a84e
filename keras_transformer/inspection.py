"""Inspection of a run folder: attention, positions and heads, on a sentence and a text."""

import os
from collections.abc import Sequence
from typing import Any

from keras_transformer.config import check_transformer
from keras_transformer.data import read_pairs
from keras_transformer.owned_folder import OwnedFolder
from keras_transformer.training import RunFolder
from keras_transformer.training.corpus import Corpus

FilePath = str | os.PathLike


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
    elif all(map(os.path.isfile, filter(None, Corpus(recipe).files("validation")))):
        pairs = Corpus(recipe).pairs("validation")
        inputs["pairs"] = tuple(map(list, zip(*pairs, strict=True)))
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
