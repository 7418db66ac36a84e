import functools
import itertools
import os
import pathlib
import re
import subprocess
import sys

import pytest

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.cli import dates, demo

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def small(monkeypatch):
    """The demo on little data and for one epoch: what it does, not how well."""
    monkeypatch.setattr(demo, "_HELD_OUT", 20)
    monkeypatch.setattr(demo, "date_corpus", lambda num_held_out: dates.date_corpus(400, 40))
    training = {**demo._RECIPE["training"], "epochs": 1, "max_shapes": 1, "jit_compile": False}
    model = {**demo._RECIPE["model"], "model_dim": 32, "intermediate_dim": 48}
    recipe = {"text": {"vocabulary_size": 260}, "model": model, "training": training}
    monkeypatch.setattr(demo, "_RECIPE", {**demo._RECIPE, **recipe})


@pytest.mark.slow
def test_the_demo_goes_the_whole_way(small, unverified, one_graph, tmp_path, monkeypatch, capsys):
    load = functools.cache(Translator.load)  # The run is loaded, and its search compiled, once.
    monkeypatch.setattr(Translator, "load", lambda path, **options: load(os.path.realpath(path)))
    table = demo.run_demo(tmp_path / "demo")
    assert "26 locales" in table
    assert "of 20 (" in table and "equal to the model on 1 of 1 texts" in table
    for example in demo._EXAMPLES:
        assert example in table
    assert f"--model {tmp_path / 'demo' / 'run'} --format web --output" in table
    for name in ("data", "run", "export"):
        assert (tmp_path / "demo" / name).is_dir()
        assert str(tmp_path / "demo" / name) in table
    with pytest.raises(InputError, match="exists already"):
        demo.run_demo(tmp_path / "demo")
    # README's Python translates with the demo's run.
    readme = (pathlib.Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    (program,) = [block for block in blocks if '"demo/run"' in block]
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    exec(program, {})
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_the_data_of_the_demo_is_held_out(small, tmp_path):
    (tmp_path / "data").mkdir()
    demo._write_data(tmp_path / "data")
    parts = {
        part: (tmp_path / "data" / f"{part}.target").read_text(encoding="utf-8").splitlines()
        for part in ("train", "validation", "held_out")
    }
    assert [len(dates) for dates in parts.values()] == [400, 20, 20]
    for one, other in itertools.combinations(parts.values(), 2):
        assert not set(one) & set(other)


REFUSED = """
import sys
from keras_transformer.cli.main import main
try:
    main(["demo", "--output", sys.argv[1]])
finally:
    print(sorted({"keras", "tensorflow", "jax"} & set(sys.modules)))
"""


def test_an_earlier_demo_is_refused_before_keras_is_imported(tmp_path):
    make_demo(tmp_path)
    command = [sys.executable, "-c", REFUSED, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "exists already" in done.stderr and done.stdout == "[]\n"


def make_demo(folder):
    """The files of a demo, as far as their names go."""
    files = ["data/held_out.source", "data/train.source", "run/recipe.yaml", "run/tokenizer.model"]
    files.append("export/fingerprint.pb")
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("")
    (folder / "export" / "export.json").write_text('{"files": {"fingerprint.pb": ""}}')


def test_an_earlier_demo_is_removed_and_nothing_else(small, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.source").write_text("a folder without the held-out part is no demo")
    with pytest.raises(InputError, match="did not make: data/train.source"):
        demo._prepare(tmp_path, overwrite=True)
    for file in ("thesis.txt", "data/thesis.txt", "run/thesis.txt", "export/thesis.txt"):
        make_demo(tmp_path)
        (tmp_path / file).write_text("years of work")
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(InputError, match=f"did not make: {file}"):
            demo._prepare(tmp_path, overwrite=True)
        assert sorted(tmp_path.rglob("*")) == before
        (tmp_path / file).unlink()
        # What a killed demo leaves.
        (tmp_path / ".run.lock").write_text("1 there")
        (tmp_path / ".export.partial-1-0123abcd").mkdir()
        (tmp_path / ".export.partial-1-0123abcd" / "saved_model.pb").write_text("")
        demo._prepare(tmp_path, overwrite=True)
        assert os.listdir(tmp_path) == ["data"]
        assert "years of work" not in (tmp_path / "data" / "train.source").read_text("utf-8")
