"""Values of any type and size in the files of a folder: read, or refused in one short line."""

import json
import os
import pathlib
import re
import struct
import subprocess
import sys

import numpy as np
import pytest
import yaml

from keras_transformer.base.errors import InputError
from keras_transformer.extras.foreign.settings import read_yaml
from keras_transformer.extras.importing.importing import read_model
from keras_transformer.extras.marian import reader as marian
from keras_transformer.runs.sections import parse_yaml

LONG = "x" * 1600
VALUES = [None, True, -1, 10**30, 1e300, "", LONG, [], [LONG] * 9, [[[LONG] * 9] * 9]]
VALUES += [{}, {LONG: LONG}, [{"content": [LONG], "id": LONG}], {"1": {"content": [LONG]}}]
# Fields that files may have beside those of the toys.
FIELDS = {
    "config.json": ["tie_word_embeddings", "share_encoder_decoder_embeddings"],
    "generation_config.json": ["bad_words_ids", "suppress_tokens", "max_new_tokens", "max_length"],
    "tokenizer_config.json": ["added_tokens_decoder", "separate_vocabs", "legacy_behaviour"],
    "decoder.yml": ["max-length-factor", "shortlist"],
}
FIELDS["generation_config.json"] += ["min_length", "min_new_tokens", "early_stopping", "max_time"]
FIELDS["tokenizer_config.json"] += ["additional_special_tokens", "tokenizer_class"]
KINDS = ["opus", "hugging_face", "m2m100", "nllb", "small100", "argos"]


@pytest.fixture
def make_folder(make_toy, tmp_path):
    """`make_folder(kind)`: a whole folder of a kind, with its files of settings."""
    return lambda kind: make_toy(tmp_path, kind)


def changes(path):
    """Contents of a file of settings with another value in one of its fields, or as a whole."""
    text, dumps = path.read_text(encoding="utf-8"), json.dumps
    if path.suffix == ".yml":
        dumps = yaml.safe_dump
    content = yaml.load(text, yaml.BaseLoader) if path.suffix == ".yml" else json.loads(text)
    names = [*content, *FIELDS.get(path.name, ())] if isinstance(content, dict) else []
    names = names[:2] if "vocab" in path.name or "index" in path.name else names
    for value in VALUES:
        yield dumps(value)
        if isinstance(content, list):
            yield dumps([value, *content[1:]])
    for index, name in enumerate(names):
        for value in VALUES[index % 3 :: 3]:
            yield dumps({**content, name: value})


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_of_a_file_is_read_or_refused_in_one_short_line(make_folder, kind):
    folder = make_folder(kind)
    read_model(folder)
    refused = 0
    for path in [path for path in folder.rglob("*") if path.suffix in (".json", ".yml")]:
        whole = path.read_bytes()
        for content in () if path.name == "expected.json" else changes(path):
            path.write_text(content, encoding="utf-8")
            try:
                notes = read_model(folder).notes
            except InputError as error:
                refused += 1
                notes = (str(error),)
            for line in notes:
                shown = line.replace(str(folder), "")
                assert len(shown) < 1500 and "\n" not in shown, (content[:200], shown[:3000])
        path.write_bytes(whole)
    assert refused > 20


def test_every_value_of_an_option_in_a_model_is_read_or_refused_in_one_short_line(make_folder):
    path = make_folder("opus") / "model.npz"
    arrays = dict(np.load(path))
    options = yaml.load(bytes(arrays[marian.OPTIONS]).split(b"\0")[0], yaml.BaseLoader)
    names = *options, "transformer-tied-layers", "transformer-disable-position-embeddings"
    for index, name in enumerate(names):
        for value in VALUES[index % 3 :: 3]:
            text = yaml.safe_dump({**options, name: value})
            arrays[marian.OPTIONS] = np.frombuffer(text.encode(), "int8")
            np.savez(path, **arrays)
            try:
                read_model(path.parent)
            except InputError as error:
                shown = str(error).replace(str(path.parent), "")
                assert len(shown) < 1500 and "\n" not in shown, (name, shown[:3000])


