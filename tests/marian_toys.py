"""Toys of Marian's and Hugging Face's layouts, and copies of them that are changed."""

import pathlib
import shutil

import numpy as np
import pytest
import yaml

from keras_transformer.extras.marian import reader as marian
from keras_transformer.text.vocabulary import parsed

TOYS = pathlib.Path(__file__).parent / "data" / "marian"
SOURCES = ["the old child sees a small house", "a cat", "yes, the river moves"]
TARGETS = ["la kato movas", "la maljuna infano vidas malgrandan domon", "jes"]


def changed(tmp_path, name="opus", parts=None, files=None, missing=(), **options):
    """A copy of a toy with other options and parts of tensors in its model, and other files."""
    folder = tmp_path / name
    shutil.copytree(TOYS / name, folder)
    path = folder / "model.npz"
    tensors = marian.read_tensors(path)
    settings = yaml.load(bytes(tensors[marian.OPTIONS]).split(b"\0")[0], yaml.BaseLoader)
    settings |= {key.replace("_", "-"): value for key, value in options.items()}
    tensors |= {key: tensors[key][part] for key, part in (parts or {}).items()}
    for file, content in (files or {}).items():
        (folder / file).write_text(content, "utf-8", "surrogateescape")
    for file in missing:
        (folder / file).unlink()
    tensors[marian.OPTIONS] = np.frombuffer(yaml.safe_dump(settings).encode() + b"\0\0", "int8")
    np.savez(path, **tensors)
    return folder


def student(tmp_path, change=lambda model: None, name="vocab.en.spm", config=None):
    """A copy of the student with a changed vocabulary, and other options of its decoder."""
    folder = tmp_path / "student"
    shutil.copytree(TOYS / "student", folder)
    model = parsed((folder / "vocab.en.spm").read_bytes())
    change(model)
    (folder / "vocab.en.spm").unlink()
    (folder / name).write_bytes(model.SerializeToString())
    (folder / "config.yml").unlink()
    if config is not None:
        (folder / "config.yml").write_text(config)
    return folder


def with_short_translations(run):
    """The run, with translations of at most 32 tokens: its search is one loop, also in exports."""
    path = pathlib.Path(run) / "recipe.yaml"
    sections = yaml.safe_load(path.read_text("utf-8"))
    sections["decoding"] |= {"max_source_length": 48, "max_target_length": 32}
    path.write_text(yaml.safe_dump(sections), "utf-8")
    return run


def safetensors_numpy():
    return pytest.importorskip("safetensors.numpy", reason="comes with the extra [import]")
