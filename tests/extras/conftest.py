"""Toys that tests import."""

import functools
import json
import shutil

import pytest
from marian_toys import TOYS, safetensors_numpy

from keras_transformer.extras.importing.importing import import_model


@pytest.fixture(scope="module", autouse=True)
def quick_graphs(plain_graphs):
    """Most of the time goes to graphs that run once."""


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
def make_toy(load_program, made_once):
    """`make_toy(tmp_path, kind)`: a copy of a toy, which is made once. Kinds are folders of `TOYS`,
    `argos`, `hugging_face` (made of `opus`), `m2m100`, `nllb` and `small100`.
    """

    def make(kind, folder):
        program, others = load_program(TOYS / "make.py"), {"tokenizer_config.json": {}}
        if kind == "argos":
            model = TOYS.parent / "ctranslate2" / "pre_silu_relative_float16"
            shutil.copytree(model, folder / "model")
            others = {"metadata.json": {"type": "translate", "target_prefix": ""}}
            others["metadata.json"]["from_name"] = "English"
        elif kind == "hugging_face":
            program.make_hugging_face(folder, added=["<x>"])
            others["generation_config.json"] = {}
        else:
            program.make_m2m100(folder, kind)
        for file, content in others.items():
            if not (folder / file).exists():
                (folder / file).write_text(json.dumps(content), "utf-8")

    def make_toy(tmp_path, kind, generation=None):
        folder, origin = tmp_path / kind, TOYS / kind
        if not origin.exists():
            if kind != "argos":
                safetensors_numpy()
            origin = made_once(f"toy {kind}", functools.partial(make, kind))
        shutil.copytree(origin, folder)
        if generation is not None:
            pad = json.loads((folder / "config.json").read_text("utf-8"))["pad_token_id"]
            text = json.dumps(generation).replace('"<pad>"', str(pad))
            (folder / "generation_config.json").write_text(text, "utf-8")
        return folder

    return make_toy
