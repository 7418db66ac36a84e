"""The file of a model, `*.keras`: loaded without running code of it, and saved whole."""

import math
import os
import pathlib
import zipfile

from keras_transformer.errors import InputError
from keras_transformer.files import check_space, parts_folder, replaced_file
from keras_transformer.reading import check_file, readable

_MAX_ITEM_BYTES, _FREE_BYTES = 4, 1 << 20


def load_model(path: str | os.PathLike, compile: bool):
    """Loads a model from a `.keras` file, without running any code that the file may hold.

    Raises:
        InputError: The file is missing, damaged, or holds something else.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such model file.")
    check_file(path)  # Before Keras, which takes seconds.
    import keras

    from keras_transformer.models import KINDS

    with readable(path, "a Keras model"):
        model = keras.saving.load_model(path, compile=compile, safe_mode=True)
    if not isinstance(model, tuple(KINDS.values())):
        names = ", ".join(kind.__name__ for kind in KINDS.values())
        raise InputError(f"{path}: expected one of {names}. Received: {type(model).__name__}.")
    return model


def save_model(model, path: str | os.PathLike) -> None:
    """Saves a model under a temporary name, then renames it: `path` is never half a file.

    Keras would build the file in memory. It writes the file's parts to a folder instead.
    """
    variables = [*model.variables, *getattr(getattr(model, "optimizer", None), "variables", ())]
    size = sum(math.prod(variable.shape) for variable in variables) * _MAX_ITEM_BYTES
    with replaced_file(path) as temporary, parts_folder(temporary) as folder:
        # For the parts and the file: HDF5 crashes on a full disk.
        check_space(temporary, 2 * (size + _FREE_BYTES))
        model.save(folder, zipped=False)
        with zipfile.ZipFile(temporary, "w") as archive:
            for part in filter(pathlib.Path.is_file, sorted(folder.rglob("*"))):
                archive.write(part, part.relative_to(folder))
