"""Names of local models."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from model_servers import make_zip

from keras_transformer.base.errors import InputError
from keras_transformer.base.reading import file_digests
from keras_transformer.extras.importing.fetching import LocalModel, local_model


def test_a_path_that_exists_comes_before_a_name_of_a_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("a", "b").mkdir(parents=True)
    pathlib.Path("a", "b", "vocab.json").write_text("{}")
    pathlib.Path("a", "b", "tf_model.h5").write_text("not read")
    with local_model("a/b", "run", lambda folder: None) as model:
        assert model.folder == pathlib.Path("a", "b")
        origin = {"name": "a/b", "revision": None, "licence": None}
        assert model.origin() == {**origin, "files": file_digests("a/b", ["a/b/vocab.json"])}


NO_NAMES = [
    "no",
    "a b/c",
    "/a/b",
    "./a/b",
    "firefox:",
    "ftp://a/b.zip",
    "n" * 300,
    "/" + "n" * 5000,
]


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_no_name_is_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"^{name}: no such folder or archive; give a path"):
        with local_model(name, "run", lambda folder: None):
            pass


MIT = "license: mit\n"
CARDS = [
    (f"---\n{MIT}---\n", "mit"),
    (f"\ufeff---\r\nlanguage: en\r\n{MIT}---\r\n# A", "mit"),
    ("---\nlicense: cc-by-4.0 # as the corpus\n---\n", "cc-by-4.0"),
    ('---\nLicense: "apache-2.0"\n---', "apache-2.0"),
    ("---\nlicense:\n- mit\n- cc0-1.0\n---\n", "mit, cc0-1.0"),
    ("---\nlicense: [mit, cc0-1.0]\n---\n", "mit, cc0-1.0"),
    ("---\nlicense: >\n  cc-by\n  4.0\n---\n", "cc-by 4.0"),
    ("---\nlicense: no\n---\n", "no"),
    ("---\nlicense: other\nlicense_name: open-model-1\n---\n", "open-model-1"),
    ("---\nlicense_name: open-model-1\nlicense: [other]\n---\n", "open-model-1"),
    ("---\nlicense: other\nlicense_name:\n- {a: b}\n---\n", "other"),
    ("---\nlicense: other\nlicense_link: LICENSE\n---\n", "other"),
    ("---\nlicense: mit\nlicense_name: open-model-1\n---\n", "mit"),
    ("---\nlicense_name: open-model-1\n---\n", None),
    (f"---\ntags:\n- license:mit\n- x\nlanguage: en\n---\n{MIT}", None),
    (f"---\nmodel-index:\n  {MIT}---\n", None),
    ("---\nlicense:\ntags:\n- translation\n---\n", None),
    ("---\nlanguage: en\n---\nLicense: see the paper\n---\n", None),
    (f"# A model\n---\n{MIT}---\n", None),
    (f"---\n{MIT}", None),
    (f"----\n{MIT}---\n", None),
    (f"---\n{MIT}a: [\n---\n", None),
    (f"---\n{MIT}a: &a [*a]\n---\n", None),
    ("---\nlicense: {name: mit}\n---\n", None),
    ("---\n- license: mit\n---\n", None),
    ("---\n? [a]\n: b\n---\n", None),
    ("---\n---\n", None),
    (f"---\nlicense: {'x' * 5000}\n---\n", "x" * 200),
    ("", None),
]


@pytest.mark.parametrize(("card", "licence"), CARDS)
def test_the_licence_is_the_field_of_the_front_matter(tmp_path, card, licence):
    (tmp_path / "README.md").write_text(card, encoding="utf-8", newline="")
    assert LocalModel(tmp_path, "a/b").origin()["licence"] == licence


def test_the_licence_may_stand_in_a_folder_above_the_model(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "README.md").write_text(f"---\n{MIT}---\n")
    model = LocalModel(tmp_path / "a", "a")
    assert model.origin(tmp_path / "a" / "b")["licence"] is None
    model = LocalModel(tmp_path, "a")
    assert model.origin(tmp_path / "a" / "b")["licence"] == "mit"
    (tmp_path / "a" / "README.md").write_text("---\nlicense: cc0-1.0\n---\n")
    assert model.origin(tmp_path / "a" / "b")["licence"] == "cc0-1.0"


def test_an_error_names_the_archive_and_not_a_temporary_folder(tmp_path):
    path = make_zip(tmp_path / "model.zip", {"a/b.txt": b""})
    with pytest.raises(InputError, match=f"^{path}/b.txt: is empty"):
        with local_model(path, tmp_path / "run", lambda folder: None) as model:
            raise InputError(f"{model.folder / 'b.txt'}: is empty")
    assert os.listdir(tmp_path) == ["model.zip"]


IN_A_NEW_PROCESS = """
import json, sys, time
start = time.process_time()
from keras_transformer.cli.main import run
codes = [run(["import", name, "--output", "run"]) for name in sys.argv[1:]]
seconds = time.process_time() - start
print(json.dumps([codes, sorted({"keras", "tensorflow", "jax"} & set(sys.modules)), seconds]))
"""


@pytest.mark.slow
def test_what_is_no_model_is_refused_without_keras(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "page.zip").write_text("<!DOCTYPE html>")
    make_zip(tmp_path / "none.zip", {"README.md": b"no model"})
    command = [sys.executable, "-c", IN_A_NEW_PROCESS, "empty", "page.zip", "none.zip", "no"]
    root = str(pathlib.Path(__file__).parents[4])
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert len(done.stderr.splitlines()) == 6, done.stderr  # Two folders are read before.
    codes, loaded, seconds = json.loads(done.stdout)
    assert (codes, loaded) == ([2] * 4, []) and seconds < 2
    assert not (tmp_path / "run").exists()
