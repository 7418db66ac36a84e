import types

import pytest
from small_corpus import recipe_values, write_recipe

from keras_transformer import demo, training
from keras_transformer.cli import run
from keras_transformer.errors import InputError, TrainingError
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

    monkeypatch.setattr(training, "train", train)
    return asked


@pytest.mark.parametrize("given", [[], ["--resume"], ["--overwrite"], ["--dry-run"]])
def test_the_recipe_and_the_options_reach_the_library(recipe, asked, given, capsys):
    assert run(["train", str(recipe), "--output", "new", *given]) == 0
    ((received, output, options),) = asked
    assert received == training.Recipe.from_dict(recipe_values("corpus"))
    assert output == "new"
    assert options == {
        "resume": "--resume" in given,
        "overwrite": "--overwrite" in given,
        "recipe_file": str(recipe),
        "dry_run": "--dry-run" in given,
        "host": SINGLE_HOST,
    }
    assert capsys.readouterr().out == ("" if options["dry_run"] else "new, as it was made\n")


def test_values_of_the_recipe_are_replaced_one_by_one(recipe, asked):
    changes = ["--set", "training.epochs=17", "--set", "model.dropout=0.25"]
    assert run(["train", str(recipe), "--output", "new", *changes]) == 0
    values = recipe_values("corpus", epochs=17)
    values["model"]["dropout"] = 0.25
    assert asked[0][0] == training.Recipe.from_dict(values)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("training.epochs", "training.epochs"),
        ("training.epoch=1", "Did you mean `epochs`?"),
        ("training.epochs=many", "training.epochs"),
    ],
)
def test_a_change_that_is_none_is_one_line_and_exit_code_2(recipe, asked, change, expected, capsys):
    assert run(["train", str(recipe), "--output", "new", "--set", change]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("keras-transformer: ") and expected in line
    assert (captured.out, asked) == ("", [])


def test_an_error_of_the_library_is_one_line_and_exit_code_2(recipe, monkeypatch, capsys):
    def train(*arguments, **options):
        raise InputError("new: exists already.")

    monkeypatch.setattr(training, "train", train)
    assert run(["train", str(recipe), "--output", "new"]) == 2
    assert capsys.readouterr() == ("", "keras-transformer: new: exists already.\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--output", "new"], "the following arguments are required: RECIPE.yaml"),
        (["recipe.yaml"], "the following arguments are required: --output"),
        (["recipe.yaml", "--output", "new", "--set"], "argument --set: expected one argument"),
    ],
)
def test_without_a_recipe_an_output_or_a_value_nothing_is_trained(
    asked, arguments, expected, capsys
):
    with pytest.raises(SystemExit) as caught:
        run(["train", *arguments])
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(expected)
    assert asked == []


def test_a_loss_that_is_no_number_is_one_line_and_exit_code_1(recipe, monkeypatch, capsys):
    def train(*arguments, **options):
        raise TrainingError("training stopped: the loss is nan in epoch 3, step 17.")

    monkeypatch.setattr(training, "train", train)
    assert run(["train", str(recipe), "--output", "new"]) == 1
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line == "keras-transformer: training stopped: the loss is nan in epoch 3, step 17."
    assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ("demo", {"overwrite": False})),
        (["--output", "there"], ("there", {"overwrite": False})),
        (["--overwrite"], ("demo", {"overwrite": True})),
    ],
)
def test_options_reach_the_demo_and_its_table_is_printed(monkeypatch, arguments, expected, capsys):
    asked = []

    def run_demo(*arguments, **options):
        asked.append((*arguments, options))
        return "a table\nof two lines"

    monkeypatch.setattr(demo, "run_demo", run_demo)
    assert run(["demo", *arguments]) == 0
    assert asked == [expected]
    assert capsys.readouterr().out == "a table\nof two lines\n"


def test_an_error_of_the_demo_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "mine.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert run(["demo"]) == 2
    message = "demo: exists already. Give --overwrite or another --output."
    assert capsys.readouterr() == ("", f"keras-transformer: {message}\n")


def test_an_option_that_the_demo_does_not_have_is_exit_code_2(monkeypatch, capsys):
    monkeypatch.setattr(demo, "run_demo", lambda *arguments, **options: "")
    with pytest.raises(SystemExit) as caught:
        run(["demo", "--epochs", "1"])
    assert caught.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("error: unrecognized arguments: --epochs 1")
