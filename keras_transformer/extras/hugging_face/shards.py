"""Weights of a Hugging Face folder: safetensors or pickles, in one file or in several."""

import functools
from pathlib import Path
from typing import Any

import ml_dtypes as ml_dtypes  # Names the types of its numbers to NumPy, for safetensors too.

from keras_transformer.base.errors import InputError, require
from keras_transformer.base.options import received
from keras_transformer.base.reading import MAX_NAME_BYTES, check_file, read_json, reading_errors
from keras_transformer.extras.foreign.foreign_model import FileArray
from keras_transformer.extras.hugging_face.pickles import read_state

# Names of dtypes in safetensors.
_DTYPES: dict[str, Any] = {"F16": "float16", "BF16": ml_dtypes.bfloat16}
_INDEX = ".index.json"
# The first that a folder has, in transformers' order.
_FILES = ("model.safetensors", "pytorch_model.bin")
NAMES = tuple(name + ending for name in _FILES for ending in ("", _INDEX))
"""Names of the files of which a folder has one."""


def read_tensors(folder: Path) -> tuple[dict[str, FileArray], Path]:
    """Returns the tensors of a folder by their names, and the file that has or lists them."""
    path = next((folder / name for name in NAMES if (folder / name).is_file()), folder / NAMES[0])
    check_file(path)
    if not path.name.endswith(_INDEX):
        return _read_file(path), path
    files = read_json(path).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise InputError(f"{path}: `weight_map` must have names with files.")
    for file in files.values():
        is_name = isinstance(file, str) and file == Path(file).name and "\\" not in file
        if not is_name or len(file) > MAX_NAME_BYTES:
            rule = "a shard must be a file of this folder"
            raise InputError(f"{path}: {rule}. Received: {received(file)}.")
    shards = {file: _read_file(folder / file) for file in sorted(set(files.values()))}
    for name, file in files.items():
        if name not in shards[file]:
            raise InputError(f"{path}: the shard {file} has no tensor {received(name)}.")
    return {name: shards[file][name] for name, file in files.items()}, path


def _read_file(path):
    return _read_safetensors(path) if path.suffix == ".safetensors" else read_state(path)


def _read_safetensors(path):
    safetensors: Any = require("safetensors", "safetensors, which reads the weights,", "import")

    def read(name):
        # Open only while it reads: the pages of an open file count as memory of the process.
        with reading_errors(path, "safetensors"), safetensors.safe_open(path, "numpy") as file:
            return file.get_tensor(name)

    def read_rows(name, start, stop):
        with reading_errors(path, "safetensors"), safetensors.safe_open(path, "numpy") as file:
            return file.get_slice(name)[start:stop]

    with reading_errors(path, "safetensors"), safetensors.safe_open(path, "numpy") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}
        return {
            name: FileArray(
                tuple(part.get_shape()),
                functools.partial(read, name),
                functools.partial(read_rows, name),
                _DTYPES.get(part.get_dtype(), "float32"),
            )
            for name, part in slices.items()
        }
