"""Weights of a Hugging Face folder: safetensors or pickles, in one file or in several."""

import json
import struct
from pathlib import Path

import numpy as np

from keras_transformer.errors import InputError, first_line
from keras_transformer.importing.pickles import read_state
from keras_transformer.importing.vocabulary import read_json
from keras_transformer.importing.weights import BFLOAT16, mapped_array
from keras_transformer.options import received
from keras_transformer.reading import check_file

_INDEX = ".index.json"
# The first that a folder has, in transformers' order.
_FILES = ("model.safetensors", "pytorch_model.bin")
NAMES = tuple(name + ending for name in _FILES for ending in ("", _INDEX))
"""Names of the files of which a folder has one."""
_DTYPES = {
    **{f"F{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
    **{f"I{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"U{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    "BF16": BFLOAT16,
}


def read_tensors(folder: Path) -> tuple[dict[str, np.ndarray], Path]:
    """Returns the tensors of a folder by their names, and the file that has or lists them."""
    path = next((folder / name for name in NAMES if (folder / name).is_file()), folder / NAMES[0])
    check_file(path)
    if not path.name.endswith(_INDEX):
        return _read_file(path), path
    files = read_json(path).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise InputError(f"{path}: `weight_map` must have names with files.")
    for file in files.values():
        if not isinstance(file, str) or file != Path(file).name or "\\" in file:
            rule = "a shard must be a file of this folder"
            raise InputError(f"{path}: {rule}. Received: {received(file)}.")
    shards = {file: _read_file(folder / file) for file in sorted(set(files.values()))}
    for name, file in files.items():
        if name not in shards[file]:
            raise InputError(f"{path}: the shard {file} has no tensor {received(name)}.")
    return {name: shards[file][name] for name, file in files.items()}, path


def _read_file(path):
    if path.suffix != ".safetensors":
        return read_state(path)
    check_file(path)
    try:
        return _read_safetensors(path)
    except Exception as error:  # Any byte of a damaged file may be wrong.
        reason = f"{first_line(error):.200}"
        raise InputError(f"{path}: cannot be read as safetensors: {reason}.") from None


def _read_safetensors(path):
    """Reads the header, a JSON object, and returns views of the numbers behind it."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > path.stat().st_size:
            raise ValueError("the header is longer than the file")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if dtype not in _DTYPES:
            raise ValueError(f"{name} has numbers of the unknown type {dtype!r:.20}")
        sizes_are_right = all(type(size) is int and size >= 0 for size in (start, *shape))
        count = np.prod(shape, dtype=object)
        if not sizes_are_right or end - start != count * _DTYPES[dtype].itemsize:
            raise ValueError(f"{name} has another size than its numbers")
        arrays[name] = mapped_array(path, _DTYPES[dtype], 8 + length + start, shape)
    return arrays
