import types

import pytest
from small_corpus import recipe_values, write_recipe

from keras_transformer import training
from keras_transformer.cli import demo
from keras_transformer.cli.main import run
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.training.hosts import SINGLE_HOST


@pytest.fixture
def recipe(tmp_path):
    return write_recipe(tmp_path / "recipe.yaml", recipe_values("corpus"))


@pytest.fixture
def asked(monkeypatch):
    """What `train` was called with, instead of training."""
    asked = []

    def train(recipe, output, **options):
        asked.append((recipe, output, options))
        return types.SimpleNamespace(path=f"{output}, as it was made")

    monkeypatch.setattr("keras_transformer.training.loop.train", train)
    return asked


@pytest.mark.parametrize("flags", [[], ["--resume"], ["--overwrite"]])
def test_the_recipe_and_the_options_reach_the_library(recipe, asked, flags, capsys):
    assert run(["train", str(recipe), "--output", "new", *flags]) == 0
    ((received, output, options),) = asked
    assert received == training.Recipe.from_dict(recipe_values("corpus"))
    assert output == "new"
    expected = {name: f"--{name}" in flags for name in ("resume", "overwrite")}
    assert options == {**expected, "recipe_file": str(recipe), "host": SINGLE_HOST}
    assert capsys.readouterr().out == "new, as it was made\n"


@pytest.mark.parametrize("is_run", [True, False])
@pytest.mark.parametrize("command", ["train", "export"])
def test_an_output_that_exists_is_refused_before_keras_is_imported(
    command, is_run, recipe, tmp_path, monkeypatch, capsys
):
    def import_keras():
        raise AssertionError("Keras takes seconds.")

    output = tmp_path / "out"
    output.mkdir()
    marker = {"train": "tokenizer.model", "export": "export.json"}[command]
    (output / (marker if is_run else "thesis.txt")).write_text("{}")
    for module in ("train", "arguments"):
        monkeypatch.setattr(f"keras_transformer.cli.{module}.import_keras", import_keras)
    others = [str(recipe)] if command == "train" else ["--model", "run", "--format", "litert"]
    assert run([command, *others, "--output", str(output)]) == 2
    advice = "Give --resume to continue it, --overwrite" if command == "train" else "Give --overwr"
    expected = f"exists already. {advice}" if is_run else "did not make: thesis.txt"
    assert expected in capsys.readouterr().err


def test_values_of_the_recipe_are_replaced_one_by_one(recipe, asked):
    changes = ["--set", "training.epochs=17", "--set", "model.dropout=0.25"]
    assert run(["train", str(recipe), "--output", "new", *changes]) == 0
    values = recipe_values("corpus", epochs=17)
    values["model"]["dropout"] = 0.25
    assert asked[0][0] == training.Recipe.from_dict(values)


def test_options_reach_the_demo_and_its_table_is_printed(monkeypatch, capsys):
    asked = []

    def run_demo(*arguments, **options):
        asked.append((*arguments, options))
        return "a table\nof two lines"

    monkeypatch.setattr(demo, "run_demo", run_demo)
    for arguments in ([], ["--output", "there", "--overwrite"]):
        assert run(["demo", *arguments]) == 0
        assert capsys.readouterr().out == "a table\nof two lines\n"
    assert asked == [("demo", {"overwrite": False}), ("there", {"overwrite": True})]


@pytest.mark.parametrize(
    ("overrides", "copies"),
    [
        ([], []),
        (["training.start_from=run"], [("run", 5)]),
        (["training={start_from: run, lora_rank: 3}"], [("run", 2)]),
        (["training.lora_rank=3", " training.start_from = 'run'"], [("run", 2)]),
        (["training.lora_rank=3", "training.start_from=run", "training.lora_rank=~"], [("run", 5)]),
        (["training.start_from=run", "training.start_from=null"], []),
    ],
)
@pytest.mark.usefixtures("asked")
def test_memory_is_prepared_for_the_start_that_the_recipe_has(
    overrides, copies, recipe, monkeypatch
):
    received = []
    monkeypatch.setattr(
        RunFolder,
        "check_memory",
        lambda folder, task, copies: received.append((folder.path.name, copies)),
    )
    options = [word for override in overrides for word in ("--set", override)]
    assert run(["train", str(recipe), "--output", "new", *options]) == 0
    assert received == copies
