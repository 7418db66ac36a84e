"""Exports a trained model in formats that take text and return text, and verifies them.

A format is a folder with an `Exporter` and an engine, and a class in `formats.py`.
Keras and TensorFlow are imported by the functions that need them, not with the package.
`export_saved_model`, `export_litert`, `export_ctranslate2`, `export_web`, `export_marian`,
`export_hugging_face` and `export_argos` are `Exporter.export` of a format.
"""

import dataclasses
import os
from typing import TYPE_CHECKING, Any

from keras_transformer.base.errors import VerificationError, print_lines
from keras_transformer.base.options import check_choice
from keras_transformer.base.reading import read_lines
from keras_transformer.decoding.search_options import without_excluded
from keras_transformer.formats import FORMATS

if TYPE_CHECKING:
    from keras_transformer.engine.device import DevicePlan
    from keras_transformer.export.exporter import Exporter, ExportReport

_FUNCTIONS = {f"export_{name}": name for name in FORMATS}
__all__ = [
    "ExportReport",
    "FORMATS",
    "VerificationError",
    "export_run",
    "exporter_of",
    *_FUNCTIONS,
]


def __getattr__(name):
    if name in _FUNCTIONS:
        return exporter_of(_FUNCTIONS[name]).export
    if name == "ExportReport":
        from keras_transformer.export.exporter import ExportReport

        return ExportReport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def exporter_of(name: str) -> "Exporter":
    """Returns the exporter of a format in `FORMATS`; raises `InputError` without its folders."""
    FORMATS[name].check_present()
    return FORMATS[name].exporter()


def export_run(
    run: str | os.PathLike,
    output: str | os.PathLike,
    format: str = "saved_model",
    verify_with: str | os.PathLike | None = None,
    overwrite: bool = False,
    plan: "DevicePlan | None" = None,
    **options: Any,
) -> "ExportReport":
    """Exports a run folder in a format, verified.

    Args:
        run: Path of the run folder.
        output: Path of the folder to make.
        format: A key of `FORMATS`.
        verify_with: Path of source sentences to compare with the model on; by default from
            the run's `samples.tsv`, or built-in ones where the run has none.
        overwrite: Whether an earlier export is replaced.
        plan: Shapes and rows of the model's searches; by default what suits the device.
        **options: Options of the format, such as `beam_size`; the recipe's search by default.

    Returns:
        The `ExportReport`.

    Raises:
        InputError: The run or an option is wrong, or a package that the format needs is missing.
        VerificationError: The export's translations differ from the trained model's.
    """
    from keras_transformer.runs.model_card import described_origin, training_summary
    from keras_transformer.runs.run_folder import RunFolder

    check_choice("format", format, tuple(FORMATS))
    folder = RunFolder.existing(run)
    folder.check_memory(f"the export as {format}", copies=1.5)  # with a search's memory
    # After that, because they import TensorFlow.
    from keras_transformer.engine.opening import engine_of_run
    from keras_transformer.export.exporter import log_step

    exporter = exporter_of(format)
    decoding = folder.decoding()
    if verify_with is not None:
        texts = read_lines(verify_with)
    else:
        texts = [source for source, _ in folder.sample_pairs()]
    log_step(f"reading the run {run}")
    engine = engine_of_run(folder, plan)
    search_options = {}  # of a classifier
    if engine.labels is None:
        names = {field.name for field in dataclasses.fields(FORMATS[format].options())}
        defaults = without_excluded(decoding.search_options, options)
        search_options = {name: value for name, value in defaults.items() if name in names}
        if "shortlist" in names and engine.shortlist is not None and folder.origin():
            search_options["shortlist"] = True
        if lacking := _lacking_options(exporter, defaults, names):
            values = ", ".join(f"{name}={value!r}" for name, value in sorted(lacking.items()))
            print_lines(
                f"The export searches without options of the run, so texts may differ: {values}"
            )
    about = described_origin(folder), training_summary(folder)
    options = {**search_options, **options}
    return exporter.export(
        engine, output, texts, overwrite, *about, disposable_weights=True, **options
    )


def _lacking_options(exporter, defaults, names):
    """Returns the search options of a run that an export neither takes nor always has."""
    taken = {*names, "early_stopping"}  # Marian has a stop rule of its own.
    always = exporter.search.items()
    return {name: defaults[name] for name, _ in defaults.items() - always if name not in taken}