def aliases(levels, first, of):
    """YAML in which each name stands for ten of the name before."""
    lines = [f"a0: &a0 {first}\n"]
    for level in range(1, levels + 1):
        inner = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} {of.format(inner)}\n")
    return "".join(lines)


BOMB = aliases(8, "[x]", "[{}]")
IN_A_NEW_PROCESS = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from keras_transformer.base.errors import InputError
from keras_transformer.extras.importing.importing import read_model
from keras_transformer.runs.run_folder import RunFolder
try:
    read = RunFolder.origin if sys.argv[2] == "recipe.yaml" else read_model
    read(RunFolder(sys.argv[1]) if sys.argv[2] == "recipe.yaml" else Path(sys.argv[1]))
except InputError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("file", ["decoder.yml", "vocab.yml", "model.npz", "recipe.yaml"])
def test_aliases_of_aliases_are_one_line_and_take_no_memory(make_folder, tmp_path, file):
    folder = make_folder("opus")
    if file == "model.npz":
        arrays = dict(np.load(folder / file))
        text = bytes(arrays[marian.OPTIONS]).split(b"\0")[0].decode()
        text = re.sub("version: .*", "version: *a8", BOMB + text)
        np.savez(folder / file, **arrays | {marian.OPTIONS: np.frombuffer(text.encode(), "int8")})
    else:
        ends = {"decoder.yml": "vocabs: [*a8]\n", "recipe.yaml": "origin: {name: *a8}\n"}
        (folder / file).write_text(BOMB + ends.get(file, "? *a8\n: 1\n"))
    command = [sys.executable, "-c", IN_A_NEW_PROCESS, str(folder), file]
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[3])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = done.stdout.splitlines()
    assert file in line and "aliases must not make it more than 10 times as long" in line


@pytest.mark.parametrize("text", ["a: &a [*a]\n", aliases(9, "{k: v}", "{{<<: [{}]}}"), BOMB])
def test_a_document_that_aliases_make_much_longer_is_refused(text):
    for read in (read_yaml, parse_yaml):
        with pytest.raises(InputError, match="^here: not valid YAML: aliases must not"):
            read(text, "here")


def test_aliases_as_people_write_them_are_read():
    text = "a: &a {x: [1, 2]}\nb: [*a, *a]\nc: &c {<<: *a, y: 2}\nd: *c\n"
    assert parse_yaml(text, "here")["d"] == {"x": [1, 2], "y": 2}
    assert read_yaml(text, "here")["b"] == [{"x": ["1", "2"]}] * 2
    many = f"a: &a {'x' * 90}\nb: [{', '.join(['*a'] * 1000)}]\n"
    assert len(read_yaml(many, "here")["b"]) == 1000


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
HEADERS = [{LONG: ENTRY}, {"model.shared.weight": {**ENTRY, "dtype": LONG}}, LONG, [[LONG] * 9] * 9]
HEADERS += [
    {"model.shared.weight": {**ENTRY, "shape": shape}} for shape in ([1] * 5000, [LONG], -1)
]
HEADERS += [{"__metadata__": {LONG: value}, "model.shared.weight": ENTRY} for value in VALUES]


@pytest.mark.parametrize("header", range(len(HEADERS)))
def test_a_message_shows_the_beginning_of_a_value_of_a_header_of_safetensors(make_folder, header):
    folder = make_folder("hugging_face")
    content = json.dumps(HEADERS[header]).encode()
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(content)) + content + bytes(4))
    with pytest.raises(InputError) as caught:
        read_model(folder).tensors.check_all_used()
    assert len(str(caught.value).replace(str(folder), "")) < 500


@pytest.mark.parametrize("kind", KINDS)
def test_each_tensor_has_the_dtype_of_its_numbers(make_folder, kind):
    for array in read_model(make_folder(kind)).tensors.arrays.values():
        assert array.dtype == np.asarray(array).dtype
