"""Opens what `Translator.load` is given: finds the engine for a folder or file."""

import os
import pathlib
import re
from typing import TYPE_CHECKING, Any

from keras_transformer.errors import InputError
from keras_transformer.imports import import_keras, import_tensorflow
from keras_transformer.options import check_positive

if TYPE_CHECKING:
    from keras_transformer.engine.device import DevicePlan
    from keras_transformer.engine.engine import Engine

# A name of `keras-transformer import`: of a list, or of Hugging Face.
_NAME_OF_A_MODEL = re.compile(
    r"(?:firefox|argos):([\w-]+)\S*|[\w.-]+/([\w.-]+?)(?:@\S+)?", re.ASCII
)


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
    # The first that finds its files there opens the path.
    for open_path in (_open_ctranslate2, _open_litert, _open_saved_model):
        if (engine := open_path(path, threads)) is not None:
            return engine, {}
    if threads is not None:
        import_keras()
        give_tensorflow(threads)
    if (path / "recipe.yaml").exists():
        from keras_transformer.engine.run_folder import RunFiles

        import_keras()
        folder = RunFiles(path)
        engine = folder.engine(plan)
        return engine, folder.decoding().search if engine.labels is None else {}
    raise InputError(
        f"{path}: neither a run folder (recipe.yaml), a SavedModel (saved_model.pb), a LiteRT "
        "(model.tflite) nor a CTranslate2 export (model.bin). Make a run of a model of another "
        "program with `keras-transformer import`."
    )


def check_exists(path: str | os.PathLike) -> None:
    """Raises `InputError` for a missing path; for a name of a model with the command to import."""
    name = os.fspath(path)
    if os.path.exists(name):
        return
    advice, match = "", _NAME_OF_A_MODEL.fullmatch(name)
    if match and not os.path.isdir(os.path.dirname(name)):
        command = f"keras-transformer import {name} --output runs/{match[1] or match[2]}"
        advice = f" A model that is downloaded must become a run first: {command}"
    raise InputError(f"{name}: no such run or export folder.{advice}")


def _open_ctranslate2(path, threads):
    if not (path / "model.bin").exists():
        return None
    from keras_transformer.engine.exports.ctranslate2 import CTranslate2Engine

    return CTranslate2Engine(path, threads)


def _open_litert(path, threads):
    if path.suffix != ".tflite" and not any(path.glob("*.tflite")):
        return None
    from keras_transformer.engine.exports.litert import LiteRTEngine

    return LiteRTEngine(path, threads or 2)


def _open_saved_model(path, threads):
    if not (path / "saved_model.pb").exists():
        return None
    import_tensorflow()
    if threads is not None:
        give_tensorflow(threads)
    from keras_transformer.engine.exports.manifest import has_labels
    from keras_transformer.engine.exports.saved_model import ExportedClassifier, SavedModelEngine

    return ExportedClassifier(path) if has_labels(path) else SavedModelEngine(path)


def give_tensorflow(threads: int, operations: int | None = None) -> None:
    """Sets TensorFlow's threads per operation, and `operations` that run at once.

    By default as many operations run at once as an operation has threads, unless their number is
    set already. Raises `InputError` if TensorFlow has started with other threads.
    """
    import tensorflow as tf

    threading = tf.config.threading
    try:
        threading.set_intra_op_parallelism_threads(threads)
        set_already = threading.get_inter_op_parallelism_threads()
        threading.set_inter_op_parallelism_threads(operations or set_already or threads)
    except RuntimeError:
        current = threading.get_intra_op_parallelism_threads() or "its default"
        rule = "`threads` must be set before TensorFlow's first operation."
        received = f"threads={threads}, TensorFlow runs with {current}"
        raise InputError(f"{rule} Received: {received}.") from None
