"""Models of a hub on loopback, with the real client."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from model_servers import COMMITS, Hub

pytest.importorskip("huggingface_hub", reason="comes with the extra [import]")

# The client reads its environment when it is imported, so each process is a new one.
COMMANDS = """
import contextlib, io, json, pathlib, sys
from keras_transformer.cli.main import run
from keras_transformer.base.errors import InputError
from keras_transformer.extras.importing.fetching import local_model
from keras_transformer.extras.importing.importing import check_config

results = {}
for name in sys.argv[1:]:
    try:
        with local_model(name, "run", check_config) as model:
            names = sorted(path.name for path in model.folder.iterdir())
            results[name] = [names, model.origin()]
    except InputError as error:
        results[name] = str(error)
with contextlib.redirect_stderr(io.StringIO()) as lines:
    results["code"] = run(["import", sys.argv[-1], "--output", "run"])
results["lines"] = lines.getvalue().splitlines()
results["loaded"] = sorted({"keras", "tensorflow", "jax"} & set(sys.modules))
print(json.dumps(results))
"""
NUMBERS = ("layers", "attention_heads", "ffn_dim")
OPTIONS = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in NUMBERS}
OPTIONS |= {"model_type": "marian", "d_model": 14, "scale_embedding": True}
CONFIG = json.dumps({**OPTIONS, "pad_token_id": 10, "decoder_start_token_id": 10}).encode()
CARD = b"---\nlanguage: en\nlicense: cc-by-4.0\n---\n# A model\n"
OTHERS = {"tf_model.h5": b"t", "rust_model.ot": b"r", "flax_model.msgpack": b"f"}


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """`ask(url, *names, **environment)`: what a new process says about names of models."""

    folder = tmp_path_factory.mktemp("working directory")

    def ask(url, *names, **environment):
        variables = {key: os.environ[key] for key in os.environ if not key.startswith("HF_")}
        variables |= {"HF_ENDPOINT": url, "HF_HOME": str(folder / "hf"), "NO_PROXY": "*"}
        root = str(pathlib.Path(__file__).parents[4])
        done = subprocess.run(
            [sys.executable, "-c", COMMANDS, *names],
            env={**variables, "PYTHONPATH": root, **environment},
            cwd=folder,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert os.listdir(folder) in ([], ["hf"])
        return json.loads(done.stdout.splitlines()[-1])

    return ask


@pytest.fixture(scope="module")
def hub():
    """A Hub, what a new process says of its models, and the paths that it asked for."""
    small = {"config.json": CONFIG, "vocab.json": b"{}", "source.spm": b"s", "README.md": CARD}
    pickled = {**small, "pytorch_model.bin": b"p", **OTHERS}
    with Hub().running() as hub:
        hub.models = {
            "a/safe@main": {**pickled, "model.safetensors": b"weights"},
            "a/old@main": pickled,
            "a/old@refs/pr/1": {**small, "model.safetensors": b"new"},
            "a/large@main": {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"l"},
            "a/empty@main": small,
            "a/gated@main": pickled,
        }
        hub.gated = {"a/gated"}
        yield hub


NAMES = ["a/safe", "a/old", "a/old@refs/pr/1", "a/old@v9", "a/large", "a/empty", "a/no", "a/gated"]


@pytest.fixture(scope="module")
def results(hub, ask):
    return ask(hub.url, *NAMES)


@pytest.fixture(scope="module")
def paths(hub, results):
    """What was downloaded for the results."""
    return [path for method, path in hub.requests if method == "GET"]


def test_a_name_becomes_the_files_that_are_needed(results, paths):
    files, origin = results["a/safe"]
    assert files == ["README.md", "config.json", "model.safetensors", "source.spm", "vocab.json"]
    assert (origin["name"], origin["licence"]) == ("a/safe", "cc-by-4.0")
    assert origin["revision"] == COMMITS["main"] and len(origin["files"]["model.safetensors"]) == 64
    assert not [path for path in paths if path.endswith((".h5", ".ot", ".msgpack"))]
    assert "/a/large/resolve/" + COMMITS["main"] + "/model.safetensors" not in paths


def test_a_pickle_is_taken_where_a_revision_has_nothing_better(results):
    assert "pytorch_model.bin" in results["a/old"][0]
    files, origin = results["a/old@refs/pr/1"]
    assert "model.safetensors" in files and origin["revision"] == COMMITS["refs/pr/1"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a/old@v9", "a/old@v9: the repository has no such revision."),
        ("a/large", "a/large/config.json: only models of Marian"),
        ("a/empty", "a/empty: "),
        ("a/no", "a/no: no such file or folder, and no such model at {url}."),
        ("a/gated", "a/gated: the model is gated. Accept its terms at {url}/a/gated"),
    ],
)
def test_a_name_without_a_model_is_one_line(hub, results, name, message):
    more = {"a/empty": "must have one of model.safetensors, pytorch_model.bin", "a/no": "HF_TOKEN"}
    assert results[name].startswith(message.format(url=hub.url))
    assert more.get(name, "") in results[name] and "\n" not in results[name]


def test_a_mistake_ends_the_command_before_a_library_is_loaded(results):
    assert (results["code"], results["loaded"]) == (2, [])
    assert results["lines"] == [f"keras-transformer: {results['a/gated']}"]


def test_a_model_that_is_cached_is_downloaded_once_and_lines_name_no_folder_of_the_cache(
    hub, ask, results
):
    hub.requests.clear()
    cached = ask(hub.url, "a/no", "a/safe")
    assert not [path for method, path in hub.requests if method == "GET" and "/res" in path]
    assert cached["a/safe"] == results["a/safe"]
    reading, error = cached["lines"]
    assert reading == "a/safe: reading the model"
    assert error.startswith("keras-transformer: a/safe/model.safetensors: cannot be read as safet")


@pytest.mark.parametrize(
    ("environment", "reason"),
    [({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"), ({}, "was not reached: ")],
)
def test_without_a_hub_a_name_that_is_not_cached_is_one_line(ask, environment, reason):
    url = "http://127.0.0.1:9"  # Nothing answers there.
    results = ask(url, "a/b", **environment)
    beginning = "a/b: no such file or folder, nor in the cache of Hugging Face, and "
    assert results["a/b"].startswith(beginning) and reason in results["a/b"]
    assert results["lines"] == [f"keras-transformer: {results['a/b']}"]
    assert (results["code"], results["loaded"]) == (2, [])
