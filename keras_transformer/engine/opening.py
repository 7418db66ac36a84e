"""Opens what `Translator.load` is given: finds the engine for a folder or file."""

import functools
import os
import pathlib
import re
from typing import TYPE_CHECKING, Any

from keras_transformer.base.errors import InputError
from keras_transformer.base.imports import import_keras
from keras_transformer.base.options import check_positive
from keras_transformer.engine.device import give_tensorflow
from keras_transformer.formats import FORMATS
from keras_transformer.runs.names import RECIPE

if TYPE_CHECKING:
    from keras_transformer.engine.device import DevicePlan
    from keras_transformer.engine.engine import Engine
    from keras_transformer.engine.model_engine import TrainedEngine
    from keras_transformer.runs.run_folder import RunFolder

# A name that `keras-transformer import` takes, of a published list or of Hugging Face.
_IMPORTED_NAME = re.compile(r"(?:firefox|argos):([\w-]+)\S*|[\w.-]+/([\w.-]+?)(?:@\S+)?", re.ASCII)


def open_engine(
    path: str | os.PathLike, threads: int | None = None, plan: "DevicePlan | None" = None
) -> "tuple[Engine, dict[str, Any]]":
    """Returns the engine of a run folder or an export, and default options of `translate`.

    Takes the arguments and raises the errors of `Translator.load`.
    """
    path = pathlib.Path(path)
    if threads is not None:
        check_positive(threads=threads)
    check_exists(path)
    for format in FORMATS.values():
        if format.is_at(path):
            format.check_present()
            return format.open_export(path, threads), {}
    folder = None
    if (path / RECIPE).exists():
        from keras_transformer.runs.run_folder import RunFolder

        folder = RunFolder(path)
        folder.check_memory("translation", copies=1.25)  # with the caches of a search
    if threads is not None:
        import_keras()
        give_tensorflow(threads)
    if folder is not None:
        import_keras()
        engine = engine_of_run(folder, plan)
        return engine, folder.decoding().search_options if engine.labels is None else {}
    exports = ", ".join(f"a {f.noun} ({f.file})" for f in FORMATS.values() if f.file)
    raise InputError(
        f"{path}: neither a run folder ({RECIPE}) nor an export: {exports}. Make a run of a "
        "model of another program with `keras-transformer import`."
    )


def engine_of_run(folder: "RunFolder", plan: "DevicePlan | None" = None) -> "TrainedEngine":
    """Returns the `ModelEngine` or `ClassifierEngine` of a run: its model, tokenizers and limits.

    Args:
        folder: Folder of the run.
        plan: Shapes and rows of its searches; by default those that suit the device.

    Raises:
        InputError: A file of the run is missing, damaged or invalid.
    """
    from keras_transformer.engine.model_engine import engine_of

    tokenizers = functools.cache(folder.tokenizers)
    options, model = folder.engine_options(tokenizers), folder.model()
    try:
        return engine_of(model, *tokenizers(), frozen=True, plan=plan, **options)
    except InputError as error:
        raise InputError(f"{folder.path}: {error}") from None


def check_exists(path: str | os.PathLike) -> None:
    """Raises `InputError` for a missing path; for a name of a model with the command to import."""
    name = os.fspath(path)
    if os.path.exists(name):
        return
    advice, match = "", _IMPORTED_NAME.fullmatch(name)
    if match and not os.path.isdir(os.path.dirname(name)):
        command = f"keras-transformer import {name} --output runs/{match[1] or match[2]}"
        advice = f" A model that is downloaded must become a run first: {command}"
    raise InputError(f"{name}: no such run or export folder.{advice}")
