"""Rules for all programs: how they are run, their options, and users' mistakes."""

import importlib
import json
import pathlib
import sys
from collections.abc import Sequence

import pytest

from benchmarks import command_line
from benchmarks.measure import use_threads
from keras_transformer.base.errors import InputError

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"
PROGRAMS = sorted(p.stem for p in FOLDER.glob("*.py") if "def main(" in p.read_text("utf-8"))


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_says_how_it_is_run(name, capsys):
    program = importlib.import_module(f"benchmarks.{name}")
    command = f"python -m benchmarks.{name}"
    assert f"{command} " in program.__doc__
    with pytest.raises(SystemExit) as caught:
        program.main(["--help"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {command} ")


@pytest.mark.slow
def test_an_environment_without_keras_and_jax_can_gather():
    hidden = "import sys; sys.modules.update(dict.fromkeys(('keras', 'jax', 'tensorflow')))"
    program = f"{hidden}; from benchmarks import wheels; wheels.main(['--help'])"
    assert command_line.call("-c", program, module=None).startswith("usage: python -m benchmarks.w")


def test_options_are_the_parameters_of_a_function(monkeypatch, capsys):
    def first(
        paths: Sequence[str], /, size: int, rates: Sequence[float] = (0.5, 1.0), fast: bool = False
    ) -> list:
        """Does one thing.

        Args:
            paths: Paths that
                are long.
            size: Size in %.
            rates: Rates.
            fast: Be fast.
        """
        return [paths, size, list(rates), fast]

    def the_other() -> command_line.Report:
        """Does another thing."""
        return command_line.Report({"n": 1}, "| a table |")

    module = type(sys)("made_up")
    module.__file__, module.__doc__ = "made_up.py", "Measures.\n"
    monkeypatch.setitem(sys.modules, __name__, module)

    def output(*words, **options):
        command_line.run(first, the_other, arguments=words, **options)
        captured = capsys.readouterr()
        return json.loads(captured.out), captured.err

    some = output("first", "x", "y", "--size", "3", "--rates", "2", "--fast")
    assert some == ([["x", "y"], 3, [2.0], True], "")
    few = output("x", "--size", "3", default=first)
    assert few == ([["x"], 3, [0.5, 1.0], False], "")
    assert output("the-other") == ({"n": 1}, "| a table |\n")
    for words, code in ((["first", "x"], 2), ([], 2), (["first", "--help"], 0)):
        with pytest.raises(SystemExit) as caught:
            output(*words)
        assert caught.value.code == code
    assert "Rates; default: 0.5 1.0" in " ".join(capsys.readouterr().out.split())


# Program, words and the end of its line; `{}` is a folder with a wheel.
MISTAKES = [
    ("wheels", "{}", "expected a folder without wheels"),
    ("wheels", "{}/new --python three", "Received: 'three'"),
    ("large", "--work {} --commands import train", "`commands` must be of import, translate"),
    ("gpu", "--small --output {}/new", "needs the JAX backend"),
    ("gpu", "--small --output {}/new --parts everything", "'everything'"),
    ("decode", "--length 1025", "must be at most 1024. Received: length=1025"),
    ("decode", "--engines ctranslate", "Did you mean `ctranslate2`?"),
    ("decode", "--engines ours ours", "with no name twice"),
    ("decode", "--engines ours ctranslate2", "(package ctranslate2): pip install"),
    ("decode", "--model {} --source {} --engines keras_hub", "must be of ours, ctranslate2, ctr"),
]


@pytest.mark.tensorflow
@pytest.mark.parametrize(("name", "words", "expected"), MISTAKES)
def test_a_users_mistake_is_one_line(name, words, expected, tmp_path, monkeypatch, capsys):
    (tmp_path / "keras-1.whl").touch()
    monkeypatch.setitem(sys.modules, "ctranslate2", None)  # not installed
    with pytest.raises(SystemExit):
        program = importlib.import_module(f"benchmarks.{name}")
        program.main(words.format(*[tmp_path] * 2).split())
    assert expected in capsys.readouterr().err.splitlines()[-1]
    assert [*tmp_path.iterdir()] == [tmp_path / "keras-1.whl"]


@pytest.mark.tensorflow
def test_threads_that_come_too_late_are_a_users_mistake():
    import tensorflow as tf

    tf.constant(1) + 1  # TensorFlow has started with the two threads of conftest.py.
    use_threads(2)
    with pytest.raises(InputError, match="threads=5, TensorFlow runs with 2"):
        use_threads(5)


def test_a_failed_process_is_one_line():
    with pytest.raises(InputError, match="exit code 3"):
        command_line.call("-c", "exit(3)", module=None)
    assert command_line.call("-c", "print(input())", module=None, text="in") == "in\n"
