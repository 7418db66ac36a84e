"""Toys that tests import."""

import json
import shutil

import pytest
from marian_toys import TOYS, safetensors_numpy

from keras_transformer.interop.importing import import_model


@pytest.fixture(scope="module")
def imported():
    """Models of folders, each imported once."""
    models = {}

    def get(folder):
        if folder not in models:
            models[folder] = import_model(folder)
        return models[folder]

    return get


@pytest.fixture
def make_toy(load_program):
    """`make_toy(tmp_path, name)`: a copy of a toy, or a folder of Hugging Face made of `opus`."""

    def make_toy(tmp_path, name, generation=None):
        folder = tmp_path / name
        if name != "hugging_face":
            shutil.copytree(TOYS / name, folder)
            return folder
        safetensors_numpy()
        folder.mkdir()
        load_program(TOYS / "make.py").make_hugging_face(folder, added=["<x>"])
        contents = {"generation_config.json": generation or {}, "tokenizer_config.json": {}}
        pad = json.loads((folder / "config.json").read_text("utf-8"))["pad_token_id"]
        for file, content in contents.items():
            (folder / file).write_text(json.dumps(content).replace('"<pad>"', str(pad)), "utf-8")
        return folder

    return make_toy
